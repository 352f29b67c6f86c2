"""Header fields that rules can name and that identify flows: the standard ones, and those of protocol packages."""

from __future__ import annotations

from functools import cache
from typing import Any

from testbed import registry
from testbed.errors import ConflictError, TestbedError
from testbed.fates.header_fields import Fields, SharedNumberError
from testbed.fates.headers import standard_fields
from testbed.registry import Entry


@cache
def known_fields() -> Fields:
    """The fields of all packages. They are the same for every datapath, so that the n-th frame of a flow is the n-th
    everywhere.

    A package registers its codec, a module with ETHERTYPE, FIELDS and FLOW, as an entry point of the group
    "testbed.fields". Optional: ROUTED, whether its header follows a source route; BEGINS, the bytes with which it
    begins, if others share the EtherType; ABOVE, the name of the header below it, if that header does not name it
    (`header_fields`); NAMES, names of field values; CHECK, the field that is computed from the rest
    of the frame, and mended(frame, begin), which computes it anew (`header_fields.Mender`). A codec that cannot be
    imported prevents no cluster from coming up, but rules cannot name it. Raises ConflictError for two codecs that
    cannot be distinguished, since fates would depend on which is registered first.
    """
    fields, clashes = gather_fields()
    if clashes:
        raise ConflictError("\n".join(clashes))
    return fields


def gather_fields() -> tuple[Fields, list[str]]:
    """The fields of all distinguishable packages, and a sentence for each clash."""
    fields = standard_fields()
    entries_by_name = registry.all_offered(registry.FIELDS)
    clashes = same_names(registry.FIELDS, entries_by_name)
    for name, (entry, *_) in entries_by_name.items():
        codec: Any = None
        try:
            codec = registry.import_entry(registry.FIELDS, name, entry)
            register(fields, name, codec)
        except SharedNumberError as error:
            other = entries_by_name[error.peer][0] if error.other in entries_by_name else None
            clashes.append(clash(codec.ETHERTYPE, (name, entry), (error.peer, other), error.reason))
        except (TestbedError, AttributeError, ValueError):
            continue
    return fields, clashes


def clash(ethertype: int, one: tuple[str, Entry], other: tuple[str, Entry | None], why: str) -> str:
    """A sentence on two packages that claim an EtherType. Entry None: the standard header of that name."""
    return (
        f"EtherType 0x{ethertype:04X} is claimed twice, by {_whose(*other)} and by {_whose(*one)}, and frames do not say "
        f"whose they are: {why}. Uninstall one of the packages, or give it another EtherType"
    )


def same_names(group: str, entries_by_name: dict[str, list[Entry]]) -> list[str]:
    """A sentence for each name of a group that several packages use."""
    kind = group.rpartition(".")[2]
    return [
        f"{kind} {name!r} are offered by {' and by '.join(_package(entry) for entry in entries)}: "
        "uninstall all but one of these packages, or let them use other names"
        for name, entries in entries_by_name.items()
        if len(entries) > 1
    ]


def _whose(name: str, entry: Entry | None) -> str:
    return f"{name} ({_package(entry)})" if entry is not None else f"{name} (a usual header)"


def _package(entry: Entry) -> str:
    return f"package {' '.join(filter(None, entry.package_and_version()))}"


def register(fields: Fields, name: str, codec: Any) -> None:
    """Register a codec's fields under that name. Raises AttributeError for an invalid module, ValueError for invalid
    fields."""
    fields.register(
        name,
        codec.ETHERTYPE,
        codec.FIELDS,
        codec.FLOW,
        routed=getattr(codec, "ROUTED", False),
        begins=getattr(codec, "BEGINS", b""),
        above=getattr(codec, "ABOVE", ""),
        names=getattr(codec, "NAMES", {}),
        check=getattr(codec, "CHECK", ""),
        mended=getattr(codec, "mended", None),
    )

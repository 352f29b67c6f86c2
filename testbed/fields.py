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
    """The fields of all packages. Every datapath identifies flows by them, so that a frame has the same number in its
    flow on each.

    A package registers its codec as an entry point of the group "testbed.fields": a module with ETHERTYPE, FIELDS and
    FLOW. Optional attributes of the module:

    - ROUTED: whether its header follows a source route.
    - BEGINS: the bytes with which its header begins, if other headers have the same EtherType.
    - ABOVE: the name of the header below it, if that header does not name it (see `header_fields`).
    - NAMES: names of field values.
    - CHECK: the field that is computed from the rest of the frame.
    - mended(frame, begin): returns the frame with CHECK recomputed (`header_fields.Mender`).

    A codec that cannot be imported does not prevent clusters from coming up, but rules cannot name its fields. Raises
    ConflictError for two codecs whose frames cannot be distinguished: fates would depend on which is registered first.
    """
    fields, clashes = gather_fields()
    if clashes:
        raise ConflictError("\n".join(clashes))
    return fields


def gather_fields() -> tuple[Fields, list[str]]:
    """The fields of all distinguishable packages, and a sentence for each clash."""
    fields = standard_fields()
    entries_by_name = registry.all_offered(registry.FIELDS)
    clashes = name_clashes(registry.FIELDS, entries_by_name)
    for name, (entry, *_) in entries_by_name.items():
        codec: Any = None
        try:
            codec = registry.import_entry(registry.FIELDS, name, entry)
            register(fields, name, codec)
        except SharedNumberError as error:
            other_entry = entries_by_name[error.peer][0] if error.peer in entries_by_name else None
            clashes.append(clash(codec.ETHERTYPE, (name, entry), (error.peer, other_entry), error.reason))
        except (TestbedError, AttributeError, ValueError):
            continue
    return fields, clashes


def clash(ethertype: int, newer: tuple[str, Entry], older: tuple[str, Entry | None], why: str) -> str:
    """A sentence on two packages that claim an EtherType. newer, older: name and entry of each, in the order of
    registration; entry None: the standard header of that name. why: why their frames cannot be distinguished."""
    return (
        f"EtherType 0x{ethertype:04X} is claimed twice, by {_describe(*older)} and by {_describe(*newer)}, and their "
        f"frames cannot be distinguished: {why}. Uninstall one of the packages, or give it another EtherType"
    )


def name_clashes(group: str, entries_by_name: dict[str, list[Entry]]) -> list[str]:
    """A sentence for each name of a group that several packages use."""
    kind = group.rpartition(".")[2]
    return [
        f"{kind} {name!r} are offered by {' and by '.join(_package(entry) for entry in entries)}: "
        "uninstall all but one of these packages, or change their names"
        for name, entries in entries_by_name.items()
        if len(entries) > 1
    ]


def _describe(name: str, entry: Entry | None) -> str:
    return f"{name} ({_package(entry)})" if entry is not None else f"{name} (a standard header)"


def _package(entry: Entry) -> str:
    return f"package {' '.join(filter(None, entry.package_and_version()))}"


def register(fields: Fields, name: str, codec: Any) -> None:
    """Register a codec's fields under a name. Raises AttributeError for a module that lacks an attribute, ValueError
    for invalid fields."""
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

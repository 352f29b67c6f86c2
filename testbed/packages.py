"""The protocols that packages offer: package, EtherType, and where they run.

Of two packages that share an EtherType, `offered_protocols` lists both; `protocol` raises ConflictError.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cache

from protocols.core.protocol import Protocol
from testbed import fabrics, registry
from testbed.errors import ConflictError, TestbedError
from testbed.fields import clash, gather_fields, known_fields, name_clashes
from testbed.registry import Entry
from testbed.spec.kinds import kind_of


@dataclass(frozen=True, slots=True)
class OfferedProtocol:
    """A protocol that a package offers.

    ethertype: 0 for the kernel's own protocols. modes: sim, live, dilated. nics: where its firmware can run, inline or
    shared; empty without firmware. fabrics: kinds of switches that it can cross. profiles: names of its cost profiles.
    settings: settings of its firmware, with their defaults. problem: why it is unavailable, or empty; an unavailable
    protocol has only name, package and version besides.
    """

    name: str
    package: str
    version: str
    ethertype: int = 0
    modes: tuple[str, ...] = ()
    nics: tuple[str, ...] = ()
    fabrics: tuple[str, ...] = ()
    profiles: tuple[str, ...] = ()
    settings: Mapping[str, object] = field(default_factory=dict)
    problem: str = ""


def offered_protocols() -> list[OfferedProtocol]:
    """All offered protocols, sorted by name, including those that cannot be imported."""
    return [_import_offered(name, entry) for name, entry in registry.offered(registry.PROTOCOLS).items()]


def with_active_messages() -> list[str]:
    """Names of the available protocols whose host libraries have active messages."""
    return [
        offered.name
        for offered in offered_protocols()
        if not offered.problem and protocol(offered.name).active_messages
    ]


def clashes() -> list[str]:
    """A sentence for each pair of packages that conflict, by EtherType or by name."""
    return [*gather_fields()[1], *protocol_clashes()]


def problems() -> list[str]:
    """A sentence for each conflict of packages and each protocol that is unavailable."""
    broken = [
        f"protocol {protocol.name} is unavailable: {protocol.problem}"
        for protocol in offered_protocols()
        if protocol.problem
    ]
    return [*clashes(), *broken]


def protocol(name: str) -> Protocol:
    """The registered protocol of that name.

    Raises NotFoundError, TestbedError if it cannot be imported or is no protocol, and ConflictError if any two packages
    conflict, unless the protocol is the kernel's own.
    """
    checked_protocol = _checked(name, registry.load(registry.PROTOCOLS, name))
    if not checked_protocol.uses_kernel_sockets:
        known_fields()  # raises ConflictError if codecs clash
        if sentences := protocol_clashes():
            raise ConflictError("\n".join(sentences))
    return checked_protocol


def _checked(name: str, value: object) -> Protocol:
    if not isinstance(value, Protocol):
        raise TestbedError(f"the entry point of protocol {name!r} is a {type(value).__name__}, not a Protocol")
    return value


def _import_offered(name: str, entry: Entry) -> OfferedProtocol:
    package, version = entry.package_and_version()
    try:
        checked_protocol = _checked(name, registry.import_entry(registry.PROTOCOLS, name, entry))
    except TestbedError as error:
        return OfferedProtocol(name, package, version, problem=_last_line(str(error)))
    if checked_protocol.uses_kernel_sockets:
        return OfferedProtocol(name, package, version, modes=("live",), fabrics=_fabrics(()))
    nics = ("inline", "shared") if checked_protocol.split_driver is not None else ("inline",)
    modes = ("sim", "live", "dilated")
    profiles = tuple(profile.name for profile in checked_protocol.profiles)
    form = checked_protocol.configurable.form if checked_protocol.configurable is not None else None
    settings = {setting.name: setting.default for setting in fields(form)} if form is not None else {}
    return OfferedProtocol(
        name,
        package,
        version,
        checked_protocol.ethertype,
        modes,
        nics,
        _fabrics(checked_protocol.framings),
        profiles,
        settings,
    )


def _last_line(traceback: str) -> str:
    """Return a traceback's last line, the error, with the file and line in which it was raised."""
    error = traceback.strip().rpartition("\n")[2]
    locations = re.findall(r'^ *File "(.+)", line (\d+)', traceback, re.MULTILINE)
    return f"{error} ({locations[-1][0]}:{locations[-1][1]})" if locations else error


def _fabrics(framings: tuple[str, ...]) -> tuple[str, ...]:
    """The fabrics that a protocol whose frames have these framings can cross."""
    return tuple(name for name in fabrics.names() if kind_of(name).framing in ("", *framings))


@cache
def protocol_clashes() -> tuple[str, ...]:
    """A sentence for each protocol name that several packages use, and for each protocol without a codec of its name
    whose EtherType another package uses.

    Of protocols that have codecs, `gather_fields` reports the clashes.
    """
    entries_by_name = registry.all_offered(registry.PROTOCOLS)
    sentences = name_clashes(registry.PROTOCOLS, entries_by_name)
    codecs = registry.offered(registry.FIELDS)
    if len({entry.package for entry in (*codecs.values(), *(entries[0] for entries in entries_by_name.values()))}) == 1:
        return tuple(sentences)  # only one package: no import needed
    taken: list[tuple[int, str, Entry]] = list(_ethertypes_of_codecs(codecs))
    for name, (entry, *_) in entries_by_name.items():
        if name in codecs and codecs[name].package == entry.package:
            continue
        try:
            ethertype = _checked(name, registry.import_entry(registry.PROTOCOLS, name, entry)).ethertype
        except TestbedError:
            continue
        for number, other_name, other_entry in taken if ethertype else ():
            if number == ethertype and other_entry.package != entry.package:
                why = f"{name} registers no fields that would tell their frames apart"
                sentences.append(clash(ethertype, (name, entry), (other_name, other_entry), why))
        taken.append((ethertype, name, entry))
    return tuple(sentences)


def _ethertypes_of_codecs(codecs: Mapping[str, Entry]) -> Iterator[tuple[int, str, Entry]]:
    for name, entry in codecs.items():
        try:
            number = getattr(registry.import_entry(registry.FIELDS, name, entry), "ETHERTYPE", 0)
        except TestbedError:
            continue
        yield number, name, entry

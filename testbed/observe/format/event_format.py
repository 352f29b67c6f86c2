"""Events of clusters and runs: reading of their log files, and formatting as time, kind, location and details.

An event has a kind and attributes. For known kinds a table defines which attributes are the location and how the remaining
attributes are formatted; events of other kinds are formatted attribute by attribute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, Final, TypeAlias

from testbed.json_text import loads
from testbed.kernel.filesystem import open_regular

Event: TypeAlias = Mapping[str, Any]

_COMMON_KEYS: Final = ("time", "clock", "event")
_MAX_NAMES: Final = 3  # largest number of links or nodes listed


@dataclass(frozen=True, slots=True)
class FormattedEvent:
    """A formatted event. time: nanoseconds since the epoch; 0: unknown. where: names of links or nodes, or empty. what: the
    details."""

    time: int
    kind: str
    where: str
    what: str


def format_event(event: Event) -> FormattedEvent:
    """Format an event. An event that lacks attributes of its kind is formatted attribute by attribute."""
    kind = str(event.get("event", "?"))
    location_keys, format_details = _KNOWN.get(kind, ((), _format_attributes))
    location = "; ".join(names for key in location_keys if (names := _format_names(event.get(key))))
    attributes = {key: value for key, value in event.items() if key not in _COMMON_KEYS and key not in location_keys}
    try:
        details = format_details(attributes)
    except (KeyError, TypeError, ValueError):  # written by another version
        details = _format_attributes(attributes)
    time = event.get("time")
    return FormattedEvent(time if isinstance(time, int) else 0, kind, location, details)


def kinds() -> list[str]:
    """Return the known kinds of events; events of other kinds may occur."""
    return sorted(_KNOWN)


def _format_names(value: object) -> str:
    if isinstance(value, list):
        more = f" and {len(value) - _MAX_NAMES} more" if len(value) > _MAX_NAMES else ""
        return ", ".join(map(str, value[:_MAX_NAMES])) + more
    return str(value or "")


def _format_attributes(attributes: Event) -> str:
    return ", ".join(f"{key} {_format_names(value) or value}" for key, value in attributes.items())


def _format_injection(attributes: Event) -> str:
    return f"{attributes['number']}: {attributes['what']}, in {attributes['took'] * 1000:.0f} ms"


def _format_healing(attributes: Event) -> str:
    reason = attributes.get("reason")
    return f"{attributes['number']}: {attributes['what']}" + (f" ({reason})" if reason else "")


def _format_rewiring(attributes: Event) -> str:
    change = f"from {attributes['before']} to {attributes['after']}"
    lost = [f"{_format_frames(attributes[key])} {key}" for key in ("lost", "early") if attributes[key]]
    return ", ".join([change, *lost])


def _format_lateness(attributes: Event) -> str:
    limit, worst = _format_milliseconds(attributes["limit"]), _format_milliseconds(attributes["worst"])
    late = f"{_format_frames(attributes['late'])} more than {limit} late (worst {worst})"
    return f"{attributes['direction']}: {late}, {attributes['lost']} lost"


def _format_restart(attributes: Event) -> str:
    begin, end = attributes["gap"]
    process = f"process {attributes['pid']}, {_format_milliseconds(end - begin)} after the end of the previous one"
    lost = f", {_format_frames(attributes['lost'])} lost" if "lost" in attributes else ""
    return process + lost + (", counts of rules and random losses continue" if "counts" in attributes else "")


def _format_death(attributes: Event) -> str:
    code = attributes.get("code")
    cause = "" if code is None else f", code {code}" if code >= 0 else f", signal {-code}"
    return f"process {attributes['pid']}{cause}"


def _format_outage(attributes: Event) -> str:
    return f"{attributes['address']} has not answered for {attributes['silent'] / 1e9:.2f} s: it is down or cut off"


def _format_recovery(attributes: Event) -> str:
    begin, end = attributes["gap"]
    return f"{attributes['address']} answers again after {(end - begin) / 1e9:.2f} s"


def _format_silence(attributes: Event) -> str:
    begin, end = attributes["gap"]
    return f"{attributes['address']} did not answer for {(end - begin) / 1e9:.2f} s"


def _format_what(attributes: Event) -> str:
    return str(attributes["what"])


def _format_frames(count: int) -> str:
    return f"{count:,} frame{'s' if count != 1 else ''}"


def _format_milliseconds(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e6:.3g} ms"


_KNOWN: Final[Mapping[str, tuple[tuple[str, ...], Callable[[Event], str]]]] = {
    # Events of a cluster.
    "inject": (("links",), _format_injection),
    "heal": (("links",), _format_healing),
    "not healed": ((), _format_attributes),
    "replugged": (("link",), _format_rewiring),
    "relay behind": (("link",), _format_lateness),
    "relay died": ((), _format_death),
    "relay restarted": ((), _format_restart),
    "relay not restarted": ((), _format_attributes),
    "supervisor died": ((), _format_death),
    "supervisor restarted": ((), _format_restart),
    "supervisor not restarted": ((), _format_attributes),
    "namespace holder died": ((), _format_death),
    "machine unreachable": (("machine",), _format_outage),
    "machine reachable": (("machine",), _format_recovery),
    "machine silent": (("machine",), _format_silence),
    "fates untold": ((), _format_attributes),
    "events omitted": ((), _format_attributes),
    "NIC agent died": (("node",), _format_death),
    "NIC agent restarted": (("node",), _format_restart),
    "NIC agent not restarted": (("node",), _format_attributes),
    "NICs shared": ((), _format_attributes),
    "NICs shared no more": ((), _format_attributes),
    "NICs are still shared": ((), _format_attributes),
    "node process died": (("node",), _format_death),
    "node parent died": (("nodes",), _format_death),
    "ssh": (("nodes",), _format_attributes),
    "offloads left off": (("nodes",), _format_attributes),
    # Events of a run.
    "the cluster is up": (("cluster",), lambda _: ""),
    "repetition begins": ((), _format_attributes),
    "repetition ends": ((), _format_attributes),
    "fault begins": (("fault",), _format_what),
    "fault ends": (("fault",), _format_what),
}
"""Known kinds of events: keys of the location, and the formatter of the other attributes."""


_MAX_READ: Final = 1 << 20  # bytes per system call


class Tail:
    """Reader of a growing file of JSON Lines, from its beginning. The file need not exist yet, and may be removed while it
    is read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BufferedReader | None = None
        self._incomplete = b""

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def read(self) -> list[Mapping[str, Any]]:
        """Return the JSON objects whose lines have been completed since the last call; other lines are skipped. Raises
        OSError for anything other than a regular file."""
        if self._file is None:
            try:
                self._file = open_regular(self._path)
            except FileNotFoundError:
                return []
        documents: list[Mapping[str, Any]] = []
        while data := self._file.read1(_MAX_READ):
            *lines, self._incomplete = (self._incomplete + data).split(b"\n")
            for line in lines:
                try:
                    document = loads(line)
                except ValueError:  # a killed process may leave an incomplete line
                    continue
                if isinstance(document, dict):
                    documents.append(document)
        return documents

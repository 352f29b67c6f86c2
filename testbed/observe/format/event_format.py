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
    location_keys, format_details = _KNOWN.get(kind, ((), _attributes))
    location = "; ".join(names for key in location_keys if (names := _names(event.get(key))))
    attributes = {key: value for key, value in event.items() if key not in _COMMON_KEYS and key not in location_keys}
    try:
        details = format_details(attributes)
    except (KeyError, TypeError, ValueError):  # written by another version
        details = _attributes(attributes)
    time = event.get("time")
    return FormattedEvent(time if isinstance(time, int) else 0, kind, location, details)


def kinds() -> list[str]:
    """Return the known kinds of events; events of other kinds may occur."""
    return sorted(_KNOWN)


def _names(value: object) -> str:
    if isinstance(value, list):
        more = f" and {len(value) - _MAX_NAMES} more" if len(value) > _MAX_NAMES else ""
        return ", ".join(map(str, value[:_MAX_NAMES])) + more
    return str(value or "")


def _attributes(attributes: Event) -> str:
    return ", ".join(f"{key} {_names(value) or value}" for key, value in attributes.items())


def _inject(attributes: Event) -> str:
    return f"{attributes['number']}: {attributes['what']}, in {attributes['took'] * 1000:.0f} ms"


def _heal(attributes: Event) -> str:
    reason = attributes.get("reason")
    return f"{attributes['number']}: {attributes['what']}" + (f" ({reason})" if reason else "")


def _replugged(attributes: Event) -> str:
    change = f"from {attributes['before']} to {attributes['after']}"
    lost = [f"{_frames(attributes[key])} {key}" for key in ("lost", "early") if attributes[key]]
    return ", ".join([change, *lost])


def _behind(attributes: Event) -> str:
    limit, worst = _milliseconds(attributes["limit"]), _milliseconds(attributes["worst"])
    late = f"{_frames(attributes['late'])} more than {limit} late (worst {worst})"
    return f"{attributes['direction']}: {late}, {attributes['lost']} lost"


def _restarted(attributes: Event) -> str:
    begin, end = attributes["gap"]
    process = f"process {attributes['pid']}, {_milliseconds(end - begin)} after the end of the previous one"
    lost = f", {_frames(attributes['lost'])} lost" if "lost" in attributes else ""
    return process + lost + (", counts of rules and random losses continue" if "counts" in attributes else "")


def _died(attributes: Event) -> str:
    code = attributes.get("code")
    how = "" if code is None else f", code {code}" if code >= 0 else f", signal {-code}"
    return f"process {attributes['pid']}{how}"


def _unreachable(attributes: Event) -> str:
    return f"{attributes['address']} has not answered for {attributes['silent'] / 1e9:.2f} s: it is down or cut off"


def _reachable(attributes: Event) -> str:
    begin, end = attributes["gap"]
    return f"{attributes['address']} answers again after {(end - begin) / 1e9:.2f} s"


def _silent(attributes: Event) -> str:
    begin, end = attributes["gap"]
    return f"{attributes['address']} did not answer for {(end - begin) / 1e9:.2f} s"


def _what_attribute(attributes: Event) -> str:
    return str(attributes["what"])


def _frames(count: int) -> str:
    return f"{count:,} frame{'s' if count != 1 else ''}"


def _milliseconds(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e6:.3g} ms"


_KNOWN: Final[Mapping[str, tuple[tuple[str, ...], Callable[[Event], str]]]] = {
    # of a cluster
    "inject": (("links",), _inject),
    "heal": (("links",), _heal),
    "not healed": ((), _attributes),
    "replugged": (("link",), _replugged),
    "relay behind": (("link",), _behind),
    "relay died": ((), _died),
    "relay restarted": ((), _restarted),
    "relay not restarted": ((), _attributes),
    "supervisor died": ((), _died),
    "supervisor restarted": ((), _restarted),
    "supervisor not restarted": ((), _attributes),
    "namespace holder died": ((), _died),
    "machine unreachable": (("machine",), _unreachable),
    "machine reachable": (("machine",), _reachable),
    "machine silent": (("machine",), _silent),
    "fates untold": ((), _attributes),
    "NIC agent died": (("node",), _died),
    "NIC agent restarted": (("node",), _restarted),
    "NIC agent not restarted": (("node",), _attributes),
    "NICs shared": ((), _attributes),
    "NICs shared no more": ((), _attributes),
    "NICs are still shared": ((), _attributes),
    "node process died": (("node",), _died),
    "node parent died": (("nodes",), _died),
    "ssh": (("nodes",), _attributes),
    "offloads left off": (("nodes",), _attributes),
    # of a run
    "the cluster is up": (("cluster",), lambda _: ""),
    "repetition begins": ((), _attributes),
    "repetition ends": ((), _attributes),
    "fault begins": (("fault",), _what_attribute),
    "fault ends": (("fault",), _what_attribute),
}


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

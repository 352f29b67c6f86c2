"""Events of clusters and runs: their files, which grow, and their text: time, kind, place and details.

An event has a name and any facts. For known events a table says which facts are the place and how the others are
formatted; unknown ones are formatted fact by fact.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from testbed.json_text import loads

Event: TypeAlias = Mapping[str, Any]

_ALWAYS = ("time", "clock", "event")
_MAX_NAMES: Final = 3  # largest number of links or nodes listed


@dataclass(frozen=True, slots=True)
class FormattedEvent:
    """A formatted event. time: nanoseconds of the epoch. where: names of links or nodes, or empty."""

    time: int
    kind: str
    where: str
    what: str


def format_event(event: Event) -> FormattedEvent:
    """Format an event. One that lacks facts of its kind is formatted as far as possible."""
    kind = str(event.get("event", "?"))
    where, what = _KNOWN.get(kind, ((), _facts))
    where_text = "; ".join(shown for key in where if (shown := _names(event.get(key))))
    rest = {key: value for key, value in event.items() if key not in _ALWAYS and key not in where}
    try:
        words = what(rest)
    except (KeyError, TypeError, ValueError):  # written by another version
        words = _facts(rest)
    when = event.get("time")
    return FormattedEvent(when if isinstance(when, int) else 0, kind, where_text, words)


def kinds() -> list[str]:
    """Names of the known events; others may occur."""
    return sorted(_KNOWN)


def _names(value: object) -> str:
    if isinstance(value, list):
        more = f" and {len(value) - _MAX_NAMES} more" if len(value) > _MAX_NAMES else ""
        return ", ".join(map(str, value[:_MAX_NAMES])) + more
    return str(value or "")


def _facts(facts: Event) -> str:
    return ", ".join(f"{key} {_names(value) or value}" for key, value in facts.items())


def _inject(facts: Event) -> str:
    return f"{facts['number']}: {facts['what']}, in {facts['took'] * 1000:.0f} ms"


def _heal(facts: Event) -> str:
    reason = facts.get("reason")
    return f"{facts['number']}: {facts['what']}" + (f" ({reason})" if reason else "")


def _replugged(facts: Event) -> str:
    change = f"from {facts['before']} to {facts['after']}"
    lost = [f"{_frames(facts[key])} {key}" for key in ("lost", "early") if facts[key]]
    return ", ".join([change, *lost])


def _behind(facts: Event) -> str:
    late = (
        f"{facts['late']} frames more than {_milliseconds(facts['limit'])} late (worst {_milliseconds(facts['worst'])})"
    )
    return f"{facts['direction']}: {late}, {facts['lost']} lost"


def _restarted(facts: Event) -> str:
    died, back = facts["gap"]
    process = f"process {facts['pid']}, {_milliseconds(back - died)} after the other's end"
    lost = f", {_frames(facts['lost'])} lost" if "lost" in facts else ""
    return process + lost + (", rules and chance count on" if "counts" in facts else "")


def _died(facts: Event) -> str:
    code = facts.get("code")
    how = "" if code is None else f", code {code}" if code >= 0 else f", signal {-code}"
    return f"process {facts['pid']}{how}"


def _unreachable(facts: Event) -> str:
    return f"{facts['address']} has not answered for {facts['silent'] / 1e9:.2f} s: it has died, or is cut off"


def _reachable(facts: Event) -> str:
    begin, end = facts["gap"]
    return f"{facts['address']} answers again after {(end - begin) / 1e9:.2f} s"


def _silent(facts: Event) -> str:
    begin, end = facts["gap"]
    return f"{facts['address']} did not answer for {(end - begin) / 1e9:.2f} s"


def _what(facts: Event) -> str:
    return str(facts["what"])


def _frames(count: int) -> str:
    return f"{count:,} frame{'s' if count != 1 else ''}"


def _milliseconds(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e6:.3g} ms"


_KNOWN: Final[Mapping[str, tuple[tuple[str, ...], Callable[[Event], str]]]] = {
    # of a cluster
    "inject": (("links",), _inject),
    "heal": (("links",), _heal),
    "not healed": ((), _facts),
    "replugged": (("link",), _replugged),
    "relay behind": (("link",), _behind),
    "relay died": ((), _died),
    "relay restarted": ((), _restarted),
    "relay not restarted": ((), _facts),
    "supervisor died": ((), _died),
    "supervisor restarted": ((), _restarted),
    "supervisor not restarted": ((), _facts),
    "namespace holder died": ((), _died),
    "machine unreachable": (("machine",), _unreachable),
    "machine reachable": (("machine",), _reachable),
    "machine silent": (("machine",), _silent),
    "fates untold": ((), _facts),
    "NIC agent died": (("node",), _died),
    "NIC agent restarted": (("node",), _restarted),
    "NIC agent not restarted": (("node",), _facts),
    "NICs shared": ((), _facts),
    "NICs shared no more": ((), _facts),
    "NICs are still shared": ((), _facts),
    "node process died": (("node",), _died),
    "node parent died": (("nodes",), _died),
    "ssh": (("nodes",), _facts),
    "offloads left off": (("nodes",), _facts),
    # of a run
    "the cluster is up": (("cluster",), lambda _: ""),
    "repetition begins": ((), _facts),
    "repetition ends": ((), _facts),
    "fault begins": (("fault",), _what),
    "fault ends": (("fault",), _what),
}


_MAX: Final = 1 << 20  # bytes read at once


class Tail:
    """A file of JSON Lines, read from its beginning. It need not exist yet, and may be removed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1
        self._rest = b""

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def read(self) -> list[Mapping[str, Any]]:
        """Return the documents whose lines have been completed since the last call. Lines without a JSON object are
        skipped."""
        if self._descriptor < 0:
            try:
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return []
        documents: list[Mapping[str, Any]] = []
        while data := os.read(self._descriptor, _MAX):
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                try:
                    document = loads(line)
                except ValueError:  # a killed process may leave half a line
                    continue
                if isinstance(document, dict):
                    documents.append(document)
        return documents

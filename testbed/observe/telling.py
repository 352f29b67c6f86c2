"""Events in words: when, of what kind, where, and what it was. Of clusters and of runs, whatever wrote them.

Who records an event gives it a name and facts as it likes; of the known ones the table says which facts tell where it
happened and how the rest is put, and any other is told fact by fact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

Event: TypeAlias = Mapping[str, Any]

_ALWAYS = ("time", "clock", "event")
_MANY: Final = 3  # names of links or nodes that are shown


@dataclass(frozen=True, slots=True)
class Told:
    """time: nanoseconds of the epoch. where: names of links or nodes, or empty."""

    time: int
    kind: str
    where: str
    what: str


def told(event: Event) -> Told:
    """An event in words. One that lacks what its kind has is told as far as it goes."""
    kind = str(event.get("event", "?"))
    where, what = _KNOWN.get(kind, ((), _facts))
    place = "; ".join(shown for key in where if (shown := _names(event.get(key))))
    rest = {key: value for key, value in event.items() if key not in _ALWAYS and key not in where}
    try:
        words = what(rest)
    except (KeyError, TypeError, ValueError):  # another version's
        words = _facts(rest)
    when = event.get("time")
    return Told(when if isinstance(when, int) else 0, kind, place, words)


def kinds() -> list[str]:
    """Those that are known; others may occur."""
    return sorted(_KNOWN)


def _names(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value[:_MANY])) + (f" and {len(value) - _MANY} more" if len(value) > _MANY else "")
    return str(value or "")


def _facts(facts: Event) -> str:
    return ", ".join(f"{key} {_names(value) or value}" for key, value in facts.items())


def _inject(facts: Event) -> str:
    return f"{facts['number']}: {facts['what']}, in {facts['took'] * 1000:.0f} ms"


def _heal(facts: Event) -> str:
    reason = facts.get("reason")
    return f"{facts['number']}: {facts['what']}" + (f" ({reason})" if reason else "")


def _replugged(facts: Event) -> str:
    told = f"from {facts['before']} to {facts['after']}"
    lost = [f"{_frames(facts[key])} {key}" for key in ("lost", "early") if facts[key]]
    return ", ".join([told, *lost])


def _behind(facts: Event) -> str:
    late = (
        f"{facts['late']} frames more than {_milliseconds(facts['limit'])} late (worst {_milliseconds(facts['worst'])})"
    )
    return f"{facts['direction']}: {late}, {facts['lost']} lost"


def _restarted(facts: Event) -> str:
    died, back = facts["gap"]
    told = f"process {facts['pid']}, {_milliseconds(back - died)} after the other's end"
    return told + (f", {_frames(facts['lost'])} lost" if "lost" in facts else "")


def _died(facts: Event) -> str:
    code = facts.get("code")
    how = "" if code is None else f", code {code}" if code >= 0 else f", signal {-code}"
    return f"process {facts['pid']}{how}"


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

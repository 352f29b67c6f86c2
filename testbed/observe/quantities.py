"""What the keys of rows mean: their units stand in them (``p50_ns`` is a time, ``rate_bit_s`` a rate), and some are better
when they are less, others when they are more."""

from __future__ import annotations

from enum import Enum
from typing import Final

LABELS: Final = ("node", "rank", "clock_ns", "repeat")
"""Where, when and in which repetition a row was measured; the rest is what was measured, and of what."""

POINTS: Final = (
    "size_bytes", "work_ns", "offered_per_s", "clients", "destinations", "senders", "requests", "pattern", "measure",
    "check", "rounds", "networks", "words",
)  # fmt: skip
"""What a row was measured at, in the shipped workloads; texts are points, whatever their key."""

_MORE: Final = frozenset({"fairness", "availability"})
_LESS: Final = frozenset({"asked_again", "lost", "largest_share", "failed"})
_UNITS: Final = ("_ns", "_bytes", "_bit_s", "_per_s")
_MOST: Final = 1e18  # what is more is no quantity that anybody has measured
_STEPS: Final = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


class Sense(Enum):
    """What of a measure is better. NONE: neither is."""

    LESS = "lower is better"
    MORE = "higher is better"
    NONE = "neither is better"


def is_point(key: str, value: object) -> bool:
    """Whether a row's value says what was measured, rather than what came of it."""
    return isinstance(value, str | bool) or (key in POINTS and isinstance(value, int | float))


def sense_of(key: str) -> Sense:
    """Of a measure."""
    if key.endswith(("_bit_s", "_per_s")) or key in _MORE:
        return Sense.MORE
    if key == "worked_ns":  # of the work that was asked for
        return Sense.NONE
    return Sense.LESS if key.endswith("_ns") or key in _LESS else Sense.NONE


def heading(key: str) -> str:
    """A column's name: ``p50`` for ``p50_ns``."""
    for unit in _UNITS:
        if key.endswith(unit):
            return key.removesuffix(unit).replace("_", " ") + ("/s" if unit == "_per_s" else "")
    return key.replace("_", " ")


def cell(key: str, value: object) -> str:
    """A value with its unit, in a few figures; empty for none."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > _MOST:
        return str(value)
    if key.endswith("_ns"):
        return duration(value)
    if key.endswith("_bit_s"):
        return f"{_scaled(value)}bit/s"
    if key.endswith("_per_s"):
        return _scaled(value).strip()
    if key.endswith("_bytes"):
        return f"{value:,} B"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def duration(nanoseconds: float) -> str:
    """In the unit in which it is at least 1, in four figures."""
    for least, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if abs(nanoseconds) >= least:
            return f"{nanoseconds / least:.4g} {unit}"
    return f"{nanoseconds:.4g} ns"


def _scaled(value: float) -> str:
    for least, prefix in _STEPS:
        if value >= least:
            return f"{value / least:.4g} {prefix}"
    return f"{value:.4g} "

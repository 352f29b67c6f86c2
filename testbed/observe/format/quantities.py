"""Meaning of the keys of rows. A key's suffix is the unit of its values: ``p50_ns`` is a time, ``rate_bit_s`` a rate. For
most measures, either lower or higher values are better."""

from __future__ import annotations

from enum import Enum
from typing import Final

LABELS: Final = ("node", "rank", "clock_ns", "repeat")
"""Keys that identify the origin of a row: node, rank, time and repetition."""

POINTS: Final = (
    "size_bytes", "work_ns", "offered_per_s", "clients", "destinations", "senders", "requests", "pattern", "measure",
    "check", "rounds", "networks", "words",
)  # fmt: skip
"""Keys of the conditions of a measurement in the shipped workloads; text values are always conditions."""

_MORE: Final = frozenset({"fairness", "availability"})
_LESS: Final = frozenset({"asked_again", "lost", "largest_share", "failed"})
_UNITS: Final = ("_ns", "_bytes", "_bit_s", "_per_s")
_MAX: Final = 1e18  # larger values are not measurements
_STEPS: Final = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


class Sense(Enum):
    """Direction in which a measure is better; NONE: there is no such direction."""

    LESS = "lower is better"
    MORE = "higher is better"
    NONE = "neither is better"


def is_point(key: str, value: object) -> bool:
    """Whether a row's value is a condition of the measurement, not a result."""
    return isinstance(value, str | bool) or (key in POINTS and isinstance(value, int | float))


def sense_of(key: str) -> Sense:
    """Return the direction in which the measure is better."""
    if key.endswith(("_bit_s", "_per_s")) or key in _MORE:
        return Sense.MORE
    if key == "worked_ns":  # an input: the requested work
        return Sense.NONE
    return Sense.LESS if key.endswith("_ns") or key in _LESS else Sense.NONE


def heading(key: str) -> str:
    """Return the column heading of a key: ``p50`` for ``p50_ns``."""
    for unit in _UNITS:
        if key.endswith(unit):
            return key.removesuffix(unit).replace("_", " ") + ("/s" if unit == "_per_s" else "")
    return key.replace("_", " ")


def format_value(key: str, value: object) -> str:
    """Format a value with its unit; empty for None. A time, rate or fraction has at most four significant digits."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > _MAX:
        return str(value)
    if key.endswith("_ns"):
        return format_time(value)
    if key.endswith("_bit_s"):
        return f"{_scaled(value)}bit/s"
    if key.endswith("_per_s"):
        return _scaled(value).strip()
    if key.endswith("_bytes"):
        return f"{value:,} B"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def format_time(nanoseconds: float) -> str:
    """Format a time in the largest unit in which it is at least 1, in four significant digits."""
    for scale, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if abs(nanoseconds) >= scale:
            return f"{nanoseconds / scale:.4g} {unit}"
    return f"{nanoseconds:.4g} ns"


def _scaled(value: float) -> str:
    for scale, prefix in _STEPS:
        if value >= scale:
            return f"{value / scale:.4g} {prefix}"
    return f"{value:.4g} "

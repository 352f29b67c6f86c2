"""What the numbers of a run may be, whatever mode it has: refused before anything begins."""

from __future__ import annotations

from typing import Final

from testbed.errors import Problem
from testbed.wire.hashing import MASK

LONGEST: Final = 1_000_000
"""Seconds, eleven days: their milliseconds are still a number of 31 bits, which is what the kernel waits for."""


def problem_of_seed(seed: int | None, repeat: int = 1) -> list[Problem]:
    """At most one. seed: None where the description has it. repeat: repetitions have seeds one apart."""
    if seed is None or 0 <= seed <= MASK - (repeat - 1):
        return []
    more = ", that of the last repetition, too" if repeat > 1 else ""
    return [Problem("seed", str(seed), f"0 to {MASK}{more}")]


def problem_of_time(name: str, seconds: float | None) -> list[Problem]:
    """At most one. seconds: None where it is not said."""
    if seconds is None or 0 < seconds <= LONGEST:
        return []
    return [Problem(name, str(seconds), f"seconds, more than 0, {LONGEST} at most")]

"""Limits of a run's numbers, in every mode: checked before anything begins."""

from __future__ import annotations

from typing import Final

from testbed.errors import Problem
from testbed.fates.fate_hash import MASK

LONGEST: Final = 1_000_000
"""Seconds, eleven days: in milliseconds it still fits the 31 bits of the kernel's timeouts."""


def problem_of_seed(seed: int | None, repeat: int = 1) -> list[Problem]:
    """Return at most one problem. seed: None for the description's. repeat: the seeds of repetitions are
    consecutive."""
    if seed is None or 0 <= seed <= MASK - (repeat - 1):
        return []
    more = ", that of the last repetition, too" if repeat > 1 else ""
    return [Problem("seed", str(seed), f"0 to {MASK}{more}")]


def problem_of_time(name: str, seconds: float | None) -> list[Problem]:
    """Return at most one problem. seconds: None where no time was given."""
    if seconds is None or 0 < seconds <= LONGEST:
        return []
    return [Problem(name, str(seconds), f"seconds, more than 0, {LONGEST} at most")]

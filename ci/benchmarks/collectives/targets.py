"""Targets of collective calls, computed from the rows."""

from collections.abc import Sequence
from math import log2

from benchmarks.collectives.measurements import BARRIER, PROTOCOLS
from benchmarks.harness.rows import Row
from benchmarks.harness.targets import Target

MAX_LOG2_DEVIATION = 0.1
"""Limit of the relative deviation of a barrier's time on n ranks from log2(n) times that on 2 ranks."""


def targets(rows: Sequence[Row]) -> list[Target]:
    return [
        Target(
            f"barrier over {contender}: deviation of its time from log2(ranks) rounds", MAX_LOG2_DEVIATION, "×",
            log2_deviation({row.hosts: row.median for row in rows if (row.subject, row.contender) == (BARRIER, contender)}),
        )
        for contender in PROTOCOLS
    ]  # fmt: skip


def log2_deviation(times: dict[int, float]) -> float | None:
    """Return the largest relative deviation of a time on n ranks from log2(n) times that on 2; None if either is missing."""
    if 2 not in times or len(times) < 2:
        return None
    return max(abs(time / (log2(ranks) * times[2]) - 1) for ranks, time in times.items())

"""Targets of collective calls, computed from the rows."""

from collections.abc import Sequence
from math import log2

from benchmarks.collectives.measurements import BARRIER, PROTOCOLS
from benchmarks.harness.rows import Row
from benchmarks.harness.targets import Target

OFF_LOGARITHM = 0.1
"""Relative distance of a barrier's time on n ranks from log2(n) times that on 2."""


def targets(rows: Sequence[Row]) -> list[Target]:
    return [
        Target(
            f"barrier over {contender}: distance of its time from log2(ranks) rounds", OFF_LOGARITHM, "×",
            off_logarithm({row.hosts: row.median for row in rows if (row.subject, row.contender) == (BARRIER, contender)}),
        )
        for contender in PROTOCOLS
    ]  # fmt: skip


def off_logarithm(times: dict[int, float]) -> float | None:
    """Return the largest relative distance of a time on n ranks from log2(n) times that on 2; None without both."""
    if 2 not in times or len(times) < 2:
        return None
    return max(abs(time / (log2(ranks) * times[2]) - 1) for ranks, time in times.items())

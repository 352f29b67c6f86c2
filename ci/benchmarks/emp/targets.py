"""Targets of inline NICs, computed from the rows. A ratio is the median over the repetitions."""

import random
import statistics
from collections.abc import Sequence

from benchmarks.emp import measurements as m
from benchmarks.harness.rows import Row
from benchmarks.harness.targets import Target

OVER_RAW, OVER_TCP, OVER_TCP_BLOCKING = 5.0, 4.0, 1.25
OF_RAW = 0.35
BEGIN, MEMORY = 1.0, 3e6  # s, B
RESAMPLES, LEVEL = 2_000, 0.95


def targets(rows: Sequence[Row]) -> list[Target]:
    def samples(subject: str, contender: str, measure: str) -> tuple[float, ...]:
        expected = (subject, contender, measure)
        return next((row.samples for row in rows if (row.subject, row.contender, row.measure) == expected), ())

    def ratios(subject: str, other: str, measure: str, contender: str = m.EMP) -> list[float]:
        pairs = zip(samples(subject, contender, measure), samples(subject, other, measure), strict=True)
        return [ours / theirs for ours, theirs in pairs]

    def median(values: Sequence[float]) -> float | None:
        return statistics.median(values) if values else None

    return [
        Target("4 bytes, spinning: over packet sockets", OVER_RAW, "×", median(ratios(m.SPINNING, m.RAW, m.TRIP))),
        Target("4 bytes, spinning: over kernel TCP", OVER_TCP, "×", median(ratios(m.SPINNING, m.TCP, m.TRIP))),
        Target(
            "4 bytes, blocking: over kernel TCP, which sleeps at once, upper end of the interval",
            OVER_TCP_BLOCKING,
            "×",
            upper_end(ratios(m.BLOCKING, m.TCP, m.TRIP)),
        ),
        Target(
            "4 bytes, blocking, both sleep at once: over kernel TCP, upper end of the interval",
            OVER_TCP_BLOCKING,
            "×",
            upper_end(ratios(m.BLOCKING, m.TCP, m.TRIP, m.AT_ONCE)),
        ),
        Target(
            "4 bytes, blocking, both poll first: over kernel TCP",
            OVER_TCP,
            "×",
            median(ratios(m.BLOCKING, m.TCP_POLLING_FIRST, m.TRIP)),
        ),
        Target(
            "4 bytes, blocking: CPU time, relative to sleeping at once",
            1.0,
            "×",
            median(ratios(m.BLOCKING, m.AT_ONCE, m.CPU)),
        ),
        Target("stream: of packet sockets", OF_RAW, "×", median(ratios("stream", m.RAW, m.STREAM)), is_minimum=True),
        Target("numbered messages: lost or out of order", 0, "", median(samples("count", m.EMP, m.WRONG))),
        Target("node processes: all listen", BEGIN, "s", median(samples("nodes", m.EMP, m.BEGIN))),
        Target("node processes: memory of one", MEMORY, "B", median(samples("nodes", m.EMP, m.PRIVATE)), strict=True),
    ]


def upper_end(values: Sequence[float]) -> float | None:
    """Return the upper end of the bootstrap interval of the median, None without samples."""
    if not values:
        return None
    rng = random.Random(1)
    medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return medians[int(RESAMPLES * (1 + LEVEL) / 2)]

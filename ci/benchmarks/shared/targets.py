"""Targets of shared NICs, computed from the rows."""

import statistics
from collections.abc import Sequence

from benchmarks.harness.rows import Row
from benchmarks.harness.targets import Target
from benchmarks.shared import measurements as m

ALONE = {m.SPINNING: 6e-6, m.BLOCKING: 200e-6, m.ONE: 12e-6}  # s
FAIR = 0.95


def targets(rows: Sequence[Row]) -> list[Target]:
    def median(subject: str, contender: str, measure: str) -> float | None:
        expected = (subject, contender, measure)
        samples = [row.samples for row in rows if (row.subject, row.contender, row.measure) == expected]
        return statistics.median(samples[0]) if samples else None

    trip = m.TRIP_SHARE.format("p50")
    return [
        *[
            Target(f"host, agent, host: {name}", limit, "s", median("alone", name, trip))
            for name, limit in ALONE.items()
        ],
        Target("fairness: Jain's index", FAIR, "", median("fair", m.SHARED, m.JAIN), is_minimum=True),
        Target("torture: lost, duplicated or out of order", 0, "", median("torture", m.SHARED, m.WRONG)),
    ]

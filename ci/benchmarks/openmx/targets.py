"""Targets of Open-MX, computed from the rows. A ratio is the median over the repetitions."""

import statistics
from collections.abc import Sequence

from benchmarks.harness.rows import Row
from benchmarks.harness.targets import Target
from benchmarks.openmx import measurements as m

OVER_EMP = 1.3
OF_STREAM = 1.0


def targets(rows: Sequence[Row]) -> list[Target]:
    def ratio(subject: str, measure: str) -> float | None:
        samples = {row.contender: row.samples for row in rows if (row.subject, row.measure) == (subject, measure)}
        if m.MX not in samples or m.EMP not in samples:
            return None
        return statistics.median([mx / emp for mx, emp in zip(samples[m.MX], samples[m.EMP], strict=True)])

    wrong = next((row.median for row in rows if (row.subject, row.measure) == (m.NUMBERED, m.WRONG)), None)
    return [
        Target("4 bytes: over EMP", OVER_EMP, "×", ratio(m.TRIPS, m.TRIP)),
        Target("4 MiB: of EMP's rate", OF_STREAM, "×", ratio(m.STREAM, m.ONE_WAY), is_minimum=True),
        Target("numbered messages lost, twice or out of order", 0, "", wrong),
    ]

"""Targets of AM-II on inline NICs, computed from the rows. A ratio is the median over the repetitions."""

import statistics
from collections.abc import Sequence

from benchmarks.am2 import measurements as m
from benchmarks.am2 import requests as r
from benchmarks.harness.rows import Row
from benchmarks.harness.targets import Target

MAX_RATIO_TO_EMP = 1.5


def targets(rows: Sequence[Row]) -> list[Target]:
    def samples(contender: str, measure: str) -> tuple[float, ...]:
        expected = (m.TRIPS, contender, measure)
        return next((row.samples for row in rows if (row.subject, row.contender, row.measure) == expected), ())

    def errors() -> float | None:
        return next((row.median for row in rows if (row.subject, row.measure) == (r.REQUESTS, r.WRONG)), None)

    def ratio_to_emp(measure: str) -> float | None:
        pairs = list(zip(samples(m.AM2, measure), samples(m.EMP, measure), strict=True))
        return statistics.median(am2 / emp for am2, emp in pairs) if pairs else None

    return [
        Target("round trip of 4 words, spinning: times EMP's of 4 bytes", MAX_RATIO_TO_EMP, "×", ratio_to_emp(m.TRIP)),
        Target(
            "minimum round trip of 4 words: times EMP's",
            MAX_RATIO_TO_EMP,
            "×",
            ratio_to_emp(m.TRIP_SHARE.format("min")),
        ),
        Target("requests on lossy Myrinet that were not handled once or returned", 0, "", errors()),
    ]

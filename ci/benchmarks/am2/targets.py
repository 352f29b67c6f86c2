"""Targets of AM-II on inline NICs, computed from the rows. Ratios are medians of those of single turns."""

import statistics
from collections.abc import Sequence

from benchmarks.am2 import measurements as m
from benchmarks.am2 import requests as r
from benchmarks.harness.rows import Row
from benchmarks.harness.targets import Target

OVER_EMP = 1.5


def targets(rows: Sequence[Row]) -> list[Target]:
    def samples(contender: str, measure: str) -> tuple[float, ...]:
        wanted = (m.TRIPS, contender, measure)
        return next((row.samples for row in rows if (row.subject, row.contender, row.measure) == wanted), ())

    def wrong() -> float | None:
        return next((row.median for row in rows if (row.subject, row.measure) == (r.REQUESTS, r.WRONG)), None)

    def over_emp(measure: str) -> float | None:
        pairs = list(zip(samples(m.AM2, measure), samples(m.EMP, measure), strict=True))
        return statistics.median(ours / theirs for ours, theirs in pairs) if pairs else None

    return [
        Target("4 words and their answer, spinning: over EMP's 4 bytes", OVER_EMP, "×", over_emp(m.TRIP)),
        Target("the same, the shortest of each turn", OVER_EMP, "×", over_emp(m.TRIP_SHARE.format("min"))),
        Target("requests on lossy Myrinet that were not handled once or returned", 0, "", wrong()),
    ]

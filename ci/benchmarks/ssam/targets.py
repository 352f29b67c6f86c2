"""Targets of SSAM, computed from the rows. A ratio is the median over the repetitions."""

import statistics
from collections.abc import Sequence

from benchmarks.harness.rows import Row
from benchmarks.harness.targets import Target
from benchmarks.ssam import measurements as m
from benchmarks.ssam import requests as r

OVER_EMP = 1.2
OF_FRAMES = 1.0
OF_SIMULATED = 0.8


def targets(rows: Sequence[Row]) -> list[Target]:
    def ratio(subject: str, measure: str, contender: str, reference: str) -> float | None:
        samples = {row.contender: row.samples for row in rows if (row.subject, row.measure) == (subject, measure)}
        if contender not in samples or reference not in samples:
            return None
        pairs = zip(samples[contender], samples[reference], strict=True)
        return statistics.median([value / reference_value for value, reference_value in pairs])

    wrong = next((row.median for row in rows if (row.subject, row.measure) == (r.REQUESTS, r.WRONG)), None)
    relayed = [ratio(m.RELAY, m.RATE, cells, m.FRAMES) for cells in (m.CELLS, m.CELLS_OF_8)]
    return [
        Target("40 bytes on a direct fibre: over EMP's 4", OVER_EMP, "×", ratio(m.TRIPS, m.TRIP, m.SSAM, m.EMP)),
        Target("relay: cells/s of its frames/s, one in a frame", OF_FRAMES, "×", relayed[0], is_minimum=True),
        Target("relay: cells/s of its frames/s, 8 in a frame", OF_FRAMES, "×", relayed[1], is_minimum=True),
        Target(
            "simulation: cells/s of EMP's frames/s", OF_SIMULATED, "×",
            ratio(m.SIMULATION, m.SIMULATED, m.SSAM, m.EMP), is_minimum=True,
        ),
        Target("requests that were not handled once and answered once", 0, "", wrong),
    ]  # fmt: skip

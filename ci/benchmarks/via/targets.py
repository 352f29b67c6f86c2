"""Targets of VIA, computed from the rows. A ratio is the median over the repetitions."""

import statistics
from collections.abc import Sequence

from benchmarks.harness.rows import Row
from benchmarks.harness.targets import Target
from benchmarks.via import measurements as m

OVER_EMP = 1.5
OF_STREAM = 0.8
OF_SIMULATED = 0.5


def targets(rows: Sequence[Row]) -> list[Target]:
    def ratio(subject: str, measure: str, contender: str, reference: str) -> float | None:
        samples = {row.contender: row.samples for row in rows if (row.subject, row.measure) == (subject, measure)}
        if contender not in samples or reference not in samples:
            return None
        pairs = zip(samples[contender], samples[reference], strict=True)
        return statistics.median([value / reference_value for value, reference_value in pairs])

    wrong = next((row.median for row in rows if (row.subject, row.measure) == (m.NUMBERED, m.WRONG)), None)
    return [
        Target("MPI, 4 bytes, VIA over EMP", OVER_EMP, "×", ratio(m.TRIPS, m.TRIP, m.MPI_VIA, m.MPI_EMP)),
        Target("MPI on VIA, 4 bytes, over EMP's own calls", OVER_EMP, "×", ratio(m.TRIPS, m.TRIP, m.MPI_VIA, m.EMP)),
        Target(
            "stream of the reliable provider: of EMP's", OF_STREAM, "×", ratio(m.STREAM, m.ONE_WAY, m.VIA, m.EMP),
            is_minimum=True,
        ),
        Target(
            "simulation: VIA's frames/s of EMP's", OF_SIMULATED, "×",
            ratio(m.SIMULATION, m.SIMULATED, m.VIA, m.EMP), is_minimum=True,
        ),
        Target("numbered messages lost, twice or out of order", 0, "", wrong),
    ]  # fmt: skip

"""What the engine must reach beside SimPy, and what the rows say about it."""

import statistics
from collections.abc import Sequence

from benchmarks.rows import Row
from benchmarks.targets import Target

ENGINE, SIMPY = "engine", "SimPy"
TIME_OUTS, CALLBACKS = "time-outs of tasks", "callbacks"
PING_PONG, CHAIN = "round trips through two queues", "jobs in a chain of busy servers"

LEAST = {TIME_OUTS: 0.8, CALLBACKS: 1.3, PING_PONG: 2.0, CHAIN: 2.0}
"""Times SimPy's rate; callbacks: the rate of its processes' time-outs."""


def ratios(rows: Sequence[Row], measure: str) -> list[float]:
    """Ours over SimPy's, turn by turn: what slows the machine for a while slows both."""
    found = {row.contender: row.samples for row in rows if row.measure == measure}
    if not found:
        return []
    return [one / other for one, other in zip(found[ENGINE], found[SIMPY], strict=True)]


def targets(rows: Sequence[Row]) -> list[Target]:
    found = {measure: ratios(rows, measure) for measure in LEAST}
    return [
        Target(
            f"{measure}: times SimPy's rate",
            least,
            "×",
            statistics.median(found[measure]) if found[measure] else None,
            least=True,
        )
        for measure, least in LEAST.items()
    ]

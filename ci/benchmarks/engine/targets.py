"""Targets of the engine against SimPy and of the simulator, computed from the rows."""

import statistics
from collections.abc import Sequence

from benchmarks.engine import firmware
from benchmarks.harness.rows import Row
from benchmarks.harness.targets import Target

ENGINE, SIMPY = "engine", "SimPy"
TIME_OUTS, CALLBACKS = "time-outs of tasks", "callbacks"
PING_PONG, CHAIN = "round trips through two queues", "jobs in a chain of busy servers"

MIN = {TIME_OUTS: 0.8, CALLBACKS: 1.3, PING_PONG: 2.0, CHAIN: 2.0}
"""Minimum rates, as multiples of SimPy's. That of callbacks is relative to the time-outs of SimPy's processes."""


def ratios(rows: Sequence[Row], measure: str) -> list[float]:
    """Return the engine's rate over SimPy's, by repetition: a temporary slowdown of the machine affects both."""
    samples = {row.contender: row.samples for row in rows if row.measure == measure}
    if not samples:
        return []
    return [engine / simpy for engine, simpy in zip(samples[ENGINE], samples[SIMPY], strict=True)]


MIN_FRAMES = ((256, 60_000), (1_024, 30_000))
"""Minimum frames per second of the complete firmware, by maximum number of nodes: as measured, and scaled to a machine on
which SimPy reaches `firmware.REFERENCE`."""
MAX_SECONDS, MAX_MEMORY = 20, 400
"""Seconds, as measured and scaled, and MB for the largest simulation."""


def targets(rows: Sequence[Row]) -> list[Target]:
    return [*_simpy_targets(rows), *_simulation_targets(rows)]


def _simulation_targets(rows: Sequence[Row]) -> list[Target]:
    results = []
    for row in rows:
        if row.subject != "firmware":
            continue
        setting = firmware.Setting(*[row.settings[key] for key in firmware.Setting._fields])
        scaled = f", {firmware.SCALED}" if row.measure in {firmware.SCALED, firmware.TOTAL_SCALED} else ""
        if row.unit == "1/s":
            limit = next(limit for nodes, limit in MIN_FRAMES if row.hosts <= nodes)
            results.append(
                Target(f"frames/s, {row.hosts} nodes: {setting}{scaled}", limit, "/s", row.median, is_minimum=True)
            )
        elif row.unit == "s":
            results.append(Target(f"all of it: {setting}{scaled}", MAX_SECONDS, "s", row.median))
        elif row.measure == firmware.MEMORY:
            results.append(Target("memory so far", MAX_MEMORY, "MB", row.median))
    return results


def _simpy_targets(rows: Sequence[Row]) -> list[Target]:
    results = {measure: ratios(rows, measure) for measure in MIN}
    return [
        Target(
            f"{measure}: times SimPy's rate",
            minimum,
            "×",
            statistics.median(results[measure]) if results[measure] else None,
            is_minimum=True,
        )
        for measure, minimum in MIN.items()
    ]

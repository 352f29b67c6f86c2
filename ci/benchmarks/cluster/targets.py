"""Targets of bringing clusters up and down, computed from the rows."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.cluster import commands, footprint, large_clusters
from benchmarks.cluster.stars import BRING_UP, SETTLED
from benchmarks.harness.rows import Row
from benchmarks.harness.targets import Target

FLOOR, PRODUCT = "floor", "testbed"
RATIO_LIMIT, RATIO_FROM = 2.0, 100  # times the floor, from this many hosts on
FLATNESS_LIMIT, FLATNESS_SIZES = 0.20, (50, 500)  # (largest ratio / smallest) - 1, for stars from 50 to 500 hosts
VALIDATE_LIMIT = 3.0  # s
LARGE_RATIO, LARGE_LIMIT = 1.25, 0.5  # times the floor, and s above that
RUN_LIMIT = 3.0  # times ip netns exec


@dataclass(frozen=True, slots=True)
class Ratio:
    """A contender relative to the floor: the ratio of the medians, and the minimum and maximum over the rounds."""

    contender: str
    measure: str
    hosts: int
    value: float
    low: float
    high: float


def ratios(rows: Iterable[Row]) -> list[Ratio]:
    """Return the ratio of every contender's star row to the floor's row of the same round."""
    stars = {(row.contender, row.measure, row.hosts): row for row in rows if row.subject == "star"}
    results = []
    for (contender, measure, hosts), row in stars.items():
        floor = stars.get((FLOOR, measure, hosts))
        if contender == FLOOR or floor is None:
            continue
        turns = [time / floor_time for time, floor_time in zip(row.samples, floor.samples, strict=True)]
        results.append(Ratio(contender, measure, hosts, row.median / floor.median, min(turns), max(turns)))
    return results


def targets(rows: Sequence[Row]) -> list[Target]:
    against_floor = [ratio for ratio in ratios(rows) if ratio.contender == PRODUCT]
    results = []
    for measure in (BRING_UP, SETTLED):
        values = {ratio.hosts: ratio.value for ratio in against_floor if ratio.measure == measure}
        for hosts, value in values.items():
            if hosts >= RATIO_FROM:
                results.append(Target(f"{measure} of {hosts} hosts over the floor's", RATIO_LIMIT, "×", value))
        first, last = FLATNESS_SIZES
        flat = [value for hosts, value in values.items() if first <= hosts <= last]
        spread = max(flat) / min(flat) - 1 if {first, last} <= values.keys() else None
        results.append(Target(f"{measure}: the ratio flat from {first} to {last}", FLATNESS_LIMIT, "1", spread))

    def median(contender: str, measure: str) -> float | None:
        expected = (contender, measure)
        return next((row.median for row in rows if (row.contender, row.measure) == expected), None)

    def above_floor() -> float | None:
        """Return the seconds by which the command exceeds its allowed multiple of the floor, median over the rounds."""
        rounds = {row.contender: row.samples for row in rows if row.subject == "large" and row.measure != commands.CPU}
        turns = zip(rounds.get(large_clusters.UP, ()), rounds.get(large_clusters.REFERENCE, ()), strict=False)
        excesses = [time - LARGE_RATIO * floor_time for time, floor_time in turns]
        return statistics.median(excesses) if excesses else None

    run, reference = median("node.run", "true"), median("ip netns exec", "true")
    ratio = run / reference if run is not None and reference is not None else None
    return [
        *results,
        Target("testbed up star-100 (aim)", 0.45, "s", median("testbed up star-100", commands.WALL)),
        Target("testbed status (aim)", 0.12, "s", median("testbed status", commands.WALL)),
        Target("testbed status --json, CPU", 0.15, "s", median("testbed status --json", commands.CPU), True),
        Target("testbed status, CPU", 0.15, "s", median("testbed status", commands.CPU), True),
        Target("testbed --help", 0.15, "s", median("testbed --help", commands.WALL), True),
        Target("testbed exec n1 -- true", 0.12, "s", median("testbed exec n1 -- true", commands.WALL), True),
        Target('node.run(["true"]) over ip netns exec', RUN_LIMIT, "×", ratio),
        *(
            Target(f"{label}, {large_clusters.NODES:,} nodes", VALIDATE_LIMIT, "s", median(label, commands.WALL))
            for label in large_clusters.DESCRIPTIONS
        ),
        Target(f"{large_clusters.UP}, beyond {LARGE_RATIO} × the floor's", LARGE_LIMIT, "s", above_floor()),
        Target("processes in idle nodes", 0, "1", median(PRODUCT, footprint.IN_NODES)),
        Target("processes left running by up", 0, "1", median(PRODUCT, footprint.PROCESSES)),
    ]

"""Time until an impairment is applied: from the call of the API to its return."""

from collections.abc import Callable, Iterator, Sequence

from benchmarks.harness.rows import Row
from benchmarks.links.clusters import Clusters

FIRST, CHANGE, HEAL, ALL, HEAL_ALL = (
    "inject into a link", "change it", "heal it", "inject into all links", "heal all links",
)  # fmt: skip
TESTBED = "testbed"


def measure(clusters: Clusters, sizes: Sequence[int], repeat: int, progress: Callable[[str], None]) -> Iterator[Row]:
    """Measure injections on stars of the given sizes."""
    for nodes in sizes:
        samples_by_key: dict[str, list[float]] = {}
        with clusters.up("star", nodes) as cluster:
            for turn in range(repeat + 1):
                progress(f"inject, star of {nodes}: {f'{turn} of {repeat}' if turn else 'warm-up'}")
                durations = {
                    FIRST: cluster.inject("n1", delay=2_000_000, loss=0.05),
                    CHANGE: cluster.inject("n1", delay=3_000_000),
                    HEAL: cluster.heal(),
                    ALL: cluster.inject("all", delay=2_000_000),
                    HEAL_ALL: cluster.heal(),
                }
                for measured, seconds in durations.items() if turn else ():
                    samples_by_key.setdefault(measured, []).append(seconds)
        settings = {"cluster": "star", "process": "warm", "api": "testbed.cluster.faults.fault_injection"}
        for measured, samples in samples_by_key.items():
            yield Row("inject", TESTBED, measured, nodes, "s", tuple(samples), settings)

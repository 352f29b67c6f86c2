"""Cost of the kernel's own datapaths: the sender's processor time per frame, at full speed.

All processing of a frame runs on its sender's processor, so this time distinguishes the datapaths.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

from benchmarks.harness.processors import SENDER
from benchmarks.harness.rows import Row
from benchmarks.harness.traffic import FRAME, Traffic
from benchmarks.links.clusters import Clusters

RATE = 200_000  # frames per requested second
BATCH = 32
PER_FRAME = "sender's CPU per frame"
DIRECT, JOINED, LOSS = "one pair", "two pairs, redirected", "two pairs, redirected, loss by tc"
MIN_LOSS = 1e-9  # the kernel decides on every frame, and loses practically none


def measure(
    clusters: Clusters, traffic: Traffic, repeat: int, seconds: float, progress: Callable[[str], None]
) -> Iterator[Row]:
    """Measure in turn a pair of NICs, the default link between two nodes, and a link with a loss classifier."""
    costs: dict[str, list[float]] = {}
    count = int(RATE * seconds)
    with ExitStack() as stack:
        cluster_of = {
            DIRECT: stack.enter_context(clusters.up(datapath="direct")),
            JOINED: stack.enter_context(clusters.up()),
            LOSS: stack.enter_context(clusters.up(datapath="tc", loss=MIN_LOSS)),
        }
        datapaths = {name: sorted(set(cluster.datapaths.values())) for name, cluster in cluster_of.items()}
        for turn in range(repeat * 3 + 1):
            progress(f"the kernel's datapaths: {f'{turn} of {repeat * 3}' if turn else 'warm-up'}")
            for name, cluster in cluster_of.items():
                pair = (cluster.nodes["n1"], cluster.nodes["n2"])
                result = traffic.send([pair], 0, count, batch=BATCH)
                if turn:
                    costs.setdefault(name, []).append(result["cpu"] / result["sent"])
    for name, samples in costs.items():
        settings = {
            "bytes": FRAME, "frames": count, "batch": BATCH, "loss": MIN_LOSS, "datapaths": datapaths[name],
            "processors": {"sender": SENDER}, "interleaved": list(costs),
        }  # fmt: skip
        yield Row("kernel", name, PER_FRAME, 2, "s", tuple(samples), settings)

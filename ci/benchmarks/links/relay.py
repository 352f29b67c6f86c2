"""Throughput of the relay: frames per second of processor time, and the additional cost of a frame with more links."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.harness.processors import RELAY, SENDER
from benchmarks.harness.rows import Row
from benchmarks.harness.traffic import FRAME, NodeAddress, Traffic
from benchmarks.links.clusters import Clusters, Running

IMPAIRMENTS: dict[str, Any] = {"rate": "10gbit", "delay": "1ms", "loss": "1%"}
RULE = "drop tcp.dport == 5001 and nth(3)"
BATCH = 32  # frames of a system call of the sender

SATURATED = "frames/s of a core, saturated"
CLEAN = "highest rate without unasked-for loss"
PER_FRAME = "CPU per frame at the highest clean rate"
START, STEP, RESOLUTION = 40_000, 1.25, 1.03  # of the search for the highest clean rate: frames/s, two factors
MIN = 1_000  # frames/s at which the search ends
ATTEMPTS = 2  # at every rate of the search, so that one interruption of the machine does not end it

FEW, MANY = 2, 200
OVERLOAD = 400_000  # frames/s, more than any relay forwards
LOADS = (20_000, 60_000, OVERLOAD)  # frames/s offered to the relay, over all links
LINKS = "CPU per frame, {load:,} frames/s offered"


@dataclass(frozen=True, slots=True)
class Trial:
    """Frames sent through the relay for a while. offered: frames that entered links, once for each link on their way. lost:
    frames lost for another reason than the configured impairment."""

    sent: int
    rate: float  # frames/s that the sender reached
    seconds: float
    offered: int
    lost: int
    cpu: float  # seconds of the relay, without those in which it waited for deadlines


def trial(
    traffic: Traffic,
    cluster: Running,
    pairs: list[tuple[NodeAddress, NodeAddress]],
    rate: float,
    batch: int,
    seconds: float,
) -> Trial:
    """Send at `rate` frames/s for `seconds`; return what the relay counted. A frame crosses each link between its sender and
    its receiver."""
    before = cluster.relay()
    used = before.wait()
    sent = traffic.send(pairs, rate, int(rate * seconds), batch=batch, realtime=True)
    used = before.wait() - used
    after = cluster.relay()
    offered = after.counter("offered") - before.counter("offered")
    lost = after.lost - before.lost + after.counter("queue") - before.counter("queue")
    used -= after.spun - before.spun
    return Trial(sent["sent"], sent["sent"] / sent["seconds"], sent["seconds"], offered, lost, used)


def capacity(
    clusters: Clusters, traffic: Traffic, repeat: int, seconds: float, progress: Callable[[str], None]
) -> Iterator[Row]:
    """Measure one link with rate, delay, 1 % loss and one rule."""
    saturated, clean, cost = [], [], []
    with clusters.up(**IMPAIRMENTS) as cluster:
        cluster.inject(rules=[RULE])
        cluster.relay().pin()
        pairs = [(cluster.nodes["n1"], cluster.nodes["n2"])]
        trial(traffic, cluster, pairs, START, BATCH, seconds)
        for turn in range(repeat):
            progress(f"relay, {turn + 1} of {repeat}: saturated")
            full = trial(traffic, cluster, pairs, OVERLOAD, BATCH, seconds)
            saturated.append(full.offered / full.cpu)
            progress(f"relay, {turn + 1} of {repeat}: the highest clean rate")
            best = highest_clean_rate(lambda rate: trial(traffic, cluster, pairs, rate, BATCH, seconds))
            clean.append(best.rate if best is not None else 0.0)
            if best is not None:
                cost.append(best.cpu / best.offered)
    settings = {
        **IMPAIRMENTS, "rule": RULE, "bytes": FRAME, "batch": BATCH, "seconds": seconds, "nodes": 2,
        "processors": {"sender": SENDER, "relay": RELAY},
        "cpu": "the relay process's, with the softirqs that deliver what it sends, without spinning",
    }  # fmt: skip
    yield Row("relay", "testbed", SATURATED, 2, "1/s", tuple(saturated), settings)
    yield Row("relay", "testbed", CLEAN, 2, "1/s", tuple(clean), settings)
    if cost:
        yield Row("relay", "testbed", PER_FRAME, 2, "s", tuple(cost), settings)


def highest_clean_rate(attempt: Callable[[float], Trial]) -> Trial | None:
    """Return the trial at the highest rate without loss: search upwards or downwards in steps, then between the last two."""
    best: Trial | None = None
    low, high, rate = 0.0, 0.0, float(START)
    while rate > MIN:
        result = next((trial for trial in (attempt(rate) for _ in range(ATTEMPTS)) if _is_sustained(trial, rate)), None)
        if result is not None:
            best, low = result, rate
        else:
            high = rate
        if low and high and high / low <= RESOLUTION:
            break
        rate = (low * high) ** 0.5 if low and high else rate * STEP if low else rate / STEP
    return best


def _is_sustained(trial: Trial, rate: float) -> bool:
    """Whether a rate was sustained: no frame was lost, frames were sent at that rate (a delayed sender offers fewer), and
    the relay used no more processor time than the time that passed."""
    complete = not trial.lost and trial.offered >= trial.sent
    return complete and trial.cpu <= trial.seconds and trial.rate > 0.95 * rate


def many_links(
    clusters: Clusters, traffic: Traffic, repeat: int, seconds: float, progress: Callable[[str], None]
) -> Iterator[Row]:
    """Measure stars of few and of many nodes in turn, every link impaired, at an equal total of frames/s; each frame
    crosses two links."""
    costs: dict[tuple[int, int], list[float]] = {}
    keys = {"delay": "1ms", "rate": "1gbit"}
    progress(f"stars of {FEW} and {MANY}")
    with clusters.up("star", FEW, **keys) as few, clusters.up("star", MANY, **keys) as many:
        for cluster in (few, many):
            cluster.relay().pin()
            nodes = list(cluster.nodes.values())
            # Let the switch learn all addresses: it floods frames to unknown ones.
            traffic.send(list(zip(nodes, nodes[1:] + nodes[:1], strict=True)), 1_000, len(nodes))
        for turn in range(repeat + 1):
            for load in LOADS:
                for links, cluster in ((FEW, few), (MANY, many)):
                    progress(f"{links} links, {load:,} frames/s, {f'{turn} of {repeat}' if turn else 'warm-up'}")
                    nodes = list(cluster.nodes.values())
                    pairs = list(zip(nodes[::2], nodes[1::2], strict=True))
                    result = trial(traffic, cluster, pairs, load / 2, 1, seconds)
                    if turn:
                        costs.setdefault((links, load), []).append(result.cpu / max(result.offered, 1))
    for (links, load), samples in costs.items():
        settings = {**keys, "bytes": FRAME, "batch": 1, "seconds": seconds, "links": links, "interleaved": [FEW, MANY]}
        yield Row("links", f"{links} links", LINKS.format(load=load), links, "s", tuple(samples), settings)

"""Measurements of shared NICs, inline NICs and TCP in turn, and their rows."""

from collections.abc import Callable, Iterator

from benchmarks.harness.contenders import ContenderError
from benchmarks.harness.direct_pair import direct_pair
from benchmarks.harness.host_programs import PING, PONG, Pair, programs
from benchmarks.harness.processors import RECEIVER, SENDER
from benchmarks.harness.rows import Row
from benchmarks.harness.traffic import NodeAddress, Traffic
from benchmarks.shared import agent_round_trips, many_hosts
from protocols.emp.codec import ETHERTYPE
from protocols.emp.host import plug
from protocols.emp.split_driver import split_driver
from testbed.cluster.running_cluster import RunningCluster
from testbed.controller.runs.agents import Placement, agents
from testbed.runtime.nodes.patience import Patience

SHARED, INLINE, TCP = "EMP, shared", "EMP, inline", "kernel TCP, C"
SPINNING, BLOCKING, ONE = "spinning", "blocking", "one processor"
TRIP, TRIP_SHARE, CPU = "round trip, p50", "round trip, {}", "CPU per round trip, one side"
ATTACH, IN_AGENT, IN_HOST, IDLE = "to attach", "memory of the agent", "memory of its own", "CPU while idle"
JAIN, MIN_SHARE, RATE = "Jain's index", "least of the mean", "messages of 64 bytes"
WRONG, KILLS, COUNTED = "lost, duplicated or out of order", "host processes killed", "numbered messages"

_SHARES = ("min", "p90", "p99", "p99.9")
_TIMEOUT = 600.0  # s

Progress = Callable[[str], None]


def agent_trips(repeat: int, count: int, progress: Progress) -> Iterator[Row]:
    """Measure host -> agent -> host without a wire."""
    cases = {
        SPINNING: (True, (SENDER, RECEIVER), count),
        BLOCKING: (False, (SENDER, RECEIVER), count // 4),
        ONE: (True, (SENDER, SENDER), count),
    }
    samples_by_key: dict[tuple[str, str], list[float]] = {}
    for turn in range(repeat + 1):
        for name, (spin, cpus, trips) in cases.items():
            progress(f"host, agent, host, {name}: {f'{turn} of {repeat}' if turn else 'warm-up'}")
            trip = agent_round_trips.trips(spin, cpus, trips)
            if turn:
                for share in ("p50", *_SHARES):
                    samples_by_key.setdefault((name, share), []).append(trip[share] / 1e9)
    for (name, share), samples in samples_by_key.items():
        settings = {"count": cases[name][2], "processors": cases[name][1], "firmware": "returns descriptors"}
        yield Row("alone", name, TRIP_SHARE.format(share), 1, "s", tuple(samples), settings)


def trips(traffic: Traffic, waiting: str, repeat: int, count: int, progress: Progress) -> Iterator[Row]:
    """Measure in turn round trips of 4 bytes of EMP on shared and inline NICs, and of 8 bytes of TCP."""
    spin = waiting == SPINNING
    samples_by_key: dict[tuple[str, str], list[float]] = {}
    with direct_pair().up() as cluster:
        nodes = list(cluster)
        ends = [NodeAddress(node.namespace, node.address, node.layout.nics[0].mac) for node in nodes]
        for turn in range(repeat + 1):
            progress(f"round trips, {waiting}: {f'{turn} of {repeat}' if turn else 'warm-up'}")
            turns = {SHARED: _emp(cluster, spin, count, True), INLINE: _emp(cluster, spin, count, False)}
            tcp = traffic.round_trips(ends[0], ends[1], count, spin=spin)
            turns[TCP] = {**tcp, "cpu": tcp["cpu"] * 1e9 / count}
            if not turn:
                continue
            for contender, trip in turns.items():
                samples_by_key.setdefault((contender, TRIP), []).append(trip["p50"] / 1e9)
                samples_by_key.setdefault((contender, CPU), []).append(trip["cpu"] / 1e9)
                for share in _SHARES:
                    if share in trip:
                        samples_by_key.setdefault((contender, TRIP_SHARE.format(share)), []).append(trip[share] / 1e9)
    settings = {
        "cluster": "two nodes, one pair of interfaces", "bytes": {SHARED: 4, INLINE: 4, TCP: 8}, "count": count,
        "waiting": waiting, "look": {SHARED: 0, INLINE: 0 if spin else Patience.SPIN, TCP: 0},
        "processors": [SENDER, RECEIVER], "interleaved": [SHARED, INLINE, TCP],
        "processes": {SHARED: 4, INLINE: 2, TCP: 2},
    }  # fmt: skip
    for (contender, measure), samples in samples_by_key.items():
        yield Row(waiting, contender, measure, 2, "s", tuple(samples), settings)


def _emp(cluster: RunningCluster, spin: bool, count: int, shared: bool) -> dict[str, float]:
    """Run the round trips once; return rank PING's results. cpu: of the host process and its agent."""
    node_programs = programs("emp trip", Pair({}, {}, spin), count)
    budget = agent_round_trips.SPIN if spin else 0
    cpus = {PING: SENDER, PONG: RECEIVER}
    placement = Placement(split_driver=split_driver(), share_all=True) if shared else None
    with agents(cluster, plug(), ETHERTYPE, node_programs, spin=budget, cpus=cpus, placement=placement) as run:
        outcome = run.wait(_TIMEOUT)
    if outcome.invalid:
        raise ContenderError(outcome.invalid)
    return {**outcome.results[PING], "cpu": outcome.reports[PING].cpu / count}


def costs(hosts: int, progress: Progress) -> Iterator[Row]:
    """Measure the cost of each attached, idle host process."""
    progress(f"{hosts} idle host processes")
    result = many_hosts.cost(hosts)
    for measure, value, unit in (
        (ATTACH, result.attach, "s"), (IN_AGENT, result.agent, "B"), (IN_HOST, result.own, "B"), (IDLE, result.idle, ""),
    ):  # fmt: skip
        yield Row("hosts", SHARED, measure, hosts, unit, (value,), {"heap": "not used"})


def fairness(hosts: int, seconds: float, progress: Progress) -> Iterator[Row]:
    """Measure how evenly host processes share one NIC when all send as fast as they can."""
    progress(f"{hosts} host processes send for {seconds:g} s")
    counts = many_hosts.messages_by_host(hosts, seconds)
    settings = {"seconds": seconds, "counts": counts}
    yield Row("fair", SHARED, JAIN, hosts, "", (many_hosts.jain(counts),), settings)
    yield Row("fair", SHARED, MIN_SHARE, hosts, "", (min(counts) * len(counts) / sum(counts),), settings)
    yield Row("fair", SHARED, RATE, hosts, "/s", (sum(counts) / seconds,), settings)


def torture(messages: int, loss: float, every: float, progress: Progress) -> Iterator[Row]:
    """Measure losses with three host processes on either node, one of which is killed repeatedly."""
    progress(f"{messages} numbered messages, while host processes are killed")
    result = many_hosts.torture(messages, 3, loss, every)
    settings = {"loss": loss, "seconds between kills": every, "host processes of a node": 3, **result}
    for measure, name, unit in ((COUNTED, "messages", ""), (WRONG, "wrong", ""), (KILLS, "kills", "")):
        yield Row("torture", SHARED, measure, 2, unit, (float(result[name]),), settings)

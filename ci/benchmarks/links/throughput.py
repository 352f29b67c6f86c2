"""TCP through a link: with and without delay, and an unimpaired link against equal objects made by ``ip``."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness.contenders import ContenderError
from benchmarks.harness.ip_batch import IpBatch
from benchmarks.harness.processors import ANYWHERE, RECEIVER, SENDER
from benchmarks.harness.rows import Row
from benchmarks.harness.traffic import NodeAddress, Traffic
from benchmarks.links.clusters import Clusters

DELAY = "1ms"
DELAYED, PLAIN = "one link, delayed 1 ms", "one link, no impairment"
TCP, RELAY_USE, SOURCE_USE, SINK_USE = "TCP", "CPU of the relay", "CPU of the sender", "CPU of the receiver"

ROUND_TRIPS = 5_000
PAIRS = 10  # comparisons per repetition
TESTBED, BY_IP, AGAIN = "testbed", "ip", "ip again"
ROUND_TRIP = "round trip of 8 bytes of TCP, p50"


def delayed(
    clusters: Clusters, traffic: Traffic, repeat: int, seconds: float, progress: Callable[[str], None]
) -> Iterator[Row]:
    """Measure TCP through a link with a delay both ways and through one without, in turn, with each process's share of
    a processor."""
    samples_by_key: dict[tuple[str, str, str], list[float]] = {}

    def record(cluster: str, measured: str, unit: str, value: float) -> None:
        samples_by_key.setdefault((cluster, measured, unit), []).append(value)

    with clusters.up(delay=DELAY) as slow, clusters.up() as plain:
        for turn in range(repeat + 1):
            for name, cluster in ((DELAYED, slow), (PLAIN, plain)):
                progress(f"TCP, {name}: {f'{turn} of {repeat}' if turn else 'warm-up'}")
                before = cluster.relay() if cluster is slow else None
                used = before.wait() if before is not None else 0.0
                ends = cluster.nodes["n1"], cluster.nodes["n2"]
                run = traffic.tcp(*ends, seconds, sender=ANYWHERE, receiver=ANYWHERE)
                if not turn:
                    continue
                duration = run["received"]["seconds"]
                record(name, TCP, "bit/s", run["bits"])
                record(name, SOURCE_USE, "1", run["sent"]["cpu"] / duration)
                record(name, SINK_USE, "1", run["received"]["cpu"] / duration)
                record(name, "segments sent again", "1", run["sent"]["retransmitted"])
                if before is not None:
                    record(name, RELAY_USE, "1", (before.wait() - used) / duration)
                    record(name, "frames lost in the relay", "1", cluster.relay().lost - before.lost)
    settings = {
        "delay": DELAY, "seconds": seconds, "by": "traffic.c", "write": 1 << 17, "congestion control": "cubic",
        "processors": "the kernel's choice",
        "cpu": "of a process, with the softirqs that run in it: those of both nodes' TCP mostly in the relay",
        "interleaved": [DELAYED, PLAIN],
    }  # fmt: skip
    for (name, measured, unit), samples in samples_by_key.items():
        yield Row("throughput", name, measured, 2, unit, tuple(samples), settings)


def against_ip(
    clusters: Clusters, traffic: Traffic, directory: Path, repeat: int, seconds: float, progress: Callable[[str], None]
) -> Iterator[Row]:
    """Measure an unimpaired star of two and equal objects made by ``ip -batch``, all offloads on, in turn.

    The star made by ``ip`` is measured twice: the difference between both is the resolution of the measurement.
    """
    streams: dict[str, list[float]] = {}
    trips: dict[str, list[float]] = {}
    with clusters.up("star", 2) as ours, _by_ip(directory, f"{ours.name}-ip") as theirs:
        ends = {
            TESTBED: (ours.nodes["n1"], ours.nodes["n2"]),
            BY_IP: theirs,
            AGAIN: theirs,
        }
        for turn in range(repeat * PAIRS + 1):
            progress(f"against ip: {f'{turn} of {repeat * PAIRS}' if turn else 'warm-up'}")
            order = list(ends.items())
            for name, (source, sink) in order if turn % 2 else reversed(order):
                stream = traffic.tcp(source, sink, seconds)["bits"]
                trip = traffic.round_trips(source, sink, ROUND_TRIPS, spin=True)["p50"]
                if turn:
                    streams.setdefault(name, []).append(stream)
                    trips.setdefault(name, []).append(trip / 1e9)
    settings: dict[str, Any] = {
        "cluster": "star", "seconds": seconds, "round_trips": ROUND_TRIPS, "waiting": "spinning", "by": "traffic.c",
        "processors": {"sender": SENDER, "receiver": RECEIVER}, "interleaved": [TESTBED, BY_IP, AGAIN],
    }  # fmt: skip
    for name in ends:
        yield Row("unimpaired", name, TCP, 2, "bit/s", tuple(streams[name]), settings)
        yield Row("unimpaired", name, ROUND_TRIP, 2, "s", tuple(trips[name]), settings)


@contextlib.contextmanager
def _by_ip(directory: Path, name: str) -> Iterator[tuple[NodeAddress, NodeAddress]]:
    """Context manager: two nodes on a bridge, made by `ip_batch`."""
    with contextlib.closing(IpBatch(directory)) as batch:
        batch.up(name, 2)
        results = []
        for host, namespace in ((1, f"{name}.n1"), (2, f"{name}.n2")):
            paths = [path for path in batch.namespaces() if path.endswith(namespace)]
            if len(paths) != 1:
                raise ContenderError(f"ip -batch made no namespace {namespace}")
            results.append(NodeAddress(paths[0], f"10.0.0.{host + 1}", f"02:00:00:02:00:{host:02x}"))
        yield results[0], results[1]

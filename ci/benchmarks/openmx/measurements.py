"""Measurements of Open-MX and EMP in turn, and of Open-MX's receive policies, and their rows."""

from collections.abc import Callable, Iterator
from typing import Any

import testbed
from benchmarks.harness.contenders import ContenderError
from benchmarks.harness.direct_pair import direct_pair
from benchmarks.harness.host_programs import LARGE as EMP_LARGE
from benchmarks.harness.host_programs import MESSAGE, PING, PONG
from benchmarks.harness.processors import RECEIVER, SENDER
from benchmarks.harness.rows import Row
from benchmarks.openmx.mx_programs import LARGE, programs
from protocols.core.protocol import Protocol
from protocols.emp.protocol import PROTOCOL as EMP_PROTOCOL
from protocols.openmx.host import plug
from protocols.openmx.protocol import PROTOCOL as MX_PROTOCOL
from protocols.openmx.settings import Settings
from testbed import Cluster
from testbed.cluster.running_cluster import RunningCluster
from testbed.controller.runs.agents import agents

EMP, MX = "EMP", "Open-MX"
TRIPS, STREAM, ALL_TO_ALL, NUMBERED = "round trips", "stream", "all-to-all", "numbered"
TRIP, CPU = "round trip, p50", "CPU per round trip, one side"
ONE_WAY = "one way, long messages"
SENT, WRONG, RATE, RESENT = "sent", "lost, twice or out of order", "received", "messages sent again"
POLICIES = {
    "one queue": (1, ""), "round robin": (2, "round-robin"), "two queues by endpoint": (2, "endpoint"),
}  # fmt: skip
"""Receive queues and their distribution of frames, by policy."""
RANKS = 4  # of each node
TIMEOUT, PROGRESS_TIMEOUT = 3600.0, 60.0  # s
SPIN = 10_000_000_000  # ns: never sleep
_MIN_RATE = 200  # numbered messages per second that a busy machine reaches
_RESEND = Settings(resend=1)

Progress = Callable[[str], None]


def _run(cluster: RunningCluster, protocol: Protocol, kind: str, count: int) -> dict[str, Any]:
    node_programs = programs(kind, count)
    pinned = dict(zip(node_programs, (SENDER, RECEIVER), strict=True))
    with agents(cluster, protocol.plug, protocol.ethertype, node_programs, spin=SPIN, cpus=pinned) as run:
        outcome = run.wait(TIMEOUT, patience=PROGRESS_TIMEOUT)
    if outcome.invalid:
        raise ContenderError(f"{kind}: {outcome.invalid}")
    return dict(outcome.results)


def trips(repeat: int, count: int, progress: Progress) -> Iterator[Row]:
    """Measure round trips of 4 bytes between the same interfaces, spinning, by each system's own calls."""
    samples_by_key: dict[tuple[str, str], list[float]] = {}
    contenders = {EMP: (EMP_PROTOCOL, "emp trip"), MX: (MX_PROTOCOL, "mx trip")}
    with direct_pair().up() as cluster:
        for turn in range(repeat + 1):
            progress(f"{TRIPS}: {f'{turn} of {repeat}' if turn else 'warm-up'}")
            for contender, (protocol, kind) in contenders.items():
                trip = _run(cluster, protocol, kind, count)[PING]
                if turn:
                    samples_by_key.setdefault((contender, TRIP), []).append(trip["p50"] / 1e9)
                    samples_by_key.setdefault((contender, CPU), []).append(trip["cpu"] / 1e9)
    settings = {"cluster": "two nodes, one pair of interfaces", "bytes": MESSAGE, "count": count, "waiting": "spinning"}
    for (contender, name), samples in samples_by_key.items():
        row_settings = {**settings, "processors": [SENDER, RECEIVER], "interleaved": list(contenders)}
        yield Row(TRIPS, contender, name, 2, "s", tuple(samples), row_settings)


def streams(repeat: int, messages: int, progress: Progress) -> Iterator[Row]:
    """Measure one-way streams of equal size, spinning."""
    samples_by_key: dict[str, list[float]] = {EMP: [], MX: []}
    with direct_pair().up() as cluster:
        for turn in range(repeat + 1):
            progress(f"{STREAM}: {f'{turn} of {repeat}' if turn else 'warm-up'}")
            for contender, protocol, kind, size in (
                (EMP, EMP_PROTOCOL, "emp stream", EMP_LARGE), (MX, MX_PROTOCOL, "mx stream", LARGE),
            ):  # fmt: skip
                rate = _run(cluster, protocol, kind, messages * LARGE // size)[PING]
                if turn:
                    samples_by_key[contender].append(rate)
    settings = {
        "cluster": "two nodes, one pair of interfaces", "bytes": {EMP: EMP_LARGE, MX: LARGE},
        "moved": messages * LARGE, "processors": [SENDER, RECEIVER], "interleaved": list(samples_by_key),
    }  # fmt: skip
    for contender, samples in samples_by_key.items():
        yield Row(STREAM, contender, ONE_WAY, 2, "bit/s", tuple(samples), settings)


def all_to_all(repeat: int, progress: Progress) -> Iterator[Row]:
    """Measure IMB's Alltoall on two nodes of several ranks, by receive policy."""
    samples_by_key: dict[tuple[str, int], list[float]] = {}
    for turn in range(repeat):
        for policy, (queues, steering) in POLICIES.items():
            progress(f"{ALL_TO_ALL}, {policy}: {turn + 1} of {repeat}")
            result = testbed.run(
                "star-2", "imb", protocol="openmx", nics="shared", ranks_per_node=RANKS, queues=queues, steering=steering,
                settings={"benchmarks": ("Alltoall",), "sizes": (4, 4096, 65536), "count": 100, "least_ranks": 2 * RANKS},
            )  # fmt: skip
            for row in result.rows:
                samples_by_key.setdefault((policy, row["size_bytes"]), []).append(row["avg_ns"] / 1e9)
    settings = {"cluster": "star-2", "ranks of a node": RANKS, "interleaved": list(POLICIES)}
    for (policy, size), samples in samples_by_key.items():
        yield Row(ALL_TO_ALL, policy, f"Alltoall, {size} bytes", 2, "s", tuple(samples), settings)


def numbered(messages: int, progress: Progress) -> Iterator[Row]:
    """Measure numbered messages through a link that loses 1 % of the frames in each direction."""
    progress(f"{messages:,} numbered messages")
    node_programs = programs("mx count", messages)
    with Cluster.back_to_back(loss="1%").up() as cluster:
        timeout = 120 + messages / _MIN_RATE
        with agents(cluster, plug(_RESEND), MX_PROTOCOL.ethertype, node_programs, spin=0) as run:
            outcome = run.wait(timeout, patience=PROGRESS_TIMEOUT)
    if outcome.invalid:
        raise ContenderError(f"{NUMBERED}: {outcome.invalid}")
    resent = sum(report.counted["resent"] for report in outcome.reports.values())
    row_settings = {"messages": messages, "bytes": MESSAGE, "loss": "1%", "resend": "after 1/64 s"}
    for what, unit, value in (
        (SENT, "1", messages), (WRONG, "1", outcome.results[PONG]), (RESENT, "1", resent),
        (RATE, "/s", outcome.results[PING]),
    ):  # fmt: skip
        yield Row(NUMBERED, MX, what, 2, unit, (float(value),), row_settings)

"""Measurements of VIA and EMP in turn, and their rows."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from benchmarks.harness.contenders import ContenderError
from benchmarks.harness.direct_pair import direct_pair
from benchmarks.harness.host_programs import LARGE, MESSAGE, PING, PONG
from benchmarks.harness.processors import RECEIVER, SENDER
from benchmarks.harness.rows import Row
from benchmarks.via.simulations import NODES, emp_frames, via_frames
from benchmarks.via.via_programs import programs
from protocols.core.protocol import Protocol
from protocols.emp.protocol import PROTOCOL as EMP_PROTOCOL
from protocols.via.protocol import PROTOCOL as VIA_PROTOCOL
from testbed import Cluster
from testbed.cluster.running_cluster import RunningCluster
from testbed.controller.runs.agents import agents

EMP, MPI_EMP, MPI_VIA, VIA = "EMP", "MPI on EMP", "MPI on VIA", "VIA, reliable"
TRIPS, STREAM, SIMULATION, NUMBERED = "round trips", "stream", "simulation", "numbered"
TRIP, CPU = "round trip, p50", "CPU per round trip, one side"
ONE_WAY = f"one way, messages of {LARGE >> 20} MiB"
SIMULATED = f"frames in the simulation, {NODES} nodes"
SENT, WRONG, RATE, RESENT = "sent", "lost, twice or out of order", "received", "frames sent again"
TIMEOUT, PROGRESS_TIMEOUT = 3600.0, 60.0  # s
_MIN_RATE = 200  # numbered messages per second that a busy machine reaches
SPIN = 10_000_000_000  # ns: never sleep

Progress = Callable[[str], None]
Measured = tuple[dict[str, Any], int]
"""Results by node, and number of retransmitted frames."""


def _run(
    cluster: RunningCluster, protocol: Protocol, kind: str, count: int, *, spin: bool = True, timeout: float = TIMEOUT
) -> Measured:
    node_programs = programs(kind, count, protocol.device)
    pinned = dict(zip(node_programs, (SENDER, RECEIVER), strict=True)) if spin else None
    budget = SPIN if spin else 0
    with agents(cluster, protocol.plug, protocol.ethertype, node_programs, spin=budget, cpus=pinned) as run:
        outcome = run.wait(timeout, patience=PROGRESS_TIMEOUT)
    if outcome.invalid:
        raise ContenderError(f"{kind}: {outcome.invalid}")
    return dict(outcome.results), sum(report.counted["frames_resent"] for report in outcome.reports.values())


def trips(repeat: int, count: int, progress: Progress) -> Iterator[Row]:
    """Measure round trips of 4 bytes between the same interfaces, spinning: EMP's own, and MPI's on EMP and on VIA."""
    samples_by_key: dict[tuple[str, str], list[float]] = {}
    contenders = {
        EMP: (EMP_PROTOCOL, "emp trip"), MPI_EMP: (EMP_PROTOCOL, "mpi trip"), MPI_VIA: (VIA_PROTOCOL, "mpi trip"),
    }  # fmt: skip
    with direct_pair().up() as cluster:
        for turn in range(repeat + 1):
            progress(f"{TRIPS}: {f'{turn} of {repeat}' if turn else 'warm-up'}")
            for contender, (protocol, kind) in contenders.items():
                trip: Mapping[str, float] = _run(cluster, protocol, kind, count)[0][PING]
                if turn:
                    samples_by_key.setdefault((contender, TRIP), []).append(trip["p50"] / 1e9)
                    samples_by_key.setdefault((contender, CPU), []).append(trip["cpu"] / 1e9)
    settings = {"cluster": "two nodes, one pair of interfaces", "bytes": MESSAGE, "count": count, "waiting": "spinning"}
    for (contender, name), samples in samples_by_key.items():
        row_settings = {**settings, "processors": [SENDER, RECEIVER], "interleaved": list(contenders)}
        yield Row(TRIPS, contender, name, 2, "s", tuple(samples), row_settings)


def streams(repeat: int, messages: int, progress: Progress) -> Iterator[Row]:
    """Measure one-way streams of EMP and of a VI of the reliable provider, spinning."""
    samples_by_key: dict[str, list[float]] = {EMP: [], VIA: []}
    resent = dict.fromkeys(samples_by_key, 0)
    with direct_pair().up() as cluster:
        for turn in range(repeat + 1):
            progress(f"{STREAM}: {f'{turn} of {repeat}' if turn else 'warm-up'}")
            for contender, protocol, kind in ((EMP, EMP_PROTOCOL, "emp stream"), (VIA, VIA_PROTOCOL, "via stream")):
                results, resent_frames = _run(cluster, protocol, kind, messages)
                if turn:
                    samples_by_key[contender].append(results[PING])
                    resent[contender] += resent_frames
    settings = {
        "cluster": "two nodes, one pair of interfaces", "messages": messages, "bytes": LARGE, "resent": resent,
        "processors": [SENDER, RECEIVER], "interleaved": list(samples_by_key),
    }  # fmt: skip
    for contender, samples in samples_by_key.items():
        yield Row(STREAM, contender, ONE_WAY, 2, "bit/s", tuple(samples), settings)


def simulation(repeat: int, progress: Progress) -> Iterator[Row]:
    """Measure frames of EMP and of VIA, each sent by a NIC and counted once, per second of CPU time."""
    samples_by_key: dict[str, list[float]] = {EMP: [], VIA: []}
    for turn in range(repeat):
        progress(f"{SIMULATION}: {turn + 1} of {repeat}")
        samples_by_key[EMP].append(emp_frames())
        samples_by_key[VIA].append(via_frames())
    for contender, samples in samples_by_key.items():
        yield Row(SIMULATION, contender, SIMULATED, NODES, "/s", tuple(samples), {"interleaved": list(samples_by_key)})


def numbered(messages: int, progress: Progress) -> Iterator[Row]:
    """Measure numbered messages through a VI of the reliable provider, whose link loses 1 % of the frames in each
    direction."""
    progress(f"{messages:,} numbered messages")
    with Cluster.back_to_back(loss="1%").up() as cluster:
        timeout = 120 + messages / _MIN_RATE
        results, resent = _run(cluster, VIA_PROTOCOL, "via count", messages, spin=False, timeout=timeout)
    row_settings = {"messages": messages, "bytes": MESSAGE, "loss": "1%", "reliability": "reliable reception"}
    for what, unit, value in (
        (SENT, "1", messages), (WRONG, "1", results[PONG]), (RESENT, "1", resent), (RATE, "/s", results[PING]),
    ):  # fmt: skip
        yield Row(NUMBERED, VIA, what, 2, unit, (float(value),), row_settings)

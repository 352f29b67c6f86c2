"""Measurements of SSAM and EMP, and of cells and frames, in turn, and their rows."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

from benchmarks.harness.contenders import ContenderError
from benchmarks.harness.direct_pair import direct_pair
from benchmarks.harness.host_programs import PING
from benchmarks.harness.processors import RECEIVER, SENDER
from benchmarks.harness.rows import Row
from benchmarks.ssam.cell_programs import programs
from benchmarks.ssam.floods import flood
from benchmarks.ssam.simulations import NODES, emp_frames, ssam_cells
from protocols.emp.protocol import PROTOCOL as EMP_PROTOCOL
from protocols.ssam.protocol import PROTOCOL as SSAM_PROTOCOL
from testbed import Cluster
from testbed.cluster.running_cluster import RunningCluster
from testbed.controller.runs.agents import agents

EMP, SSAM, SSAM_RELAYED = "EMP, inline", "SSAM, inline", "SSAM, inline, through the relay"
FRAMES, CELLS, CELLS_OF_8 = "frames, Ethernet switch", "cells, ATM switch", "cells, ATM switch, 8 in a frame"
TRIPS, RELAY, SIMULATION = "round trips", "relay", "simulation"
TRIP, CPU = "round trip, p50", "CPU per round trip, one side"
RATE, COST = "through two links and a switch", "relay's CPU for each"
SIMULATED = f"in the simulation, {NODES} nodes"
TIMEOUT = 600.0  # s
SPIN = 10_000_000_000  # ns: never sleep

Progress = Callable[[str], None]


def trips(repeat: int, count: int, progress: Progress) -> Iterator[Row]:
    """Measure in turn 4-byte messages of EMP and 40-byte requests of SSAM with their replies, both spinning, between the
    same interfaces; and SSAM's requests through the relay, on links with the rate of the paper's fibre."""
    samples_by_key: dict[tuple[str, str], list[float]] = {}
    with direct_pair().up() as near, Cluster.load("ssam-1995").up() as fibre:
        contenders = {
            EMP: lambda: _trip(near, "emp trip", count, spin=True),
            SSAM: lambda: _trip(near, "ssam trip", count, spin=True),
            SSAM_RELAYED: lambda: _trip(fibre, "ssam trip", count // 4, spin=False),
        }
        for turn in range(repeat + 1):
            progress(f"{TRIPS}: {f'{turn} of {repeat}' if turn else 'warm-up'}")
            for contender, measure in contenders.items():
                trip = measure()
                if turn:
                    samples_by_key.setdefault((contender, TRIP), []).append(trip["p50"] / 1e9)
                    samples_by_key.setdefault((contender, CPU), []).append(trip["cpu"] / 1e9)
    settings = {
        "cluster": {EMP: "two nodes, one pair of interfaces", SSAM: "the same", SSAM_RELAYED: "ssam-1995"},
        "bytes": {EMP: 4, SSAM: 40, SSAM_RELAYED: 40}, "count": count, "interleaved": list(contenders),
        "waiting": {EMP: "spinning", SSAM: "spinning", SSAM_RELAYED: "sleeping"}, "processors": [SENDER, RECEIVER],
    }  # fmt: skip
    for (contender, name), samples in samples_by_key.items():
        yield Row(TRIPS, contender, name, 2, "s", tuple(samples), settings)


def _trip(cluster: RunningCluster, kind: str, count: int, *, spin: bool) -> Mapping[str, float]:
    protocol = EMP_PROTOCOL if kind.startswith("emp") else SSAM_PROTOCOL
    node_programs = programs(kind, count)
    pinned = dict(zip(node_programs, (SENDER, RECEIVER), strict=True)) if spin else None
    with agents(
        cluster, protocol.plug, protocol.ethertype, node_programs, spin=SPIN if spin else 0, cpus=pinned
    ) as run:
        outcome = run.wait(TIMEOUT, patience=60.0)
    if outcome.invalid:
        raise ContenderError(f"{kind}: {outcome.invalid}")
    trip: Mapping[str, float] = outcome.results[PING]
    return trip


def relay(repeat: int, count: int, progress: Progress) -> Iterator[Row]:
    """Measure in turn frames through an Ethernet switch whose links are relayed, and cells of equal length through an ATM
    switch, from one node to the other."""
    star = {
        kind: Cluster.star(2, kind=kind, delay="1us").model_copy(update={"name": kind}) for kind in ("ethernet", "atm")
    }
    samples_by_key: dict[tuple[str, str, str], list[float]] = {}
    with ExitStack() as stack:
        up = {kind: stack.enter_context(cluster.up()) for kind, cluster in star.items()}
        contenders = {FRAMES: ("ethernet", 1), CELLS: ("atm", 1), CELLS_OF_8: ("atm", 8)}
        for turn in range(repeat + 1):
            progress(f"{RELAY}: {f'{turn} of {repeat}' if turn else 'warm-up'}")
            for contender, (kind, cells) in contenders.items():
                rate, cost = flood(up[kind], count, cells)
                if turn:
                    samples_by_key.setdefault((contender, RATE, "/s"), []).append(rate)
                    samples_by_key.setdefault((contender, COST, "s"), []).append(cost)
    settings: dict[str, Any] = {"bytes": 67, "count": count, "interleaved": list(contenders)}
    for (contender, name, unit), samples in samples_by_key.items():
        yield Row(RELAY, contender, name, 2, unit, tuple(samples), settings)


def simulation(repeat: int, progress: Progress) -> Iterator[Row]:
    """Measure in turn EMP's frames and SSAM's cells, each sent by a NIC and counted once, per second of CPU time."""
    samples_by_key: dict[str, list[float]] = {EMP: [], SSAM: []}
    for turn in range(repeat):
        progress(f"{SIMULATION}: {turn + 1} of {repeat}")
        samples_by_key[EMP].append(emp_frames())
        samples_by_key[SSAM].append(ssam_cells())
    for contender, samples in samples_by_key.items():
        yield Row(SIMULATION, contender, SIMULATED, NODES, "/s", tuple(samples), {"interleaved": list(samples_by_key)})

"""EMP in the simulator and on real frames in namespaces: one description, host program and firmware."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Protocol

import pytest

import testbed
from protocols.emp import host as emp
from protocols.emp.card import MESSAGE_HEADER_SIZE
from protocols.emp.codec import ETHERTYPE, TYPE_ACK
from protocols.mpi import emp as mpi
from protocols.mpi.comm import Comm
from testbed import Cluster
from testbed.controller.conformance.parity import differing_flows, fates_by_flow
from testbed.controller.runs.agents import agents
from testbed.controller.runs.run_options import Mode, Nics
from testbed.fates.records import Record
from testbed.fates.rules import RuleSet
from testbed.fields import known_fields
from testbed.runtime.logs import read_log
from testbed.sim.simulation import Simulation
from testbed.workloads.form import Native

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

TIMEOUT = 60.0  # s
SIZES = (0, 4, 1456, 1457, 4097, 20_000)
ROUNDS = 5
MAX_PAYLOAD = 1500 - 28
"""Bytes of payload of a full frame."""


class Node(Protocol):
    @property
    def name(self) -> str: ...


def content(source: int, sink: int, tag: int) -> bytes:
    size = SIZES[(source + sink + tag) % len(SIZES)]
    return (f"{source} {sink} {tag} ".encode() * (size // 4 + 1))[:size]


async def exchange(endpoint: emp.Endpoint, _node: Node) -> list[str]:
    """Send to every other node and receive in another order; return the messages in the order of the receives."""
    comm = Comm(mpi.device(endpoint))
    others = [rank for rank in range(comm.size) if rank != comm.rank]
    sends = [await comm.Isend(content(comm.rank, peer, tag), peer, tag) for tag in range(ROUNDS) for peer in others]
    history = []
    for tag in reversed(range(ROUNDS)):
        for peer in others:
            buffer = bytearray(max(SIZES))
            await comm.Recv(buffer, peer, tag)
            size = len(content(peer, comm.rank, tag))
            assert bytes(buffer[:size]) == content(peer, comm.rank, tag)
            history.append(f"{peer} {tag} {hashlib.sha256(buffer).hexdigest()}")
    for send in sends:
        await send.Wait()
    return history


def test_a_program_has_the_same_history_and_every_flow_the_same_fates(tmp_path: Path) -> None:
    """The n-th frame of a flow has the same fate in both modes, even if its content differs."""
    description = Cluster.star(3, loss="5%", delay="1ms", seed=7)
    simulated: list[Record] = []
    with Simulation(description, emp.plug(), log=simulated.append) as simulation:
        tasks = {name: simulation.spawn(name, exchange) for name in simulation.nodes}
        simulation.run(timeout=60_000_000_000)
        expected = {name: task.result() for name, task in tasks.items()}
    log = tmp_path / "fates.jsonl"
    with (
        description.up(fates=log) as cluster,
        agents(cluster, emp.plug(), ETHERTYPE, {f"n{number}": exchange for number in (1, 2, 3)}) as run,
    ):
        outcome = run.wait(TIMEOUT)
        assert outcome.results == expected
        assert not any(report.lost for report in outcome.reports.values())
    simulated_fates, live_fates = fates_by_flow(simulated), fates_by_flow(read_log(log))
    assert len(live_fates) >= 6
    differing, compared = differing_flows(simulated_fates, live_fates)
    assert not differing
    assert compared >= 20


def test_rules_can_match_fields_of_a_registered_protocol() -> None:
    """Every fourth acknowledgement is dropped, in the simulator and in namespaces; its collection is retransmitted."""
    text = f"drop emp.type == {TYPE_ACK} and every(4)"
    rules = RuleSet(known_fields())
    rules.add(0, text)
    description = Cluster.star(2, delay="100us")
    with Simulation(description, emp.plug(), rules=rules) as simulation:
        tasks = {name: simulation.spawn(name, exchange) for name in simulation.nodes}
        simulation.run(timeout=60_000_000_000)
        expected = {name: task.result() for name, task in tasks.items()}
        resent = [node.agent.firmware.counter_values()["collections_resent"] for node in simulation.nodes.values()]
        assert all(resent)
    with (
        description.up() as cluster,
        cluster.inject("all", rules=[text]),
        agents(cluster, emp.plug(), ETHERTYPE, {"n1": exchange, "n2": exchange}) as run,
    ):
        outcome = run.wait(TIMEOUT)
        assert outcome.results == expected
        assert all(report.counted["collections_resent"] for report in outcome.reports.values())


class ChangingUnits(Native[emp.Endpoint]):
    """Node 0 posts three messages of 30 frames with different collection sizes: 3, 10 and 1 frames."""

    protocol = "emp"

    async def program(self, library: emp.Endpoint, _node: object) -> list[int]:
        size = 30 * MAX_PAYLOAD - MESSAGE_HEADER_SIZE
        if library.number:
            transfers = [library.post_receive(0, tag, bytearray(size)) for tag in range(3)]
        else:
            transfers = [library.post_send(1, 0, bytes(size))]
            for tag, unit in enumerate((10, 1), 1):
                await library.post_unit(unit)
                transfers.append(library.post_send(1, tag, bytes(size)))
        return [(await transfer).length for transfer in transfers]


@pytest.mark.parametrize(
    ("mode", "nics"), [("sim", "inline"), ("live", "inline"), ("live", "shared"), ("dilated", "inline")]
)
def test_the_collection_size_can_change_while_messages_are_in_flight(mode: Mode, nics: Nics) -> None:
    """Each collection is acknowledged in spite of loss; repeated acknowledgements are not counted."""
    lossy = Cluster.star(2, rate="1gbit", delay="100us", loss="2%", seed=3)
    dilate = 20 if mode == "dilated" else None
    result = testbed.run(lossy, ChangingUnits, mode=mode, nics=nics, dilate=dilate, timeout=60)
    assert result.results["n1"] == result.results["n2"] == [30 * MAX_PAYLOAD - MESSAGE_HEADER_SIZE] * 3
    assert result.counters["n1"]["collections_resent"]
    assert result.counters["n2"]["acknowledgements_sent"] == 10 + 3 + 30

"""EMP at switches that forward by source routes: its frames are Myrinet packets, and each NIC maps the network."""

from __future__ import annotations

import pytest

import testbed
from protocols.emp.host import Endpoint, plug
from protocols.emp.myrinet import codec
from protocols.myrinet.envelope import add_envelope, stripped
from testbed import Cluster
from testbed.fates.records import Record
from testbed.fates.rules import RuleSet
from testbed.fields import known_fields
from testbed.sim.sim_node import SimNode
from testbed.sim.simulation import Simulation
from tests.sim.small_workloads import SMALL

SECOND = 1_000_000_000
LARGE = 60_000
"""Bytes; 41 frames, which take 49 ms at RATE. A collection's first time-out is 5 ms."""
RATE = "10mbit"


@pytest.mark.parametrize("name", ["pingpong", "random", "sort"])
def test_workloads_end_on_switches_that_lose_frames(name: str) -> None:
    lossy = Cluster.ring(4, kind="myrinet", loss="2%", seed=7)
    result = testbed.run(lossy, name, mode="sim", settings=SMALL[name], check=True)
    assert result.checks is not None
    assert result.checks.passed
    assert result.rows
    assert sum(counters["frames_resent"] for counters in result.counters.values())


def test_ranks_of_one_node_share_its_cable_and_its_mapper() -> None:
    result = testbed.run(
        Cluster.ring(3, kind="myrinet"), "random", mode="sim", ranks_per_node=2, settings={"messages": 10}, check=True
    )
    assert result.checks is not None
    assert result.checks.passed
    answering = [name for name, counters in result.counters.items() if counters["mapper_answers_sent"]]
    assert len(result.counters) == 6
    assert len(answering) <= 3, "only the first function of each NIC has a mapper"


class Pair:
    """Two NICs at a switch, and what node 0 has resent when it begins its large message, and when that is acknowledged."""

    def __init__(self) -> None:
        self.resent: list[int] = []
        self.unrouted = 0

    async def talk(self, endpoint: Endpoint, node: SimNode) -> int:
        """Exchange a small message, by which the network is mapped, and then a large one."""
        peer, firmware = 1 - endpoint.number, node.agent.firmware
        for tag, size in enumerate((4, LARGE)):
            if endpoint.number:
                assert (await endpoint.post_receive(peer, tag, bytearray(size))).length == size
            else:
                self.resent.append(firmware.counter_values()["frames_resent"])
                await endpoint.post_send(peer, tag, bytes(size))
        if not endpoint.number:
            self.resent.append(firmware.counter_values()["frames_resent"])
            self.unrouted = firmware.counter_values()["unrouted"]
        return endpoint.number


def test_frames_are_resent_until_the_network_is_mapped_and_no_timer_runs_while_they_wait_in_their_nic() -> None:
    """The network takes a frame only when there is room for it. A large message takes ten time-outs, in which most of its
    frames are still in the NIC: nothing of it is resent."""
    pair, slow_cluster = Pair(), Cluster.star(2, kind="myrinet", rate=RATE)
    with Simulation(slow_cluster, plug()) as simulation:
        tasks = [simulation.spawn(name, pair.talk) for name in simulation.nodes]
        simulation.run(timeout=5 * SECOND)
        assert [task.result() for task in tasks] == [0, 1]
    assert pair.unrouted, "the first frame was sent before there was a route"
    first, resent_before, resent_after = pair.resent
    assert first == 0
    assert resent_before == pair.unrouted
    assert resent_after == resent_before


def test_rules_name_its_fields_behind_a_source_route_and_flows_are_by_its_types() -> None:
    rules, records = RuleSet(known_fields()), list[Record]()
    rules.add(0, "drop emp_myrinet.type == ACK and nth(1)")
    pair = Cluster.star(2, kind="myrinet")
    with Simulation(pair, plug(), rules=rules, fields=known_fields(), log=records.append) as simulation:
        talk = Pair().talk
        tasks = [simulation.spawn(name, talk) for name in simulation.nodes]
        simulation.run(timeout=5 * SECOND)
        assert all(task.done for task in tasks)
        reacknowledged = [
            node.agent.firmware.counter_values()["reacknowledgements_sent"] for node in simulation.nodes.values()
        ]
    assert [record.flow.key[-1] for record in records] == [codec.TYPE_ACK] * len(records)
    assert 1 <= len(records) <= 4, "the first of each direction of two links"
    assert sum(reacknowledged) >= 1


def test_a_frame_on_a_link_is_its_codecs_with_a_route_in_front_and_a_crc_behind() -> None:
    frame = codec.pack_frame(b"\2\0\0\0\0\1", b"\2\0\0\0\0\2", codec.TYPE_ACK, 0, 3, 1, 1, 7, 2, 0)
    assert frame[12:16] == codec.ETHERTYPE.to_bytes(2, "big") + codec.BEGINS
    assert stripped(add_envelope(frame, b"\x81\xbf")) == (frame, (1, -1), True)

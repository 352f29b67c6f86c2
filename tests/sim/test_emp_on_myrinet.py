"""EMP on source-routed switches: its frames are Myrinet packets, and each NIC maps the network."""

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
def test_workloads_pass_their_checks_on_a_lossy_ring(name: str) -> None:
    lossy = Cluster.ring(4, kind="myrinet", loss="2%", seed=7)
    result = testbed.run(lossy, name, mode="sim", settings=SMALL[name], check=True)
    assert result.checks is not None
    assert result.checks.passed
    assert result.rows
    assert sum(counters["frames_resent"] for counters in result.counters.values())


def test_ranks_of_one_node_share_its_mapper() -> None:
    result = testbed.run(
        Cluster.ring(3, kind="myrinet"), "random", mode="sim", ranks_per_node=2, settings={"messages": 10}, check=True
    )
    assert result.checks is not None
    assert result.checks.passed
    answering = [name for name, counters in result.counters.items() if counters["mapper_answers_sent"]]
    assert len(result.counters) == 6
    assert len(answering) <= 3, "more mappers than NICs"


class Pair:
    """Two NICs at a switch. resent: node 0's resent frames before each message and after the last one."""

    def __init__(self) -> None:
        self.resent: list[int] = []
        self.unrouted = 0

    async def exchange(self, endpoint: Endpoint, node: SimNode) -> int:
        """Exchange a small message while the network is mapped, and then a large one."""
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


def test_frames_are_resent_until_the_network_is_mapped_but_not_while_they_wait_in_their_nic() -> None:
    """Backpressure keeps most frames of the large message in the NIC during ten time-outs: none of them is resent."""
    pair, slow_cluster = Pair(), Cluster.star(2, kind="myrinet", rate=RATE)
    with Simulation(slow_cluster, plug()) as simulation:
        tasks = [simulation.spawn(name, pair.exchange) for name in simulation.nodes]
        simulation.run(timeout=5 * SECOND)
        assert [task.result() for task in tasks] == [0, 1]
    assert pair.unrouted, "no frame was sent before there was a route"
    first, resent_before, resent_after = pair.resent
    assert first == 0
    assert resent_before == pair.unrouted
    assert resent_after == resent_before


def test_rules_match_emps_fields_after_a_source_route_and_fates_count_by_frame_type() -> None:
    rules, records = RuleSet(known_fields()), list[Record]()
    rules.add(0, "drop emp_myrinet.type == ACK and nth(1)")
    pair = Cluster.star(2, kind="myrinet")
    with Simulation(pair, plug(), rules=rules, log=records.append) as simulation:
        exchange = Pair().exchange
        tasks = [simulation.spawn(name, exchange) for name in simulation.nodes]
        simulation.run(timeout=5 * SECOND)
        assert all(task.done for task in tasks)
        reacknowledged = [
            node.agent.firmware.counter_values()["reacknowledgements_sent"] for node in simulation.nodes.values()
        ]
    assert [record.flow.key[-1] for record in records] == [codec.TYPE_ACK] * len(records)
    assert 1 <= len(records) <= 4, "other frames than the first one of each direction of two links"
    assert sum(reacknowledged) >= 1


def test_a_packet_is_emps_frame_between_a_route_and_a_crc() -> None:
    frame = codec.pack_frame(b"\2\0\0\0\0\1", b"\2\0\0\0\0\2", codec.TYPE_ACK, 0, 3, 1, 1, 7, 2, 0)
    assert frame[12:16] == codec.ETHERTYPE.to_bytes(2, "big") + codec.BEGINS
    assert stripped(add_envelope(frame, b"\x81\xbf")) == (frame, (1, -1), True)

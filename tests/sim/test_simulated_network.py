"""Frames on simulated links and switches: times, paths and drops."""

from __future__ import annotations

from dataclasses import replace

import pytest

from testbed.errors import NotFoundError
from testbed.fabric.direction import LinkDirection
from testbed.fates.headers import standard_fields
from testbed.fates.records import Record
from testbed.fates.rules import RuleSet
from testbed.fates.stage import FateOptions
from testbed.sim.sim_node import SimNode
from testbed.sim.simulation import Simulation
from testbed.spec.layout import Impairment
from testbed.spec.model import Description
from tests.sim.echo_and_flood import ETHERTYPE, EchoEndpoint, EchoPlug, flood


async def send_requests(endpoint: EchoEndpoint, node: SimNode, peer: int, count: int = 1, size: int = 100) -> int:
    """Send requests, each after the previous reply; return the time of the last reply."""
    for _ in range(count):
        await endpoint.request(peer, bytes(size))
    return node.now()


async def send(endpoint: EchoEndpoint, node: SimNode, peer: int, count: int, interval: int) -> None:
    """Send requests at intervals without waiting for replies."""
    for _ in range(count):
        endpoint.request(peer, bytes(100))
        await node.sleep(interval)


def frame(destination: bytes, source: bytes) -> bytes:
    """Return a frame with an EtherType that the echo firmware ignores."""
    return destination + source + b"\x88\xb7" + bytes(46)


def received_counts(plug: EchoPlug) -> list[int]:
    """Return the number of frames that each NIC has received."""
    return [len(endpoint.firmware.frames) for endpoint in plug.endpoints]


def test_a_round_trip_takes_twice_the_delay_of_each_link_on_the_path() -> None:
    with Simulation(Description.star(3, delay="5us"), EchoPlug()) as simulation:
        task = simulation.spawn("n1", send_requests, 1)
        simulation.run()
        assert task.result() == 4 * 5_000


def test_a_frame_takes_its_serialization_time() -> None:
    with Simulation(Description.back_to_back(rate="100mbit"), EchoPlug()) as simulation:
        task = simulation.spawn("n1", send_requests, 1, size=106)  # 125 bytes with their headers: 1000 bits
        simulation.run()
        assert task.result() == 2 * 10_000


def test_without_delays_round_trips_take_no_time_and_keep_their_order() -> None:
    plug = EchoPlug()
    with Simulation(Description.star(2), plug) as simulation:
        task = simulation.spawn("n1", send_requests, 1, count=100)
        simulation.run()
        assert task.result() == 0
    indices = [int.from_bytes(data[15:19], "big") for _, data in plug.endpoints[1].firmware.frames]
    assert indices == list(range(100))


@pytest.mark.parametrize("cluster", [Description.star(4), Description.line(4), Description.dumbbell(2, 2)])
def test_a_learning_switch_floods_only_the_first_request(cluster: Description) -> None:
    plug = EchoPlug()
    with Simulation(cluster, plug) as simulation:
        nodes = list(simulation.nodes)
        task = simulation.spawn(nodes[0], send_requests, 3, count=5)
        simulation.run()
        assert task.done
        # The first request is flooded; its reply and all later frames are forwarded to their ports.
        assert received_counts(plug) == [5, 1, 1, 5]


@pytest.mark.parametrize("cluster", [Description.ring(4), Description.full_mesh(4), Description.fat_tree(4)])
def test_switches_in_cycles_forward_by_static_tables_without_flooding(cluster: Description) -> None:
    plug = EchoPlug()
    with Simulation(cluster, plug) as simulation:
        nodes = list(simulation.nodes)
        for number, name in enumerate(nodes):
            simulation.spawn(name, send_requests, (number + 1) % len(nodes))
        simulation.run()
        assert received_counts(plug) == [2] * len(nodes)  # a request and a reply, and no flooded frame


@pytest.mark.parametrize("cluster", [Description.star(4), Description.ring(4), Description.fat_tree(4)])
def test_a_broadcast_arrives_once_at_every_other_node(cluster: Description) -> None:
    plug = EchoPlug()
    with Simulation(cluster, plug) as simulation:
        first = next(iter(simulation.nodes.values()))
        first.nic.send(frame(b"\xff" * 6, plug.endpoints[0].adapter.address))
        simulation.run_until(1)
        assert received_counts(plug) == [0] + [1] * (len(simulation.nodes) - 1)


def test_a_frame_to_a_link_local_address_of_bridges_is_not_forwarded() -> None:
    plug = EchoPlug()
    with Simulation(Description.star(3), plug) as simulation:
        simulation.nodes["n1"].nic.send(frame(bytes.fromhex("0180c200000e"), plug.endpoints[0].adapter.address))
        simulation.run_until(1)
        assert received_counts(plug) == [0, 0, 0]


def test_sending_a_frame_above_the_mtu_is_an_error() -> None:
    with (
        Simulation(Description.back_to_back(), EchoPlug()) as simulation,
        pytest.raises(
            ValueError,
            match="1515 bytes cannot be sent: the interface's MTU is 1500, which allows frames of up to 1514",
        ),
    ):
        simulation.nodes["n1"].nic.send(bytes(1515))


def test_fates_in_the_simulation_equal_those_of_the_wire_model() -> None:
    """The fate of a flow's n-th frame follows from the seed, the link and the direction."""
    impairment = Impairment(loss=0.2, duplicate=0.1, corrupt=0.1)
    layout = Simulation(Description.back_to_back(seed=7), EchoPlug()).layout
    layout = replace(layout, links=(replace(layout.links[0], forward=impairment),))
    log: list[Record] = []
    plug = EchoPlug()
    with Simulation(layout, plug, log=log.append) as simulation:
        simulation.spawn("n1", send, 1, 500, 1_000)
        simulation.run()
        simulation.run_until(1_000_000)
    expected: list[Record] = []
    direction = LinkDirection(layout.links[0].name, "forward", impairment, FateOptions(seed=7, log=expected.append))
    first, second = (endpoint.adapter.address for endpoint in plug.endpoints)
    for index in range(500):
        head = second + first + ETHERTYPE.to_bytes(2, "big") + b"\1" + index.to_bytes(4, "big")
        direction.offer(index * 1_000, head + bytes(100))
    assert log == expected
    assert len(log) > 100
    assert [data for _, data in plug.endpoints[1].firmware.frames] == [data for _, data in direction.poll(1_000_000)]


def test_a_seed_of_the_run_overrides_the_descriptions() -> None:
    def fates(seed: int | None) -> list[int]:
        log: list[Record] = []
        with Simulation(Description.back_to_back(loss="10%", seed=1), EchoPlug(), seed=seed, log=log.append) as run:
            run.spawn("n1", send, 1, 100, 10)
            run.run()
        return [record.n for record in log]

    assert fates(None) == fates(1) != fates(2)


def test_a_rule_applies_until_it_is_removed() -> None:
    rules = RuleSet(standard_fields())
    plug = EchoPlug()
    with Simulation(Description.back_to_back(delay="1us"), plug, rules=rules) as simulation:
        with rules.add(simulation.now(), "drop eth.type == 0x88b6 and nth(2)"):
            simulation.spawn("n1", send, 1, 3, 1_000)
            simulation.run()
        simulation.spawn("n1", send, 1, 3, 1_000)
        simulation.run()
        simulation.run_until(100_000)
    received = [int.from_bytes(data[15:19], "big") for _, data in plug.endpoints[1].firmware.frames]
    assert received == [0, 2, 3, 4, 5]


def test_a_cut_link_drops_new_frames_and_delivers_those_in_flight() -> None:
    plug = EchoPlug()
    with Simulation(Description.back_to_back(delay="10us"), plug) as simulation:
        link = simulation.layout.links[0].name
        simulation.spawn("n1", send, 1, 10, 1_000)
        simulation.run_until(4_500)
        simulation.cut(link)
        simulation.run_until(7_500)
        simulation.restore(link)
        simulation.run_until(100_000)
        assert simulation.network.link_directions[link, "forward"].lost == 3
    assert [time for time, _ in plug.endpoints[1].firmware.frames] == [
        10_000, 11_000, 12_000, 13_000, 14_000, 18_000, 19_000,
    ]  # fmt: skip


def test_a_changed_delay_applies_to_later_frames() -> None:
    plug = EchoPlug()
    with Simulation(Description.back_to_back(delay="10us"), plug) as simulation:
        simulation.spawn("n1", send, 1, 4, 1_000)
        simulation.run_until(1_500)
        simulation.change(simulation.layout.links[0].name, Impairment(delay=30_000), "forward")
        simulation.run_until(100_000)
    assert [time for time, _ in plug.endpoints[1].firmware.frames] == [10_000, 11_000, 32_000, 33_000]


def test_cutting_an_unknown_link_is_an_error() -> None:
    with (
        Simulation(Description.back_to_back(), EchoPlug()) as simulation,
        pytest.raises(NotFoundError, match="no link 'n1--n9': there are n1:eth0--n2:eth0"),
    ):
        simulation.cut("n1--n9")


def test_a_thousand_nodes_exchange_frames_through_a_fat_tree_without_flooding() -> None:
    """Each node sends to the one with a number higher by 500: each frame crosses at most six links, and none is lost."""
    with Simulation(Description.fat_tree(16, delay="1us"), flood) as simulation:
        count = len(simulation.nodes)
        for node in simulation.nodes.values():
            node.nic.ring_doorbell((node.number + 500) % count, 0, 0)
        simulation.run_until(6_001)
        assert [node.nic.received for node in simulation.nodes.values()] == [1] * 1_024
        hops = sum(direction.counters.offered for direction in simulation.network.link_directions.values())
        assert 4 * 1_024 <= hops <= 6 * 1_024

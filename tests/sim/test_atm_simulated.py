"""ATM networks in the simulation: virtual circuits along shortest paths, and rejected combinations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest

import testbed
from protocols.atm.cell import PAYLOAD, circuit, header
from protocols.atm.fields import ETHERTYPE
from protocols.core.firmware import Adapter, Agent, Nic
from testbed import Cluster
from testbed.errors import DescriptionError, UnsupportedError
from testbed.packages import offered_protocols
from testbed.sim.simulation import Simulation
from testbed.spec.elements import Link, Node, Switch
from testbed.spec.loader import load

CELL_TIME = 53 * 8 * 10**9 // 140_000_000
"""Nanoseconds of a cell at 140 Mbit/s."""


@dataclass
class CellFirmware:
    """Firmware that sends one cell to the node named in a descriptor, and records received cells."""

    adapter: Adapter
    nic: Nic
    cells: list[tuple[int, bytes]] = field(default_factory=list)
    deadline: int | None = None

    def receive(self, now: int, frame: bytes) -> None:
        self.cells.append((now, frame))

    def on_doorbell(self, now: int, index: int) -> None:  # noqa: ARG002
        number, addresses = self.adapter.number, self.adapter.addresses
        head = addresses[index] + addresses[number] + ETHERTYPE.to_bytes(2, "big")
        self.nic.send(head + header(circuit(number, index, len(addresses))) + bytes([number]) * PAYLOAD)

    def on_timer(self, now: int) -> None:
        raise AssertionError(f"no timer is set, at {now}")

    def counter_values(self) -> Mapping[str, int]:
        return {}

    def pending_work(self) -> list[str]:
        return []


@dataclass
class Host:
    firmware: CellFirmware

    def on_completion(self, index: int) -> bool | None:  # noqa: ARG002
        return None

    def pending_work(self) -> list[str]:
        return []


@dataclass
class CellPlug:
    """A plug that records its firmwares, by node number."""

    firmwares: list[CellFirmware] = field(default_factory=list)

    def __call__(self, adapter: Adapter, nic: Nic) -> Agent:
        self.firmwares.append(CellFirmware(adapter, nic))
        return Agent(self.firmwares[-1], Host(self.firmwares[-1]))


def ring() -> Cluster:
    """Return a ring of six switches with two nodes each."""
    names = [f"s{number}" for number in range(1, 7)]
    nodes = [(f"n{switch_index}{port}", name) for switch_index, name in enumerate(names) for port in (1, 2)]
    return Cluster(
        name="ring",
        switches=[Switch(name=name, kind="atm") for name in names],
        nodes=[Node(name=node) for node, _ in nodes],
        links=[
            *[Link(ends=(name, second)) for name, second in zip(names, [*names[1:], names[0]], strict=True)],
            *[Link(ends=ends) for ends in nodes],
        ],
    )


def test_cells_take_a_shortest_path_between_all_nodes_of_a_ring() -> None:
    plug = CellPlug()
    with Simulation(ring(), plug) as simulation:
        nodes = list(simulation.nodes.values())
        for source in nodes:
            for destination in nodes:
                start_time = simulation.now()
                source.nic.ring_doorbell(destination.number, 0, 0)
                simulation.run_until(start_time + 10 * CELL_TIME)
                cells = plug.firmwares[destination.number].cells
                (time, frame) = cells.pop()
                assert not cells
                assert frame[-1] == source.number
                distance = abs(source.number // 2 - destination.number // 2)
                switches = min(distance, 6 - distance) + 1
                assert time - start_time == pytest.approx((switches + 1) * CELL_TIME, abs=8)
        assert all(not any(counters.values()) for counters in simulation.network.switch_counters.values())


def test_a_full_output_fifo_leaves_cells_in_the_nic_until_the_fibre_has_sent_one() -> None:
    """Section 3.2 of the SSAM paper: the SBA-100's output FIFO has 36 cells. One more is being sent."""
    plug, offered = CellPlug(), 100
    with Simulation(load("ssam-1995").description, plug) as simulation:
        for _ in range(offered):
            simulation.nodes["n1"].nic.ring_doorbell(1, 0, 0)
        simulation.run_until(simulation.now() + 1)
        fibre = simulation.network.link_directions["n1:eth0--n2:eth0", "forward"]
        assert fibre.counters.blocked
        assert fibre.counters.offered == 37
        simulation.run_until(simulation.now() + (offered + 1) * 55 * 8 * 1_000_000_000 // 140_000_000)
        times = [time for time, _ in plug.firmwares[1].cells]
        assert len(times) == offered, "a full FIFO loses nothing"
        assert {later - earlier for earlier, later in pairwise(times)} <= {3_142, 3_143}
        assert fibre.counters.dropped == 0


@pytest.mark.parametrize("topology", ["ssam-1995", "ssam-1995-switch"])
def test_a_protocol_without_cells_is_rejected_on_an_atm_network(topology: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="node n1 is ATM, which forwards by cells: frames of this protocol"):
        testbed.run(load(topology).description, "pingpong", mode="sim", output=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    fabrics_of = {protocol.name: protocol.fabrics for protocol in offered_protocols()}
    assert "atm" not in fabrics_of["emp"] + fabrics_of["am2"] + fabrics_of["tcp"]


def test_jitter_on_an_atm_link_is_a_description_error() -> None:
    with pytest.raises(DescriptionError, match=r"jitter on a link of kind atm.*keeps the order of its cells"):
        Cluster.star(2, kind="atm", delay="5us", jitter="1us")

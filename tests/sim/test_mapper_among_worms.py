"""Mappers on the wire model of Myrinet: worms occupy several switches, wait for each other, and may deadlock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

import pytest

from protocols.myrinet.mapper.mapper import Mapper, MapperIdentity
from protocols.myrinet.mapper.settings import MILLISECOND, SECOND, Settings
from testbed.fabric.myrinet.switch import SWALLOWED, TRUNCATED
from tests.unit.fabric.myrinet_networks import MyrinetNetwork
from tests.unit.protocols.mapper_networks import Cable, End, Myrinet, address, fat_tree, random_network, ring, torus

SHAPES: dict[str, list[Cable]] = {
    "back to back": [((0, 0), (1, 0))],
    "ring": ring(4, 2),
    "torus": torus(3, 2),
    "fat tree": fat_tree(),
    "random": random_network(5, max_nodes=12),
}


def wire_port(attachment: End) -> tuple[str, int]:
    """Return a port with the wire model's number: ports of switches count from 1, a NIC's is 0."""
    node, port = attachment
    return (f"n{node}", 0) if isinstance(node, int) else (node, port + 1)


class MapperRun:
    """A mapper for each NIC of a Myrinet network."""

    def __init__(self, cables: Iterable[Cable], settings: Settings) -> None:
        self.topology = Myrinet(cables, leaders=[])
        self.net = MyrinetNetwork([(wire_port(first), wire_port(second)) for first, second in self.topology.cables])
        self.now = 0
        self._received: list[tuple[int, bytes]] = []
        for number in list(self.topology.mappers):
            self._start_mapper(number, settings)

    def _start_mapper(self, number: int, settings: Settings) -> None:
        mapper = self.topology.mappers[number] = Mapper(
            MapperIdentity(number, 1, address(number)),
            lambda frame: self.net.send(self.now, f"n{number}", frame),
            lambda table: self.topology.tables.__setitem__(number, table),
            settings,
        )
        for (_, end), channel in self.net.channels.items():
            if end == (f"n{number}", 0):
                channel.receive = lambda _, frame: self._received.append((number, frame))
        mapper.start(0)

    def run(self, deadline: int, until: Callable[[], bool]) -> bool:
        last_check = 0
        while self.now < deadline:
            deadlines = [mapper.deadline for mapper in self.topology.mappers.values()]
            self.now = max(self.now, min(time for time in (*deadlines, self.net.network.deadline) if time is not None))
            self.net.network.poll(self.now)
            while self._received:
                number, frame = self._received.pop(0)
                self.topology.mappers[number].receive(self.now, frame)
            for mapper in self.topology.mappers.values():
                if mapper.deadline is not None and mapper.deadline <= self.now:
                    mapper.on_timer(self.now)
            if self.now - last_check >= 10 * MILLISECOND:
                last_check = self.now
                if until():
                    return True
        return until()


@pytest.mark.parametrize("shape", SHAPES)
def test_mappers_that_start_simultaneously_agree_on_the_map_despite_blocked_probes(
    shape: str, record_property: Callable[[str, object], None]
) -> None:
    mappers = MapperRun(SHAPES[shape], Settings(stagger=1))
    assert mappers.run(5 * SECOND, lambda: mappers.topology.is_mapped(mappers.topology.mappers))
    assert not mappers.topology.deadlock()
    causes = Counter(cause for _, _, _, cause in mappers.net.dropped)
    lost_worms = causes[TRUNCATED] + causes[SWALLOWED]
    record_property(
        "note", f"mapping among worms, {shape}: {mappers.now // MILLISECOND} ms, {lost_worms} given up by switches"
    )

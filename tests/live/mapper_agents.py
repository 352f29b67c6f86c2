"""NICs that run only a mapper with its own number and address, and a check of the computed routes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from protocols.core.firmware import Adapter, Agent, Nic
from protocols.myrinet.mapper.mapper import Mapper, MapperIdentity
from protocols.myrinet.mapper.route_tables import Table
from protocols.myrinet.mapper.settings import MILLISECOND, SECOND, Settings
from testbed.fabric.myrinet.route import port_delta
from testbed.runtime.nodes.run_orders import ProgramNode
from testbed.spec.layout import End, Layout

LIVE = Settings(
    timeout=100 * MILLISECOND,
    interval=200_000,
    window=32,
    watch=200 * MILLISECOND,
    patience=3 * SECOND,
    stagger=100 * MILLISECOND,
)
"""Settings for real interfaces on a busy machine: a probe's reply may be tens of milliseconds late."""


class MapperFirmware:
    def __init__(self, adapter: Adapter, nic: Nic) -> None:
        assert adapter.routed
        identity = MapperIdentity(adapter.number, adapter.incarnation, adapter.address)
        self.mapper = Mapper(identity, nic.send, lambda _: None, LIVE)
        self._started = False

    @property
    def deadline(self) -> int | None:
        return self.mapper.deadline if self._started else 1

    def receive(self, now: int, frame: bytes) -> None:
        self._ensure_started(now)
        self.mapper.receive(now, frame)

    def on_timer(self, now: int) -> None:
        self._ensure_started(now)
        deadline = self.mapper.deadline
        if deadline is not None and deadline <= now:
            self.mapper.on_timer(now)

    def _ensure_started(self, now: int) -> None:
        if not self._started:
            self._started = True
            self.mapper.start(now)

    def on_doorbell(self, _now: int, _index: int) -> None:
        raise AssertionError("the host rings no doorbell")

    def counter_values(self) -> Mapping[str, int]:
        return self.mapper.counter_values()

    def pending_work(self) -> list[str]:
        return []


@dataclass
class MapperHost:
    mapper: Mapper

    def on_completion(self, _index: int) -> None:
        raise AssertionError("the firmware posts no completion")

    def pending_work(self) -> list[str]:
        return []


def plug(adapter: Adapter, nic: Nic) -> Agent:
    firmware = MapperFirmware(adapter, nic)
    return Agent(firmware, MapperHost(firmware.mapper))


async def publish_routes(host: MapperHost, node: ProgramNode, folder: Path) -> dict[str, int]:
    """Keep a file with the NIC's routes until a file named stop appears; the leader also writes the network's map."""
    report: Table | None = None
    while not (folder / "stop").exists():
        table = host.mapper.table
        if table is not report and table is not None:
            report = table
            draft = folder / f".{node.number}"
            draft.write_text(json.dumps({number: path.route.hex() for number, path in table.paths.items()}))
            os.replace(draft, folder / str(node.number))
        await node.loop.sleep(20 * MILLISECOND)
    topology = host.mapper.topology
    return {} if topology is None else {"hosts": len(topology.hosts), "switches": len(topology.ends)}


def routes_are_complete(layout: Layout, folder: Path, cut: str = "") -> bool:
    """Return whether every NIC has a route to every other one that does not use the cut cable."""
    beyond = {end: far_end for link in layout.links if link.name != cut for end, far_end in _directions(link.a, link.b)}
    numbers = {End(node.name, node.nics[0].name): number for number, node in enumerate(layout.nodes)}
    for source, number in numbers.items():
        try:
            routes = json.loads((folder / str(number)).read_text())
        except FileNotFoundError:
            return False
        others = {str(other) for other in numbers.values() if other != number}
        if not others <= routes.keys():
            return False
        for other in others:
            at: End | None = beyond.get(source)
            for byte in bytes.fromhex(routes[other]):
                at = at and beyond.get(End(at.owner, str(int(at.port) + port_delta(byte))))
            if at is None or numbers.get(at) != int(other):
                return False
    return True


def _directions(a: End, b: End) -> tuple[tuple[End, End], tuple[End, End]]:
    return (a, b), (b, a)

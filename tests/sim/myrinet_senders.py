"""NICs that send numbered frames through a Myrinet network, and the routes along which they do."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from protocols.core.firmware import Adapter, Agent, Nic
from testbed.fabric.myrinet.route import append_crc, is_intact, route_byte
from testbed.spec.layout import End, Layout

ETHERTYPE = bytes.fromhex("88b6")
TYPE = b"\0\4"

Routes = Mapping[tuple[str, str], bytes]
"""From a node to another."""


def tree_routes(layout: Layout) -> Routes:
    """Along one spanning tree of the switches, so that no frames can wait for each other in a circle."""
    beyond = {end: second for link in layout.links for end, second in ((link.a, link.b), (link.b, link.a))}
    switches = {switch.name for switch in layout.switches}
    tree: dict[str, dict[str, End]] = {name: {} for name in switches}
    seen, todo = {layout.switches[0].name}, deque([layout.switches[0].name])
    while todo:
        name = todo.popleft()
        for end, second in beyond.items():
            if end.owner == name and second.owner in switches and second.owner not in seen:
                seen.add(second.owner)
                todo.append(second.owner)
                tree[name][second.owner], tree[second.owner][name] = end, second
    nics = {node.name: End(node.name, node.nics[0].name) for node in layout.nodes}
    return {
        (source, destination): _route(tree, beyond, nics[source], nics[destination])
        for source in nics
        for destination in nics
        if source != destination
    }


def _route(tree: Mapping[str, Mapping[str, End]], beyond: Mapping[End, End], source: End, destination: End) -> bytes:
    first, last = beyond[source], beyond[destination]
    before = {first.owner: ""}
    todo = deque([first.owner])
    while last.owner not in before:
        name = todo.popleft()
        for other in tree[name]:
            if other not in before:
                before[other] = name
                todo.append(other)
    path = [last.owner]
    while before[path[-1]]:
        path.append(before[path[-1]])
    route, at = [], first
    for name, following in zip(path[::-1], path[-2::-1], strict=False):
        out = tree[name][following]
        route.append(int(out.port) - int(at.port))
        at = beyond[out]
    route.append(int(last.port) - int(at.port))
    return bytes(map(route_byte, route))


class MyrinetSender:
    """Firmware that sends a numbered frame to peer n when its host rings n."""

    deadline: int | None = None

    def __init__(self, adapter: Adapter, nic: Nic, plug: MyrinetSenderPlug) -> None:
        self._adapter = adapter
        self._nic = nic
        self._plug = plug
        self._sent = 0
        self.came: list[tuple[int, int, int]] = []
        """When, from which node, which of its frames."""
        self.broken: list[bytes] = []

    def receive(self, now: int, frame: bytes) -> None:
        if not is_intact(frame) or frame[14:16] != TYPE:
            self.broken.append(frame)
            return
        self.came.append((now, int.from_bytes(frame[16:18], "big"), int.from_bytes(frame[18:20], "big")))

    def on_doorbell(self, now: int, index: int) -> None:  # noqa: ARG002
        adapter, names = self._adapter, self._plug.names
        self._sent += 1
        route = self._plug.routes[names[adapter.number], names[index]]
        payload = adapter.number.to_bytes(2, "big") + self._sent.to_bytes(2, "big") + bytes(self._plug.size - 4)
        head = adapter.addresses[index] + adapter.address + ETHERTYPE
        self._nic.send(append_crc(head, route + TYPE + payload))

    def on_timer(self, now: int) -> None:  # noqa: ARG002
        raise AssertionError("it has no deadline")

    def counter_values(self) -> Mapping[str, int]:
        return {"received": len(self.came)}

    def pending_work(self) -> list[str]:
        return []


class _Nobody:
    def on_completion(self, index: int) -> None:  # noqa: ARG002
        raise AssertionError("it shows nothing")

    def pending_work(self) -> list[str]:
        return []


class MyrinetSenderPlug:
    """size: bytes that each frame carries."""

    def __init__(self, layout: Layout, size: int = 1000) -> None:
        self.names = [node.name for node in layout.nodes]
        self.routes = tree_routes(layout)
        self.size = size
        self.couriers: list[MyrinetSender] = []

    def __call__(self, adapter: Adapter, nic: Nic) -> Agent:
        courier = MyrinetSender(adapter, nic, self)
        self.couriers.append(courier)
        return Agent(courier, _Nobody())

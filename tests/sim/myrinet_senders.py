"""NICs that send numbered frames through a Myrinet network, and their routes."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from protocols.core.firmware import Adapter, Agent, Nic
from testbed.fabric.myrinet.route import append_crc, is_intact, route_byte
from testbed.spec.layout import End, Layout

ETHERTYPE = bytes.fromhex("88b6")
TYPE = b"\0\4"

Routes = Mapping[tuple[str, str], bytes]
"""Routes by the names of the source and the destination node."""


def tree_routes(layout: Layout) -> Routes:
    """Return the routes along one spanning tree of the switches, on which no deadlock is possible."""
    peer_ends = {end: second for link in layout.links for end, second in ((link.a, link.b), (link.b, link.a))}
    switches = {switch.name for switch in layout.switches}
    tree: dict[str, dict[str, End]] = {name: {} for name in switches}
    reached, to_visit = {layout.switches[0].name}, deque([layout.switches[0].name])
    while to_visit:
        name = to_visit.popleft()
        for end, second in peer_ends.items():
            if end.owner == name and second.owner in switches and second.owner not in reached:
                reached.add(second.owner)
                to_visit.append(second.owner)
                tree[name][second.owner], tree[second.owner][name] = end, second
    nics = {node.name: End(node.name, node.nics[0].name) for node in layout.nodes}
    return {
        (source, destination): _route(tree, peer_ends, nics[source], nics[destination])
        for source in nics
        for destination in nics
        if source != destination
    }


def _route(tree: Mapping[str, Mapping[str, End]], peer_ends: Mapping[End, End], source: End, destination: End) -> bytes:
    first, last = peer_ends[source], peer_ends[destination]
    previous = {first.owner: ""}
    to_visit = deque([first.owner])
    while last.owner not in previous:
        name = to_visit.popleft()
        for neighbour in tree[name]:
            if neighbour not in previous:
                previous[neighbour] = name
                to_visit.append(neighbour)
    path = [last.owner]
    while previous[path[-1]]:
        path.append(previous[path[-1]])
    route, end = [], first
    for name, following in zip(path[::-1], path[-2::-1], strict=False):
        out_end = tree[name][following]
        route.append(int(out_end.port) - int(end.port))
        end = peer_ends[out_end]
    route.append(int(last.port) - int(end.port))
    return bytes(map(route_byte, route))


class MyrinetSender:
    """Firmware that sends a numbered frame to peer n when its host rings n."""

    deadline: int | None = None

    def __init__(self, adapter: Adapter, nic: Nic, plug: MyrinetSenderPlug) -> None:
        self._adapter = adapter
        self._nic = nic
        self._plug = plug
        self._sent = 0
        self.arrivals: list[tuple[int, int, int]] = []
        """Time, number of the source node, and sequence number of each frame."""
        self.invalid: list[bytes] = []

    def receive(self, now: int, frame: bytes) -> None:
        if not is_intact(frame) or frame[14:16] != TYPE:
            self.invalid.append(frame)
            return
        self.arrivals.append((now, int.from_bytes(frame[16:18], "big"), int.from_bytes(frame[18:20], "big")))

    def on_doorbell(self, now: int, index: int) -> None:  # noqa: ARG002
        adapter, names = self._adapter, self._plug.names
        self._sent += 1
        route = self._plug.routes[names[adapter.number], names[index]]
        payload = adapter.number.to_bytes(2, "big") + self._sent.to_bytes(2, "big") + bytes(self._plug.size - 4)
        head = adapter.addresses[index] + adapter.address + ETHERTYPE
        self._nic.send(append_crc(head, route + TYPE + payload))

    def on_timer(self, now: int) -> None:  # noqa: ARG002
        raise AssertionError("firmware without a deadline")

    def counter_values(self) -> Mapping[str, int]:
        return {"received": len(self.arrivals)}

    def pending_work(self) -> list[str]:
        return []


class _NullHost:
    def on_completion(self, index: int) -> None:  # noqa: ARG002
        raise AssertionError("firmware without completions")

    def pending_work(self) -> list[str]:
        return []


class MyrinetSenderPlug:
    """Builds the NICs' agents. size: bytes of each frame's payload."""

    def __init__(self, layout: Layout, size: int = 1000) -> None:
        self.names = [node.name for node in layout.nodes]
        self.routes = tree_routes(layout)
        self.size = size
        self.senders: list[MyrinetSender] = []

    def __call__(self, adapter: Adapter, nic: Nic) -> Agent:
        sender = MyrinetSender(adapter, nic, self)
        self.senders.append(sender)
        return Agent(sender, _NullHost())

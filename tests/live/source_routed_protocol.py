"""A minimal protocol for source-routed networks: numbered frames along given routes.

A frame: Ethernet header, route, packet type, sender's number (2 bytes), the frame's number (4), padding, CRC-8.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from protocols.core.completion import Completion
from protocols.core.firmware import Adapter, Agent, Nic
from testbed.fabric.myrinet.route import append_crc, is_intact, route_byte
from testbed.runtime.nodes.run_orders import ProgramNode
from testbed.spec.layout import Layout
from tests.sim.myrinet_senders import Routes, tree_routes

ETHERTYPE = 0x88B6  # IEEE 802 local experimental EtherType 2
TYPE = b"\0\4"
_ETHERTYPE = ETHERTYPE.to_bytes(2, "big")
_MIN_SIZE = 6  # bytes: sender, number


class SourceRouteFirmware:
    deadline: int | None = None

    def __init__(self, adapter: Adapter, nic: Nic, names: Sequence[str], routes: Routes) -> None:
        self.send_requests: list[tuple[bytes, int, int]] = []
        """Send requests for the next doorbell: route, number of frames, bytes per frame."""
        self.came: list[tuple[int, int]] = []
        """(Sender, frame number) of each received frame."""
        self.broken: list[bytes] = []
        self.wanted = 0
        self.routes = routes
        self.names = names
        self.adapter = adapter
        self._nic = nic
        self._sent = 0

    def receive(self, _now: int, frame: bytes) -> None:
        if (
            frame[12:14] != _ETHERTYPE
        ):  # with a corrupted EtherType, no process in namespaces receives it; the CRC-8 does not cover the EtherType
            return
        if is_intact(frame) and frame[14:16] == TYPE:
            self.came.append((int.from_bytes(frame[16:18], "big"), int.from_bytes(frame[18:22], "big")))
        else:
            self.broken.append(frame)
        if len(self.came) + len(self.broken) == self.wanted:
            self._nic.post_completion(0)

    def on_doorbell(self, _now: int, _index: int) -> None:
        adapter = self.adapter
        head = b"\xff" * 6 + adapter.address + _ETHERTYPE
        requests, self.send_requests = self.send_requests, []
        for route, count, size in requests:
            for _ in range(count):
                self._sent += 1
                payload = adapter.number.to_bytes(2, "big") + self._sent.to_bytes(4, "big")
                self._nic.send(append_crc(head, route + TYPE + payload.ljust(size, b"\x55")))

    def on_timer(self, _now: int) -> None:
        raise AssertionError("the firmware sets no deadline")

    def counter_values(self) -> Mapping[str, int]:
        return {"sent": self._sent, "received": len(self.came), "broken": len(self.broken)}

    def pending_work(self) -> list[str]:
        return []


class SourceRouteEndpoint:
    def __init__(self, nic: Nic, firmware: SourceRouteFirmware) -> None:
        self.firmware = firmware
        self._nic = nic
        self._waiting: Completion[None] | None = None

    def send(self, destination: str, count: int = 1, size: int = _MIN_SIZE) -> None:
        """Send `count` frames with `size` bytes after the packet type, back to back."""
        firmware = self.firmware
        self.send_along(firmware.routes[firmware.names[firmware.adapter.number], destination], count, size)

    def send_along(self, route: bytes, count: int = 1, size: int = _MIN_SIZE) -> None:
        self.firmware.send_requests.append((route, count, size))
        self._nic.ring_doorbell(1, size, 0)

    def frames(self, count: int) -> Completion[None]:
        """Wait until a total of `count` frames has arrived."""
        self._waiting = Completion[None](f"{count} frames")
        self.firmware.wanted = count
        if len(self.firmware.came) + len(self.firmware.broken) >= count:
            self._waiting.complete(None)
        return self._waiting

    def on_completion(self, _index: int) -> None:
        if self._waiting is not None and not self._waiting.done:
            self._waiting.complete(None)

    def pending_work(self) -> list[str]:
        return [self._waiting.what] if self._waiting is not None else []


class SourceRoutePlug:
    def __init__(self, layout: Layout) -> None:
        self._names = [node.name for node in layout.nodes]
        self._routes = tree_routes(layout)

    def __call__(self, adapter: Adapter, nic: Nic) -> Agent:
        assert adapter.routed
        firmware = SourceRouteFirmware(adapter, nic, self._names, self._routes)
        return Agent(firmware, SourceRouteEndpoint(nic, firmware))


def relative_route(*offsets: int) -> bytes:
    """Return a route of port offsets, one per switch."""
    return bytes(map(route_byte, offsets))


async def silent(_endpoint: SourceRouteEndpoint, node: ProgramNode) -> int:
    return node.number

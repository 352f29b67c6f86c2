"""Load on links in the simulation: senders of traffic, and a sink at the receiver.

As in namespaces (`testbed.cluster.faults.background_load`), datagrams go to UDP's discard service (RFC 863) and never reach
a NIC's firmware.
"""

from __future__ import annotations

import ipaddress
from typing import Final

from testbed.engine.loop import Loop
from testbed.sim.network import Network
from testbed.sim.sim_direction import SimDirection
from testbed.sim.sim_host import SimHost
from testbed.spec.layout import End, Node

_SECOND: Final = 1_000_000_000
_FRAME_SIZE: Final = 1514  # bytes of a full Ethernet frame
_HEADERS_SIZE: Final = 42  # bytes of Ethernet, IPv4 and UDP headers
_DISCARD_PORT: Final = 9
_IPV4_ETHERTYPE: Final = b"\x08\x00"


class TrafficSender:
    """Sender of a frame at a constant rate. rate: bit/s. sent: number of frames."""

    __slots__ = ("_frame", "_interval", "_link_direction", "_loop", "_running", "sent")

    def __init__(self, loop: Loop, link_direction: SimDirection, frame: bytes, rate: int) -> None:
        self._loop = loop
        self._link_direction = link_direction
        self._frame = frame
        self._interval = max(1, len(frame) * 8 * _SECOND // rate)
        self._running = True
        self.sent = 0
        self._send(loop.now())

    def stop(self) -> None:
        self._running = False

    def _send(self, now: int) -> None:
        if self._running:
            self.sent += 1
            self._link_direction.enter(now, self._frame)
            self._loop.at(now + self._interval, self._send)


class Sink:
    """Receiver in front of a NIC that discards IPv4 frames and passes others on. discarded: number of frames."""

    __slots__ = ("_end", "_network", "_node", "discarded")

    def __init__(self, network: Network, end: End, node: SimHost) -> None:
        self._network = network
        self._end = end
        self._node = node
        self.discarded = 0

    def listen(self) -> None:
        """Receive the frames of the NIC. Must be called again after a restart of the NIC."""
        self._network.set_receiver(self._end, self._receive)

    def _receive(self, now: int, frame: bytes) -> None:
        if frame[12:14] == _IPV4_ETHERTYPE:
            self.discarded += 1
        else:
            self._node.receive(now, frame)


def datagram(sender: Node, receiver: Node) -> bytes:
    """Build a full frame to the receiver's discard service, from first NIC to first NIC. Checksums are not verified."""
    size = min(_FRAME_SIZE, sender.nics[0].mtu + 14, receiver.nics[0].mtu + 14)
    macs = [bytes.fromhex(node.nics[0].mac.replace(":", "")) for node in (receiver, sender)]
    addresses = [_ipv4(node.address) for node in (sender, receiver)]
    ip = b"\x45\x00" + (size - 14).to_bytes(2, "big") + bytes(4) + b"\x40\x11\x00\x00" + b"".join(addresses)
    udp = _DISCARD_PORT.to_bytes(2, "big") * 2 + (size - 34).to_bytes(2, "big") + bytes(2)
    return b"".join([*macs, _IPV4_ETHERTYPE, ip, udp, bytes(size - _HEADERS_SIZE)])


def _ipv4(address: str) -> bytes:
    return bytes(4) if not address or ":" in address else ipaddress.IPv4Address(address).packed

"""Contention in the simulation: who fills a node's links, and who takes what comes of that.

As in namespaces (`testbed.cluster.contention`): datagrams go to UDP's discard service (RFC 863) and never come to a NIC's
firmware.
"""

from __future__ import annotations

import ipaddress
from typing import Final

from testbed.engine.loop import Loop
from testbed.sim.myrinet import AnyWay
from testbed.sim.node import SimNode
from testbed.spec.layout import Node

_SECOND: Final = 1_000_000_000
_FRAME: Final = 1514  # bytes of a full Ethernet frame
_HEADERS: Final = 42  # bytes of Ethernet, IPv4 and UDP
_DISCARD: Final = 9
_MARK: Final = b"\x08\x00"  # IPv4's EtherType


class Talker:
    """Sends one frame again and again. rate: bit/s. sent: frames."""

    __slots__ = ("_each", "_frame", "_goes_on", "_loop", "_way", "sent")

    def __init__(self, loop: Loop, way: AnyWay, frame: bytes, rate: int) -> None:
        self._loop = loop
        self._way = way
        self._frame = frame
        self._each = max(1, len(frame) * 8 * _SECOND // rate)
        self._goes_on = True
        self.sent = 0
        self._send(loop.now())

    def stop(self) -> None:
        self._goes_on = False

    def _send(self, now: int) -> None:
        if self._goes_on:
            self.sent += 1
            self._way.enter(now, self._frame)
            self._loop.at(now + self._each, self._send)


class Sink:
    """Stands before a NIC and takes datagrams to the discard service. taken: how many."""

    __slots__ = ("_node", "_way", "taken")

    def __init__(self, way: AnyWay, node: SimNode) -> None:
        self._way = way
        self._node = node
        self.taken = 0

    def listen(self) -> None:
        """Again, after the NIC has started again."""
        self._way.lead_to(self._receive)

    def _receive(self, now: int, frame: bytes) -> None:
        if frame[12:14] == _MARK:
            self.taken += 1
        else:
            self._node.nic.receive(now, frame)


def datagram(sender: Node, receiver: Node) -> bytes:
    """A full frame for the receiver's discard service, from first NIC to first NIC. Nobody looks at checksums."""
    size = min(_FRAME, sender.nics[0].mtu + 14, receiver.nics[0].mtu + 14)
    macs = [bytes.fromhex(node.nics[0].mac.replace(":", "")) for node in (receiver, sender)]
    addresses = [_ipv4(node.address) for node in (sender, receiver)]
    ip = b"\x45\x00" + (size - 14).to_bytes(2, "big") + bytes(4) + b"\x40\x11\x00\x00" + b"".join(addresses)
    udp = _DISCARD.to_bytes(2, "big") * 2 + (size - 34).to_bytes(2, "big") + bytes(2)
    return b"".join([*macs, _MARK, ip, udp, bytes(size - _HEADERS)])


def _ipv4(address: str) -> bytes:
    return bytes(4) if not address or ":" in address else ipaddress.IPv4Address(address).packed

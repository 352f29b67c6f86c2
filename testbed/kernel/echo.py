"""Round trips of a network between machines, measured by ICMP echo: it needs nobody who listens, and CAP_NET_RAW."""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from typing import Final

_ECHO: Final = struct.Struct("!BBHHHQ")  # type, code, checksum, identifier, sequence, token
_REQUEST_4, _REPLY_4, _REQUEST_6, _REPLY_6 = 8, 0, 128, 129  # RFC 792, RFC 4443
_SHORTEST_IPV4_HEADER: Final = 20


def round_trips(source: str, destination: str, count: int, timeout: float) -> list[int]:
    """Send `count` echo requests from one address to another, each after the reply to the one before; return the round trips
    of those that were answered within `timeout` seconds, in ns. OSError, also if nobody has the destination's address."""
    version = socket.AF_INET6 if ":" in destination else socket.AF_INET
    protocol = socket.IPPROTO_ICMPV6 if version == socket.AF_INET6 else socket.IPPROTO_ICMP
    token = int.from_bytes(os.urandom(8), "big")
    found = []
    with socket.socket(version, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol) as line:
        line.bind((source, 0))
        line.connect((destination, 0))
        for sequence in range(count):
            begun = time.monotonic_ns()
            line.send(_request(version, sequence, token))
            if _is_answered(line, version, sequence, token, begun + round(timeout * 1e9)):
                found.append(time.monotonic_ns() - begun)
    return found


def _request(version: int, sequence: int, token: int) -> bytes:
    kind = _REQUEST_6 if version == socket.AF_INET6 else _REQUEST_4
    identifier = os.getpid() & 0xFFFF
    packed = _ECHO.pack(kind, 0, 0, identifier, sequence, token)
    checksum = 0 if version == socket.AF_INET6 else _checksum(packed)  # of ICMPv6 the kernel computes it
    return _ECHO.pack(kind, 0, checksum, identifier, sequence, token)


def _is_answered(line: socket.socket, version: int, sequence: int, token: int, deadline: int) -> bool:
    """Wait for the reply. The socket gets all of ICMP that comes from there."""
    while (left := deadline - time.monotonic_ns()) > 0:
        if not select.select([line], [], [], left / 1e9)[0]:
            return False
        packet = line.recv(2048)
        if version == socket.AF_INET:
            packet = packet[max((packet[0] & 0x0F) * 4, _SHORTEST_IPV4_HEADER) :]
        if len(packet) < _ECHO.size:
            continue
        kind, _, _, _, number, answered = _ECHO.unpack_from(packet)
        if kind in (_REPLY_4, _REPLY_6) and (number, answered) == (sequence, token):
            return True
    return False


def _checksum(packet: bytes) -> int:
    """The Internet checksum (RFC 1071) of an even number of bytes."""
    total: int = sum(struct.unpack(f"!{len(packet) // 2}H", packet))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF

"""Round-trip times of the network between machines, measured by ICMP echo. Needs CAP_NET_RAW, and no server at the peer."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import time
from collections.abc import Sequence
from typing import Final

REPLY_TIMEOUT: Final = 1.0
"""Seconds after which a request of `round_trips_to_each` counts as unanswered."""

_ECHO: Final = struct.Struct("!BBHHHQ")  # type, code, checksum, identifier, sequence, token
_REQUEST_4, _REPLY_4, _REQUEST_6, _REPLY_6 = 8, 0, 128, 129  # RFC 792, RFC 4443
_MIN_IPV4_HEADER: Final = 20
_SEQUENCE_COUNT: Final = 1 << 16


class EchoSocket:
    """Socket for echo requests from one address to another, and for the replies. The descriptor becomes readable when
    any ICMP packet from the destination arrives. A context manager."""

    def __init__(self, source: str, destination: str) -> None:
        """Open the socket. Raises OSError, as for a source address that this machine does not have."""
        self._family = socket.AF_INET6 if ":" in destination else socket.AF_INET
        protocol = socket.IPPROTO_ICMPV6 if self._family == socket.AF_INET6 else socket.IPPROTO_ICMP
        self._token = int.from_bytes(os.urandom(8), "big")
        self._socket = socket.socket(
            self._family, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, protocol
        )
        try:
            self._socket.bind((source, 0))
            self._socket.connect((destination, 0))
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> EchoSocket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def send(self, sequence: int) -> None:
        """Send a request. sequence: 0 to 65,535. Raises OSError, as for a destination address that no machine has."""
        kind = _REQUEST_6 if self._family == socket.AF_INET6 else _REQUEST_4
        identifier = os.getpid() & 0xFFFF
        packed = _ECHO.pack(kind, 0, 0, identifier, sequence, self._token)
        checksum = 0 if self._family == socket.AF_INET6 else _checksum(packed)  # the kernel computes that of ICMPv6
        self._socket.send(_ECHO.pack(kind, 0, checksum, identifier, sequence, self._token))

    def receive(self) -> int | None:
        """Return the sequence number of the next reply; None if none is pending. Raises OSError, as for a destination
        address that no machine has."""
        while True:
            try:
                packet = self._socket.recv(2048)
            except BlockingIOError:
                return None
            if self._family == socket.AF_INET:
                packet = packet[max((packet[0] & 0x0F) * 4, _MIN_IPV4_HEADER) :]
            if len(packet) < _ECHO.size:
                continue
            kind, _, _, _, sequence, token = _ECHO.unpack_from(packet)
            if kind in (_REPLY_4, _REPLY_6) and token == self._token:
                return int(sequence)


def round_trips(source: str, destination: str, count: int, reply_timeout: float) -> list[int]:
    """Send `count` echo requests from one address to another, each after the previous reply; return the round-trip times of
    those answered within `reply_timeout` seconds, in ns. Raises the errors of `EchoSocket`."""
    round_trip_times = []
    with EchoSocket(source, destination) as echo_socket:
        for sequence in range(count):
            start = time.monotonic_ns()
            echo_socket.send(sequence % _SEQUENCE_COUNT)
            if _is_answered(echo_socket, sequence % _SEQUENCE_COUNT, start + round(reply_timeout * 1e9)):
                round_trip_times.append(time.monotonic_ns() - start)
    return round_trip_times


def round_trips_to_each(source: str, destinations: Sequence[str], counts: Sequence[int]) -> dict[str, list[int]]:
    """Measure round trips to each destination, see `round_trips`. The list of an unreachable destination is empty.

    counts: lengths of consecutive series of requests. A series is sent only if an earlier one had a reply.
    """
    trips_by_destination: dict[str, list[int]] = {destination: [] for destination in destinations}
    for destination, times in trips_by_destination.items():
        with contextlib.suppress(OSError):  # no machine has the address at present
            for count in counts:
                times += round_trips(source, destination, count, REPLY_TIMEOUT)
                if not times:
                    break
    return trips_by_destination


def _is_answered(echo_socket: EchoSocket, sequence: int, deadline: int) -> bool:
    """Wait for the reply to a request; return whether it arrived before the deadline (monotonic nanoseconds)."""
    readable = select.poll()
    readable.register(echo_socket, select.POLLIN)
    while (remaining := deadline - time.monotonic_ns()) > 0:
        if not readable.poll(remaining / 1e6):
            return False
        if echo_socket.receive() == sequence:
            return True
    return False


def _checksum(packet: bytes) -> int:
    """Return the Internet checksum (RFC 1071) of an even number of bytes."""
    total: int = sum(struct.unpack(f"!{len(packet) // 2}H", packet))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF

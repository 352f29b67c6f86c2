"""TCP connections between all nodes. A message on them is a header, which contains the length, and the payload.

Higher ranks connect to lower ones. The kernel completes incoming connections while a node still makes its own, so that nodes
do not wait for each other in a cycle.
"""

from __future__ import annotations

import errno
import socket
import struct
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

from protocols.mpi.device import SendCompletion
from protocols.mpi.matching import Arrival, MatchingQueues
from protocols.mpi.mpi_errors import Envelope, MPIError
from testbed.engine.loop import Loop
from testbed.errors import TestbedError

PORT: Final = 7117
TIMEOUT: Final = 30.0
"""Seconds within which all connections must be made."""

HEADER: Final = struct.Struct("!IIQ")  # context, tag, bytes of the payload
_RANK: Final = struct.Struct("!I")
_RETRY_INTERVAL: Final = 2_000_000  # ns until the next attempt to connect to a node that does not listen yet
_MAX_DISCARDED: Final = 65_536  # bytes to discard at a time, of a message that is too long for its receive
_RETRIED_ERRORS: Final = (errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT)


class Connection:
    """A non-blocking connection to one peer, with the messages that are being sent and received."""

    __slots__ = ("_arrival", "_excess", "_filled", "_header", "_matching", "_unsent", "_view", "peer", "socket")

    def __init__(self, peer: int, tcp_socket: socket.socket, matching: MatchingQueues) -> None:
        tcp_socket.setblocking(False)
        tcp_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.peer = peer
        self.socket = tcp_socket
        self._matching = matching
        self._unsent: deque[tuple[memoryview, SendCompletion | None, Envelope]] = deque()
        self._header = memoryview(bytearray(HEADER.size))
        self._view = self._header  # memory for the next bytes
        self._filled = 0
        self._arrival: Arrival | None = None
        self._excess = 0  # bytes by which the message exceeds the buffer of its receive

    @property
    def unsent_buffers(self) -> int:
        """Number of buffers that the kernel has not accepted completely."""
        return len(self._unsent)

    def send(self, header: bytes, data: memoryview, completion: SendCompletion, envelope: Envelope) -> bool:
        """Send a message as far as the kernel accepts it; return whether it has accepted everything. If not,
        `continue_sending` returns `completion` later. Raises OSError."""
        if self._unsent:
            sent = 0
        else:
            try:
                sent = self.socket.sendmsg((header, data))
            except BlockingIOError:
                sent = 0
        if sent == len(header) + len(data):
            return True
        if sent < len(header):
            self._unsent.append((memoryview(header)[sent:], None, envelope))
            sent = len(header)
        self._unsent.append((data[sent - len(header) :], completion, envelope))
        return False

    def continue_sending(self) -> list[tuple[SendCompletion, Envelope]]:
        """Continue to send; return the sends that are complete now. Raises OSError."""
        completed_sends = []
        unsent = self._unsent
        while unsent:
            view, completion, envelope = unsent[0]
            try:
                sent = self.socket.send(view) if view else 0
            except BlockingIOError:
                break
            if sent < len(view):
                unsent[0] = (view[sent:], completion, envelope)
                break
            unsent.popleft()
            if completion is not None:
                completed_sends.append((completion, envelope))
        return completed_sends

    def end(self, error: MPIError) -> None:
        """Close the connection. Unsent messages, posted receives from the peer and a partly received message fail with
        `error`."""
        self.socket.close()
        sends = [completion for _, completion, _ in self._unsent if completion is not None]
        self._matching.fail_transfers(self.peer, error, sends, [] if self._arrival is None else [self._arrival])
        self._matching.fail_receives(self.peer, error)

    def receive(self) -> int:
        """Read all available bytes; return how many receives are complete now. Raises ConnectionResetError at the end of the
        connection."""
        receive_into, completed_receives = self.socket.recv_into, 0
        while True:
            try:
                count = receive_into(self._view[self._filled :])
            except BlockingIOError:
                return completed_receives
            if not count:
                raise ConnectionResetError(errno.ECONNRESET, "the peer has closed the connection")
            self._filled += count
            while self._filled == len(self._view):
                completed_receives += self._next_view()

    def _next_view(self) -> int:
        """Set the next view after the present one is full; return how many receives are complete now. An empty view is full
        at once."""
        self._filled = 0
        arrival = self._arrival
        if arrival is None:
            context, tag, length = HEADER.unpack(self._header)
            self._arrival = arrival = self._matching.arrive(self.peer, context, tag, length)
            self._view, self._excess = arrival.buffer, length - len(arrival.buffer)
            return 0
        if self._excess:
            discarded = min(self._excess, _MAX_DISCARDED)
            self._view = memoryview(bytearray(discarded))
            self._excess -= discarded
            return 0
        self._arrival = None
        self._view = self._header
        return self._matching.complete(arrival)


async def connect_all(loop: Loop, rank: int, addresses: Sequence[str]) -> dict[int, socket.socket]:
    """Connect to every other node; return the sockets by rank. addresses: IP addresses by rank. Raises TestbedError if a
    connection is not made within TIMEOUT."""
    deadline = time.monotonic() + TIMEOUT
    family = socket.AF_INET6 if ":" in addresses[rank] else socket.AF_INET
    by_rank: dict[int, socket.socket] = {}
    with socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("", PORT))
        listener.listen(len(addresses))
        for peer in range(rank):
            by_rank[peer] = tcp_socket = await _connect(loop, family, addresses[peer], deadline)
            tcp_socket.sendall(_RANK.pack(rank))
        while len(by_rank) < len(addresses) - 1:
            try:
                listener.settimeout(_time_left(deadline))
                tcp_socket, _ = listener.accept()
                tcp_socket.settimeout(_time_left(deadline))
                by_rank[_RANK.unpack(tcp_socket.recv(_RANK.size, socket.MSG_WAITALL))[0]] = tcp_socket
            except (OSError, struct.error) as error:
                missing = sorted(set(range(len(addresses))) - {rank, *by_rank})
                raise TestbedError(f"no TCP connection from ranks {missing} within {TIMEOUT:g} s") from error
    return by_rank


async def _connect(loop: Loop, family: socket.AddressFamily, address: str, deadline: float) -> socket.socket:
    while True:
        tcp_socket = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            tcp_socket.settimeout(_time_left(deadline))
            tcp_socket.connect((address, PORT))
        except OSError as error:
            tcp_socket.close()
            if error.errno not in _RETRIED_ERRORS or time.monotonic() > deadline:
                reason = error.strerror or error
                raise TestbedError(f"TCP connect to {address}, port {PORT} failed: {reason}") from error
            await loop.sleep(_RETRY_INTERVAL)
        else:
            return tcp_socket


def _time_left(deadline: float) -> float:
    return max(0.1, deadline - time.monotonic())

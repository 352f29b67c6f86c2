"""TCP connections between all nodes, and messages on them: a header with the length, and the payload.

Higher ranks connect to lower ones; the kernel accepts connections while a node still makes its own, so that nodes do not
wait for each other in a cycle.
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
"""Seconds for all connections to be made."""

HEAD: Final = struct.Struct("!IIQ")  # context, tag, bytes
_RANK: Final = struct.Struct("!I")
_AGAIN: Final = 2_000_000  # ns until the next attempt to connect to a node that does not listen yet
_THROWN: Final = 65_536  # bytes that are read and discarded at once, of a message too long for its receive
_NOT_YET: Final = (errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT)


class Connection:
    """A non-blocking connection with one peer."""

    __slots__ = ("_arrival", "_filled", "_head", "_matching", "_spare", "_unsent", "_view", "peer", "socket")

    def __init__(self, peer: int, opened: socket.socket, matching: MatchingQueues) -> None:
        opened.setblocking(False)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.peer = peer
        self.socket = opened
        self._matching = matching
        self._unsent: deque[tuple[memoryview, SendCompletion | None, Envelope]] = deque()
        self._head = memoryview(bytearray(HEAD.size))
        self._view = self._head  # where the next bytes go
        self._filled = 0
        self._arrival: Arrival | None = None
        self._spare = 0  # bytes of the message that exceed its place

    @property
    def behind(self) -> int:
        """Datagrams that the kernel has not taken yet."""
        return len(self._unsent)

    def send(self, head: bytes, data: memoryview, completion: SendCompletion, envelope: Envelope) -> bool:
        """Begin to send; return whether the kernel has taken all. If not, `send_on` returns `completion` later. OSError."""
        if self._unsent:
            sent = 0
        else:
            try:
                sent = self.socket.sendmsg((head, data))
            except BlockingIOError:
                sent = 0
        if sent == len(head) + len(data):
            return True
        if sent < len(head):
            self._unsent.append((memoryview(head)[sent:], None, envelope))
            sent = len(head)
        self._unsent.append((data[sent - len(head) :], completion, envelope))
        return False

    def send_on(self) -> list[tuple[SendCompletion, Envelope]]:
        """Continue to send; return the sends that are complete now. OSError."""
        ended = []
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
                ended.append((completion, envelope))
        return ended

    def end(self, error: MPIError) -> None:
        """Close the connection: unsent messages and a partly received one fail."""
        self.socket.close()
        sends = [completion for _, completion, _ in self._unsent if completion is not None]
        self._matching.fail_transfers(self.peer, error, sends, [] if self._arrival is None else [self._arrival])
        self._matching.fail_receives(self.peer, error)

    def receive(self) -> int:
        """Read all available bytes; return how many receives are complete now. ConnectionError at the end of the
        connection."""
        take, completion = self.socket.recv_into, 0
        while True:
            try:
                got = take(self._view[self._filled :])
            except BlockingIOError:
                return completion
            if not got:
                raise ConnectionResetError(errno.ECONNRESET, "the peer has ended")
            self._filled += got
            while self._filled == len(self._view):
                completion += self._turn()

    def _turn(self) -> int:
        """Set the next view after the present one is full; return how many receives are complete now. A view of no bytes is
        full at once."""
        self._filled = 0
        arrival = self._arrival
        if arrival is None:
            context, tag, length = HEAD.unpack(self._head)
            self._arrival = arrival = self._matching.arrive(self.peer, context, tag, length)
            self._view, self._spare = arrival.buffer, length - len(arrival.buffer)
            return 0
        if self._spare:
            some = min(self._spare, _THROWN)
            self._view = memoryview(bytearray(some))
            self._spare -= some
            return 0
        self._arrival = None
        self._view = self._head
        return self._matching.complete(arrival)


async def connected(loop: Loop, rank: int, addresses: Sequence[str]) -> dict[int, socket.socket]:
    """Connect to each other node; return the sockets by rank. Raises TestbedError when one is missing in time."""
    deadline = time.monotonic() + TIMEOUT
    family = socket.AF_INET6 if ":" in addresses[rank] else socket.AF_INET
    by_rank: dict[int, socket.socket] = {}
    with socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("", PORT))
        listening.listen(len(addresses))
        for peer in range(rank):
            by_rank[peer] = opened = await _connect(loop, family, addresses[peer], deadline)
            opened.sendall(_RANK.pack(rank))
        while len(by_rank) < len(addresses) - 1:
            try:
                listening.settimeout(_left(deadline))
                opened, _ = listening.accept()
                opened.settimeout(_left(deadline))
                by_rank[_RANK.unpack(opened.recv(_RANK.size, socket.MSG_WAITALL))[0]] = opened
            except (OSError, struct.error) as error:
                missing = sorted(set(range(len(addresses))) - {rank, *by_rank})
                raise TestbedError(f"no TCP connection from ranks {missing} within {TIMEOUT:g} s") from error
    return by_rank


async def _connect(loop: Loop, family: socket.AddressFamily, address: str, deadline: float) -> socket.socket:
    while True:
        opened = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            opened.settimeout(_left(deadline))
            opened.connect((address, PORT))
        except OSError as error:
            opened.close()
            if error.errno not in _NOT_YET or time.monotonic() > deadline:
                raise TestbedError(f"{address} cannot be called by TCP: {error.strerror or error}") from error
            await loop.sleep(_AGAIN)
        else:
            return opened


def _left(deadline: float) -> float:
    return max(0.1, deadline - time.monotonic())

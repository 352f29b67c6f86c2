"""Receive workers of a shared NIC: several agents of one interface, each with a share of its functions and a receive queue.

Function f belongs to worker f modulo their number. The kernel deals the interface's frames out to the workers, by the
protocol's hash or in turn. A worker hands a frame for a function of another one over, as a driver does that handles a frame
on another core than its receiver's.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from protocols.core.firmware import Adapter
from protocols.core.protocol import Instruction

GROUP: Final = 1
"""The fan-out group of an interface's workers."""
_BUFFER: Final = 1 << 20  # bytes that a worker has not read yet


@dataclass(frozen=True, slots=True)
class ReceiveQueues:
    """How the frames of a shared NIC are dealt out. count: of workers. program: classic BPF, whose result modulo `count` is
    the worker; empty: in turn. bound: each worker, and the programs of its functions, have a processor of their own."""

    count: int = 1
    program: tuple[Instruction, ...] = ()
    bound: bool = False

    def processor(self, function: int) -> int:
        """Return the processor of a worker, or of a function's program."""
        processors = sorted(os.sched_getaffinity(0))
        return processors[function % self.count % len(processors)]


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker. inboxes: of all workers, by number: what is sent there is handed over. inbox: its own, to read."""

    number: int
    queues: ReceiveQueues
    inboxes: tuple[socket.socket, ...] = ()
    inbox: socket.socket | None = None

    @property
    def descriptors(self) -> set[int]:
        """The descriptors that its process needs."""
        return {inbox.fileno() for inbox in (*self.inboxes, self.inbox) if inbox is not None}

    def has(self, function: int) -> bool:
        """Whether it has this function."""
        return function % self.queues.count == self.number

    def others(self, functions: Sequence[Adapter]) -> dict[bytes, socket.socket]:
        """Return the inboxes of other workers by the addresses of their functions."""
        return {
            adapter.address: self.inboxes[number % self.queues.count]
            for number, adapter in enumerate(functions)
            if not self.has(number)
        }


ALONE: Final = Worker(0, ReceiveQueues())


def inboxes(count: int) -> list[tuple[socket.socket, socket.socket]]:
    """Make the inboxes of so many workers: the end to write and the one to read of each."""
    pairs = []
    for _ in range(count):
        reading, writing = socket.socketpair(
            socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        )
        writing.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
        pairs.append((writing, reading))
    return pairs

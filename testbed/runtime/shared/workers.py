"""Receive workers of a shared NIC: several agents of one interface, each with a share of its functions and a receive queue.

Function f belongs to worker f modulo the number of workers. The kernel distributes the interface's frames to the
workers, by the protocol's hash or round robin. A worker that receives a frame for another worker's function hands it
over to that worker, as a driver passes a frame to the core of its receiver.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from protocols.core.firmware import Adapter
from protocols.core.protocol import Instruction

FANOUT_GROUP: Final = 1
"""Number of the fan-out group of an interface's workers."""
_INBOX_SIZE: Final = 1 << 20  # bytes of frames that a worker has not read yet


@dataclass(frozen=True, slots=True)
class ReceiveQueues:
    """Distribution of a shared NIC's frames to workers. count: number of workers. program: classic BPF program, whose result
    modulo `count` is the worker; empty: round robin. bound: whether each worker is bound to its own processor, together with
    the programs of its functions."""

    count: int = 1
    program: tuple[Instruction, ...] = ()
    bound: bool = False

    def processor(self, function: int) -> int:
        """Return the processor of a function's worker and program, or of the worker with this number."""
        processors = sorted(os.sched_getaffinity(0))
        return processors[function % self.count % len(processors)]


def queues_from_json(data: Mapping[str, Any]) -> ReceiveQueues:
    """Make receive queues from JSON that was written from their `dataclasses.asdict`."""
    return ReceiveQueues(data["count"], tuple(tuple(instruction) for instruction in data["program"]), data["bound"])


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker. number: from 0. queues: queues of the NIC. inboxes: sending ends of all workers' inboxes, by number.
    inbox: receiving end of its own inbox."""

    number: int
    queues: ReceiveQueues
    inboxes: tuple[socket.socket, ...] = ()
    inbox: socket.socket | None = None

    @property
    def descriptors(self) -> set[int]:
        """Descriptors of the inboxes, which the worker's process must keep open."""
        return {inbox.fileno() for inbox in (*self.inboxes, self.inbox) if inbox is not None}

    def owns(self, function: int) -> bool:
        """Whether a function belongs to this worker."""
        return function % self.queues.count == self.number

    def other_inboxes(self, functions: Sequence[Adapter]) -> dict[bytes, socket.socket]:
        """Return the inboxes of other workers, by the addresses of these workers' functions. functions: adapters of all
        functions."""
        return {
            adapter.address: self.inboxes[number % self.queues.count]
            for number, adapter in enumerate(functions)
            if not self.owns(number)
        }


SINGLE_WORKER: Final = Worker(0, ReceiveQueues())


def make_inboxes(count: int) -> list[tuple[socket.socket, socket.socket]]:
    """Make the inboxes of `count` workers; return the writing and the reading end of each."""
    pairs = []
    for _ in range(count):
        reading, writing = socket.socketpair(
            socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        )
        writing.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _INBOX_SIZE)
        pairs.append((writing, reading))
    return pairs

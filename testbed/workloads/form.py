"""Base classes of workloads, the environment of their ranks, and contents of messages that can be verified."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar, dataclass_transform

from protocols.mpi.comm import Comm
from testbed.engine.tasks import Task, Work
from testbed.errors import TestbedError

__all__ = ["Clock", "Comm", "Contents", "Native", "Node", "RestartedError", "VerificationError", "Workload"]

T = TypeVar("T")
RowWriter = Callable[[Mapping[str, object]], object]

_GATHER: Final = 1
_BARRIER: Final = 2
_WORD: Final = 3


class VerificationError(TestbedError):
    """Received messages differ from those sent: lost, duplicated, out of order or changed."""


@dataclass_transform(kw_only_default=True, frozen_default=True)
@dataclass(frozen=True, kw_only=True)
class Workload:
    """Programs that run on all nodes at once. The fields of a subclass are its settings; its `__post_init__` raises
    ValueError for invalid ones. Lists of workloads show the first paragraph of its docstring.

    least: minimum number of nodes. checked: whether checkers examine its history by default, as for workloads that test
    messages instead of measuring times. supports_loss: whether it completes over a protocol that loses messages (see
    `Node.lossy`); otherwise it is not run over such a protocol. supports_restarts: whether it completes if nodes crash and
    restart; False: it is not run with such faults; None: unknown, it is run.
    """

    least: ClassVar[int] = 2
    checked: ClassVar[bool] = False
    supports_loss: ClassVar[bool] = False
    supports_restarts: ClassVar[bool | None] = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        dataclass(frozen=True, kw_only=True)(cls)

    async def rank(self, comm: Comm, node: Node) -> object:
        """Run one rank: node number r of the description is rank r of `comm`. Return the node's result, plain data of at
        most 128 KiB."""
        raise NotImplementedError(f"{type(self).__name__} needs 'async def rank(self, comm, node)'")


class Clock(Protocol):
    """Time and processor of a node, in every mode. All times are nanoseconds."""

    def now(self) -> int: ...

    def cpu(self) -> int:
        """Return the processor time that the node has used: of the host's core in the simulation, of the process in
        namespaces."""
        ...

    def sleep(self, nanoseconds: int) -> Awaitable[None]: ...

    async def compute(self, nanoseconds: int) -> None: ...

    def spawn(self, work: Work[Any], name: str) -> Task[Any]: ...


class RestartedError(TestbedError):
    """A restarted program called a barrier, which it cannot pass."""


class Node:
    """Environment of a rank. name: name of the node. names: names of all nodes, by rank. rank: rank of this node. seed: seed
    of the run. lossy: whether the workload's messages may be lost, duplicated or reordered; barriers and control messages
    (`say`) are reliable. starts: how often this program was started in the run, from 1: a scenario may crash and restart
    it."""

    __slots__ = (
        "_clock",
        "_control_comm",
        "_write_row",
        "cpu",
        "lossy",
        "name",
        "names",
        "now",
        "rank",
        "seed",
        "starts",
    )

    def __init__(
        self,
        name: str,
        names: Sequence[str],
        seed: int,
        clock: Clock,
        control: Comm | None,
        write_row: RowWriter,
        *,
        lossy: bool = False,
        starts: int = 1,
    ) -> None:
        """control: a communicator separate from the workload's messages; None: the node has no MPI. write_row: called with
        each row."""
        self.lossy = lossy
        self.starts = starts
        self.name = name
        self.names = names
        self.seed = seed
        self.now = clock.now
        """Nanoseconds; not comparable with another node's clock."""
        self.cpu = clock.cpu
        """Nanoseconds of processor time that this node has used."""
        self.rank = names.index(name)
        self._clock = clock
        self._control_comm = control
        self._write_row = write_row

    @property
    def _control(self) -> Comm:
        if self._control_comm is None:
            raise TestbedError(
                f"{self.name}: barriers and control messages need MPI, which a native workload does not have"
            )
        return self._control_comm

    async def sleep(self, nanoseconds: int) -> None:
        """Sleep for this time; 0: until everything that is due now has run."""
        await self._clock.sleep(nanoseconds)

    async def compute(self, nanoseconds: int) -> None:
        """Use the processor for this time: no other task of this host runs during it."""
        await self._clock.compute(nanoseconds)

    def spawn(self, work: Work[T], name: str) -> Task[T]:
        """Start a concurrent task. The exception of a task that is not awaited ends the run."""
        return self._clock.spawn(work, name)

    def random(self, purpose: str = "") -> random.Random:
        """Return a random number generator, which is determined by seed, node and purpose."""
        return random.Random(f"{self.seed}/{self.name}/{purpose}")

    def row(self, **values: object) -> None:
        """Record a row of the results. It is written at once, so that a later failure does not lose it."""
        self._write_row({"node": self.name, "rank": self.rank, "clock_ns": self.now(), **values})

    async def barrier(self) -> None:
        """Wait until every rank has called this, in log2(n) rounds (Hensgen, Finkel, Manber, "Two algorithms for barrier
        synchronization", 1988). Raises RestartedError in a restarted program: the other ranks have passed the barrier, or
        wait for a message of its previous incarnation."""
        if self.starts > 1:
            raise RestartedError(
                f"{self.name} was restarted and called a barrier, for which the other nodes no longer wait: a workload "
                "that survives restarts must not use barriers, or must check node.starts"
            )
        comm = self._control
        distance = 1
        while distance < comm.size:
            sent = await comm.Isend(None, (comm.rank + distance) % comm.size, _BARRIER)
            await comm.Recv(None, (comm.rank - distance) % comm.size, _BARRIER)
            await sent.Wait()
            distance *= 2

    async def say(self, value: object, rank: int, topic: int = 0) -> None:
        """Send a value to another rank, separately from the workload's messages. The rank receives it by `heard` with the
        same topic, 0 or more."""
        await self._control.send(value, rank, _WORD + topic)

    async def heard(self, rank: int, topic: int = 0) -> Any:
        """Receive the next value that a rank sent to this rank with a topic."""
        return await self._control.recv(source=rank, tag=_WORD + topic)

    async def gather(self, value: object) -> list[Any] | None:
        """Return the values of all ranks at rank 0, by rank; None at other ranks."""
        comm = self._control
        if comm.rank:
            await comm.send(value, 0, _GATHER)
            return None
        return [value] + [await comm.recv(source=source, tag=_GATHER) for source in range(1, comm.size)]

    async def share(self, value: T) -> T:
        """Return rank 0's value at every rank."""
        comm = self._control
        if comm.rank:
            shared: Any = await comm.recv(source=0, tag=_GATHER)
            return shared  # type: ignore[no-any-return]  # rank 0's value
        for peer in range(1, comm.size):
            await comm.send(value, peer, _GATHER)
        return value


Library = TypeVar("Library")


class Native(Workload, Generic[Library]):
    """A workload on a protocol's host library instead of MPI::

        class Hello(Native[ActiveMessages]):
            protocol = "am2"

            async def program(self, library: ActiveMessages, node: Node) -> None: ...

    The NIC has only the program's endpoints. protocol: registered name; empty: any protocol whose host library implements
    `protocols.active_messages.am_interface.ActiveMessages`. Barriers and control messages (`Node.barrier`, `Node.say`) are
    not available, since they use MPI.
    """

    protocol: ClassVar[str] = ""

    async def program(self, library: Library, node: Node) -> object:
        """Run one node; return its result, as `Workload.rank`. library: host library of the node's NIC."""
        raise NotImplementedError(f"{type(self).__name__} needs 'async def program(self, library, node)'")


_SHIFTS: Final = (
    251  # number of distinct contents; a prime, so that numbers at a fixed distance do not repeat them early
)


class Contents:
    """Contents of messages of up to `max_size` bytes, which seed and purpose determine on every node. A content is a view of
    one block of random bytes, so that none is allocated per message."""

    __slots__ = ("_block",)

    def __init__(self, seed: int, purpose: str, max_size: int) -> None:
        self._block = memoryview(random.Random(f"{seed}/{purpose}").randbytes(max_size + _SHIFTS))

    def of(self, number: int, size: int) -> memoryview:
        """Return the content of a message of this number."""
        start = number % _SHIFTS
        return self._block[start : start + size]

    def check(self, number: int, received: memoryview | bytearray, origin: str) -> None:
        """Raise VerificationError if a received content differs. origin: description of the message's origin."""
        expected = self.of(number, len(received))
        if received != expected:
            index = next(index for index, byte in enumerate(received) if byte != expected[index])
            raise VerificationError(f"{origin}, message {number} of {len(received)} bytes: byte {index} differs")

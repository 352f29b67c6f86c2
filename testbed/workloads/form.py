"""The form of a workload, and what each of its ranks is given: a communicator and a node."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeVar, dataclass_transform

from protocols.mpi.comm import Comm
from testbed.errors import TestbedError

if TYPE_CHECKING:
    from testbed.engine.tasks import Task, Work

__all__ = ["Clock", "Comm", "Node", "RestartedError", "VerificationError", "Workload"]

T = TypeVar("T")
Tell = Callable[[Mapping[str, object]], object]

_GATHER: Final = 1
_BARRIER: Final = 2
_WORD: Final = 3


class VerificationError(TestbedError):
    """What has come is not what was sent: lost, twice, out of order or changed."""


@dataclass_transform(kw_only_default=True, frozen_default=True)
@dataclass(frozen=True, kw_only=True)
class Workload:
    """What programs do on all nodes at once. Its fields are its settings; what cannot be is a ValueError of `__post_init__`.

    least: nodes that it needs. checked: whether checkers look through its history if nothing is said: where it is about
    messages, and not about time. bears_loss: whether it ends well over a protocol that loses messages (see `Node.lossy`);
    else it does not run over one. summary: its docstring's first sentence, in lists.
    """

    least: ClassVar[int] = 2
    checked: ClassVar[bool] = False
    bears_loss: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        dataclass(frozen=True, kw_only=True)(cls)

    async def rank(self, comm: Comm, node: Node) -> object:
        """What one rank does: node number r of the description is rank r of `comm`. What it returns, plain data, 128 KiB at
        most, is this node's result."""
        raise NotImplementedError


class Clock(Protocol):
    """Time and the processor on a node, in either mode; nanoseconds."""

    def now(self) -> int: ...

    def cpu(self) -> int:
        """Processor time used by the node until now: the host's core in the simulation, the process in namespaces."""
        ...

    async def sleep(self, nanoseconds: int) -> None: ...

    async def compute(self, nanoseconds: int) -> None: ...

    def spawn(self, work: Work[Any], name: str) -> Task[Any]: ...


class RestartedError(TestbedError):
    """A program that was started again has come to where it cannot meet the others."""


class Node:
    """Where a rank runs. name: the node's. names: all, by rank; rank: its own. seed: the run's. lossy: whether the
    workload's messages may be lost, come twice or overtake each other; barriers and words (`say`) never do. starts: how
    often this program has been started in the run, from 1 on: a scenario may crash and restart it."""

    __slots__ = ("_clock", "_messages", "_tell", "cpu", "lossy", "name", "names", "now", "rank", "seed", "starts")

    def __init__(
        self,
        name: str,
        names: Sequence[str],
        seed: int,
        clock: Clock,
        control: Comm | None,
        tell: Tell,
        *,
        lossy: bool = False,
        starts: int = 1,
    ) -> None:
        """control: a communicator that the workload's messages cannot meet; None: there is no MPI. tell: is given the
        rows."""
        self.lossy = lossy
        self.starts = starts
        self.name = name
        self.names = names
        self.seed = seed
        self.now = clock.now
        """Nanoseconds; of no clock that another node could be compared with."""
        self.cpu = clock.cpu
        """Nanoseconds of processor time that this node has used."""
        self.rank = names.index(name)
        self._clock = clock
        self._messages = control
        self._tell = tell

    @property
    def _control(self) -> Comm:
        if self._messages is None:
            raise TestbedError(f"{self.name}: barriers and words go over MPI, and a native workload has none")
        return self._messages

    async def sleep(self, nanoseconds: int) -> None:
        """Let time pass; 0 lets go on what is due now."""
        await self._clock.sleep(nanoseconds)

    async def compute(self, nanoseconds: int) -> None:
        """Use the processor for so long: nothing else of this host goes on meanwhile."""
        await self._clock.compute(nanoseconds)

    def spawn(self, work: Work[T], name: str) -> Task[T]:
        """A task beside this one; await it, or what it raises ends the run."""
        return self._clock.spawn(work, name)

    def random(self, what: str = "") -> random.Random:
        """A source of chance of this node alone: the same for the same seed, node and purpose."""
        return random.Random(f"{self.seed}/{self.name}/{what}")

    def row(self, **values: object) -> None:
        """Tell a row of the results. It is written at once: what comes later cannot lose it."""
        self._tell({"node": self.name, "rank": self.rank, "clock_ns": self.now(), **values})

    async def barrier(self) -> None:
        """Go on when every rank has come here. In log2(n) rounds (Hensgen, Finkel, Manber, "Two algorithms for barrier
        synchronization", 1988). Raises RestartedError in a program that was started again: the others have passed, or wait
        for a word of who it was before."""
        if self.starts > 1:
            raise RestartedError(
                f"{self.name} was restarted and has come to a barrier, at which nobody waits for it any more: a workload "
                "that is to survive restarts has none, or looks at node.starts"
            )
        comm = self._control
        distance = 1
        while distance < comm.size:
            sent = await comm.Isend(None, (comm.rank + distance) % comm.size, _BARRIER)
            await comm.Recv(None, (comm.rank - distance) % comm.size, _BARRIER)
            await sent.Wait()
            distance *= 2

    async def say(self, value: object, rank: int, topic: int = 0) -> None:
        """A word to another rank, beside the workload's messages; `heard` there, if it is about that topic, from 0 on."""
        await self._control.send(value, rank, _WORD + topic)

    async def heard(self, rank: int, topic: int = 0) -> Any:
        """The next word that this rank has said to us about it."""
        return await self._control.recv(source=rank, tag=_WORD + topic)

    async def gather(self, value: object) -> list[Any] | None:
        """At rank 0 everybody's value, by rank; None elsewhere."""
        comm = self._control
        if comm.rank:
            await comm.send(value, 0, _GATHER)
            return None
        return [value] + [await comm.recv(source=source, tag=_GATHER) for source in range(1, comm.size)]

    async def share(self, value: T) -> T:
        """Rank 0's value, at every rank."""
        comm = self._control
        if comm.rank:
            shared: Any = await comm.recv(source=0, tag=_GATHER)
            return shared  # type: ignore[no-any-return]  # what rank 0 has given
        for other in range(1, comm.size):
            await comm.send(value, other, _GATHER)
        return value

"""A direction of a link in the simulation: the wire model, and the event that takes frames out of it.

One entry in the engine's heap stands for all that a direction holds: the next time at which something is due. So what a
frame costs is one entry for every link that it crosses. A direction that leaves nothing to chance does nothing but
arithmetic for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from heapq import heappush
from typing import Final, Literal, Protocol

from testbed.engine.loop import Loop
from testbed.spec.layout import Impairment, Link
from testbed.wire.direction import Direction
from testbed.wire.fates import Record
from testbed.wire.fields import Fields
from testbed.wire.flows import Classifier
from testbed.wire.rules import RuleSet

NEVER: Final = 1 << 63
"""Later than any time."""

DirectionName = Literal["forward", "backward"]
Receive = Callable[[int, bytes], object]
"""A frame has come, at a time in nanoseconds."""


class Outlet(Protocol):
    """Where a NIC's frames go."""

    def enter(self, now: int, frame: bytes) -> object:
        """A frame leaves the NIC at that time."""
        ...


def ignore(now: int, frame: bytes) -> None:
    """Where nobody listens."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What all directions of a simulation have in common; as for `Direction`."""

    loop: Loop
    seed: int
    fields: Fields
    classifier: Classifier
    rules: RuleSet | None = None
    files: Mapping[str, str] | None = None
    log: Callable[[Record], object] | None = None


class Way(Direction):
    """From one end of a link to the other. Times never go backwards. receive: who gets the frames. sequence: which entry
    of the loop's heap counts, as a timer's."""

    __slots__ = ("_heap", "_next", "_wake", "end", "is_cut", "link", "lost", "receive", "sequence", "source")

    def __init__(self, link: Link, direction: DirectionName, shared: Shared) -> None:
        forward = direction == "forward"
        super().__init__(
            link.name,
            direction,
            link.forward if forward else link.backward,
            seed=shared.seed,
            rules=shared.rules,
            fields=shared.fields,
            classifier=shared.classifier,
            files=shared.files,
            log=shared.log,
        )
        self._heap = shared.loop.heap
        self._next = shared.loop.next_sequence
        self._wake = NEVER  # when the entry in the heap is due
        self.sequence = 0
        self.link: Final = link.name
        self.source: Final = link.a if forward else link.b
        self.end: Final = link.b if forward else link.a
        self.receive: Receive = ignore
        self.is_cut = False
        """The cable is out: what enters is lost; what is under way arrives."""
        self.lost = 0
        """Frames that entered a cable that was out."""

    def enter(self, now: int, frame: bytes) -> None:
        """A frame does, and leaves in its time, or is lost."""
        if self.is_cut:
            self.lost += 1
            return
        if self._plain and not self._shaped:  # as `offer`
            if self._put(now, frame, self._delay):
                self.counters.offered += 1
            else:
                self._full(now, len(frame))
        else:
            self.offer(now, frame)
        deadline = self.deadline
        if deadline is not None and deadline < self._wake:
            self._wake = deadline
            self.sequence = sequence = self._next()
            heappush(self._heap, (deadline, sequence, None, self))

    def lead_to(self, receive: Receive) -> None:
        """From now on the frames come there."""
        self.receive = receive

    def change(
        self,
        now: int,
        impairment: Impairment,
        files: Mapping[str, str] | None = None,
        restart: bool | None = None,
    ) -> None:
        super().change(now, impairment, files, restart)
        if self.deadline is not None and self.deadline < self._wake:
            self._wake_at(self.deadline)

    def call(self, now: int) -> None:
        """What is due leaves. For the loop only."""
        self._wake = NEVER
        receive, fifo = self.receive, self._fifo
        if self._early or self._space is not None:
            for _, frame in self.poll(now):
                receive(now, frame)
            deadline = self.deadline
        else:  # as `poll`, but one by one
            counters = self.counters
            self.deadline = deadline = None
            while fifo:
                if fifo[0][0] > now:
                    self.deadline = deadline = fifo[0][0]
                    break
                frame = fifo.popleft()[1]
                counters.delivered += 1
                counters.delivered_bytes += len(frame)
                receive(now, frame)
        if deadline is not None and deadline < self._wake:
            self._wake = deadline
            self.sequence = sequence = self._next()
            heappush(self._heap, (deadline, sequence, None, self))

    def _wake_at(self, when: int) -> None:
        """The entry in the heap that counts is due then."""
        self._wake = when
        self.sequence = sequence = self._next()
        heappush(self._heap, (when, sequence, None, self))

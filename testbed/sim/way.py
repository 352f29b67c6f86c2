"""A direction of a link in the simulation: the wire model, and the event that takes frames out of it.

One entry in the engine's heap stands for all that a direction holds: the next time at which something is due. So what a
frame costs is one entry for every link that it crosses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from testbed.spec.layout import End
from testbed.wire.direction import Direction

NEVER: Final = 1 << 63
"""Later than any time."""

At = Callable[[int, Callable[[int], object]], object]
"""Call at that time, with the time; equal times in the order in which they were asked for."""
Receive = Callable[[int, bytes], object]
"""A frame has come, at a time in nanoseconds."""


def ignore(now: int, frame: bytes) -> None:
    """Where nobody listens."""


class Way:
    """From one end of a link to the other. Times never go backwards. receive: who gets the frames."""

    __slots__ = ("_at", "_deliver", "_wake", "end", "is_cut", "link", "lost", "model", "receive", "source")

    def __init__(self, at: At, model: Direction, link: str, source: End, end: End) -> None:
        self._at = at
        self._deliver = self.deliver  # bound once: it is asked for with every event
        self._wake = NEVER
        self.model = model
        self.link = link
        self.source = source
        self.end = end
        self.receive: Receive = ignore
        self.is_cut = False
        """The cable is out: what is offered is lost; what is under way arrives."""
        self.lost = 0
        """Frames that were offered to a cable that was out."""

    def offer(self, now: int, frame: bytes) -> None:
        """A frame enters."""
        if self.is_cut:
            self.lost += 1
            return
        model = self.model
        model.offer(now, frame)
        deadline = model.deadline
        if deadline is not None and deadline < self._wake:
            self._wake = deadline
            self._at(deadline, self._deliver)

    def lead_to(self, receive: Receive) -> None:
        """From now on the frames come there."""
        self.receive = receive

    def look_ahead(self) -> None:
        """The model was changed, and may have something to do earlier."""
        deadline = self.model.deadline
        if deadline is not None and deadline < self._wake:
            self._wake = deadline
            self._at(deadline, self._deliver)

    def deliver(self, now: int) -> None:
        """What is due leaves."""
        if now != self._wake:
            return  # something earlier came in between, and has seen to this
        self._wake = NEVER
        model, receive = self.model, self.receive
        for _, frame in model.poll(now):
            receive(now, frame)
        deadline = model.deadline
        if deadline is not None and deadline < self._wake:
            self._wake = deadline
            self._at(deadline, self._deliver)

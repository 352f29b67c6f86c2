"""Delivery of completions to a NIC's host: the rule by which firmware and host library call each other.

Neither is ever called re-entrantly. Descriptors that the firmware returns to the host (`show`, `interrupt`) are queued
until the firmware has returned; then the host sees them one after the other. The host may ring a doorbell in response,
which the idle firmware handles at once; descriptors that it returns then are queued behind the others and delivered
after the host has returned. A NIC that delivers at simulated times (`priced`) keeps the rule by its clock's events.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final


class CompletingNic:
    """A NIC's completion queue. shown: descriptors on their way to the host. see: delivers one to it; observers wrap it.
    Every caller of the firmware calls `let_see` afterwards if there are any."""

    __slots__ = ("_is_seeing", "see", "shown")

    def __init__(self, see: Callable[[int], object]) -> None:
        """see: called with each descriptor returned to the host."""
        self.shown: Final[deque[int]] = deque()
        self.see = see
        self._is_seeing = False

    def post_completion(self, index: int) -> None:
        """Return a descriptor to the host, which sees it once the firmware has returned."""
        self.shown.append(index)

    def interrupt(self, index: int) -> None:
        """Return a descriptor to the host's kernel, which sees it as the host does (`show`)."""
        self.shown.append(index)

    def let_see(self) -> None:
        """Deliver the queued descriptors, and those queued meanwhile, after the firmware has returned.

        After an exception, the rest waits for the next call.
        """
        if self._is_seeing:
            return
        self._is_seeing = True
        try:
            while self.shown:
                self.see(self.shown.popleft())
        finally:
            self._is_seeing = False

"""Delivery of completions to a NIC's host, without re-entrant calls of firmware or host library.

Descriptors that the firmware returns to the host (`post_completion`, `interrupt`) are queued until the firmware has
returned. Then the host gets them one after the other. The host may ring a doorbell in response, which the idle firmware
handles at once. Descriptors that the firmware returns then are appended to the queue and delivered after the host has
returned. A NIC with costs (`priced`) delivers at simulated times, by events of its clock, which has the same effect.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final


class CompletingNic:
    """A NIC's completion queue. completions: descriptors to be delivered to the host. deliver_completion: passes a
    descriptor to the host; observers wrap it. A caller of the firmware calls `deliver_completions` afterwards, if the queue
    is not empty."""

    __slots__ = ("_is_delivering", "completions", "deliver_completion")

    def __init__(self, deliver_completion: Callable[[int], object]) -> None:
        """deliver_completion: called with each descriptor returned to the host."""
        self.completions: Final[list[int]] = []
        self.deliver_completion = deliver_completion
        self._is_delivering = False

    def post_completion(self, index: int) -> None:
        """Return a descriptor to the host, which gets it once the firmware has returned."""
        self.completions.append(index)

    def interrupt(self, index: int) -> None:
        """Return a descriptor to the host's kernel. It is delivered like a polled completion."""
        self.completions.append(index)

    def deliver_completions(self) -> None:
        """Deliver the queued descriptors, and those queued meanwhile, after the firmware has returned. A nested call does
        nothing. After an exception, the remaining descriptors wait for the next call."""
        if self._is_delivering:
            return
        self._is_delivering = True
        try:
            while self.completions:
                self.deliver_completion(self.completions.pop(0))
        finally:
            self._is_delivering = False

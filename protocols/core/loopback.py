"""Loopback queue for frames that a NIC sends to itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final


class Loopback:
    """A queue of frames, delivered one at a time. is_running: a frame is being delivered."""

    __slots__ = ("frames", "is_running")

    def __init__(self) -> None:
        self.frames: Final[deque[bytes]] = deque()
        self.is_running = False

    def send_later(self, make: Callable[[], bytes]) -> None:
        """Queue a frame, as `Actions.send_later`; `frames.append` is `Actions.send`."""
        self.frames.append(make())

    def run(self, now: int, receive: Callable[[int, bytes], object]) -> None:
        """Deliver the queued frames, and those sent meanwhile. A host may ring its doorbell when it is shown a
        completion, which re-enters this method: the outer call then delivers."""
        if self.is_running:
            return
        self.is_running = True
        frames = self.frames
        try:
            while frames:
                receive(now, frames.popleft())
        finally:
            self.is_running = False

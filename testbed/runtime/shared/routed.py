"""The interface that a shared NIC's functions share, in a network with back-pressure: frames wait while that takes none."""

from __future__ import annotations

import time

from protocols.core.firmware import Buffer
from testbed.kernel.frame_socket import FrameSocket
from testbed.runtime.holding import is_word, outlet
from testbed.runtime.shared.functions import Wire
from testbed.wire.myrinet.stop_go import AGAIN


class RoutedWire(Wire):
    """As `Wire`. Frames from one function to another go through the network, too: only that knows its routes."""

    __slots__ = ("_due", "_outlet")

    def __init__(self, wire: FrameSocket, head: bytes) -> None:
        """head: the NIC's address and its frames' EtherType."""
        super().__init__(wire, frozenset())
        self._due: int | None = None
        self._outlet = outlet(wire, self.put, head, self._hold)

    @property
    def due(self) -> int | None:
        return self._due

    @property
    def kept(self) -> int:
        return len(self._outlet.kept)

    def hear(self, frame: bytes) -> bool:
        return is_word(frame) and self._outlet.hear(frame)

    def tick(self, now: int) -> None:
        if self._due is not None and self._due <= now:
            self._due = now + AGAIN if self._outlet.again() else None

    def send(self, frame: Buffer) -> None:
        self._outlet.send(frame)

    def _hold(self) -> None:
        if self._due is None:
            self._due = time.monotonic_ns() + AGAIN

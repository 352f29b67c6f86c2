"""An inline NIC of a network with back-pressure: frames wait in it while the network takes none."""

from __future__ import annotations

from collections.abc import Callable

from protocols.core.firmware import Buffer, Firmware
from testbed.engine.loop import Loop
from testbed.kernel.frame_socket import FrameSocket
from testbed.runtime.holding import Asking, is_word, outlet
from testbed.runtime.nodes.inline import InlineNic


class RoutedNic(InlineNic):
    """As `InlineNic`."""

    __slots__ = ("_asking", "_receive", "outlet")

    def __init__(self, wire: FrameSocket, head: bytes) -> None:
        """head: the NIC's address and its frames' EtherType."""
        super().__init__(wire)
        self._asking: Asking | None = None
        self._receive: Callable[[int, bytes], None]
        self.outlet = outlet(wire, self.put, head, self._hold)

    @property
    def kept(self) -> int:
        return len(self.outlet.kept)

    def begin(self, loop: Loop) -> None:
        """What drives it has a loop."""
        self._asking = Asking(loop, self.outlet)

    def send(self, frame: Buffer) -> None:
        self.outlet.send(frame)

    def taking(self, firmware: Firmware) -> Callable[[int, bytes], None]:
        self._receive = firmware.receive
        return self._take

    def _take(self, now: int, frame: bytes) -> None:
        if not (is_word(frame) and self.outlet.hear(frame)):
            self._receive(now, frame)

    def _hold(self) -> None:
        if self._asking is not None:
            self._asking.begin()

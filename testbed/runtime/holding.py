"""Frames on their way out of a NIC, through a packet socket, into a network with back-pressure (`wire.myrinet.stop_go`)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final

from testbed.engine.loop import Loop, Timer
from testbed.kernel.frame_socket import FrameSocket
from testbed.wire.myrinet.stop_go import ADDRESS, AGAIN, Outlet

BUFFER: Final = 128 << 20
"""Bytes of frames that have come, with the kernel's overhead for each; the kernel uses what it needs of it."""


def outlet(
    wire: FrameSocket, put: Callable[[bytes | bytearray | memoryview], bool], head: bytes, on_hold: Callable[[], object]
) -> Outlet:
    """What a NIC's frames leave by. put: see `Outlet`. head: the NIC's address and its frames' EtherType."""

    def say(word: bytes) -> None:
        with contextlib.suppress(OSError):  # nobody hears it, and it will be said again
            wire.socket.send(word)

    return Outlet(put, say, head, on_hold)


def is_word(frame: bytes) -> bool:
    """Whether a frame that has come may be for an outlet: `Outlet.hear` says whether it is."""
    return frame[:6] == ADDRESS


def routed_socket(device: str, ethertype: int, mtu: int) -> FrameSocket:
    """For a NIC of such a network: it has room for all that may come, from everybody, while a program computes, as nothing
    is ever sent again. OSError."""
    return FrameSocket(device, ethertype, mtu, BUFFER)


class Asking:
    """Has an outlet ask again while frames wait in it, by a loop's timer."""

    __slots__ = ("_again", "_loop", "_outlet", "_timer")

    def __init__(self, loop: Loop, outlet: Outlet, slowed: int = 1) -> None:
        """slowed: how many nanoseconds of the machine are one of the loop's."""
        self._loop = loop
        self._outlet = outlet
        self._again: Final = max(1, AGAIN // slowed)
        self._timer: Final[Timer] = loop.timer(self._due)
        if outlet.kept:
            self.begin()

    def begin(self) -> None:
        """A first frame waits."""
        if self._timer.when is None:
            self._timer.set(self._loop.now() + self._again)

    def _due(self, now: int) -> None:
        if self._outlet.again():
            self._timer.set(now + self._again)

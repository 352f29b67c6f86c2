"""Packet socket for one EtherType, one frame per call: the wire of a NIC whose firmware runs in this process.

The kernel's own traffic on the interface does not come here, and so costs such a NIC nothing. Sending blocks while the
interface takes no more; receiving never blocks. `testbed.kernel.packet_socket` takes all frames, in batches.
"""

from __future__ import annotations

import errno
import socket
import struct
import time
from collections.abc import Callable, Mapping
from typing import Final

from protocols.core.firmware import Buffer
from testbed.engine.failures import ETHERNET_HEADER, frame_too_long
from testbed.kernel.interpreted_frames import HEADROOM
from testbed.kernel.packet_options import (
    DOWN,
    PACKET_IGNORE_OUTGOING,
    SO_TIMESTAMPNS,
    SOL_PACKET,
    has_carrier,
    set_buffers,
    take_statistics,
)

try:
    from testbed.kernel import native_frames as frames  # of the compiled build
except ImportError:
    from testbed.kernel import interpreted_frames as frames  # type: ignore[no-redef]  # the same classes

FrameCalls = frames.FrameCalls

BUFFER: Final = 8 << 20
"""Bytes of frames, with the kernel's overhead for each, that may wait while a program computes."""

_TIMESPEC: Final = struct.Struct("qq")
_STAMP_ROOM: Final = socket.CMSG_SPACE(_TIMESPEC.size)


class FrameSocket:
    """A packet socket for frames of one EtherType on an interface of the caller's network namespace.

    mtu: the interface's, in bytes. OSError when there is no such interface. `next_frame` returns the next frame; None where
    none has come, or the interface is down. It may read frames ahead: the descriptor tells of frames that have come only
    once None was returned.
    """

    __slots__ = (
        "_device", "_lost", "_mtu", "_send", "_takes", "close", "dropped", "longest", "next_frame", "send", "socket",
        "taken",
    )  # fmt: skip

    def __init__(self, device: str, ethertype: int, mtu: int, buffer: int = BUFFER) -> None:
        self._device = device
        self._mtu = mtu
        self._takes: Mapping[bytes, tuple[str, int]] = {}
        self._lost: dict[str, tuple[int, int]] = {}  # by whom: how many frames too long for it were sent, the longest
        self.longest = mtu + HEADROOM
        self.taken = 0
        """Frames that came and found room, up to the last `look`."""
        self.dropped = 0
        """Frames that the kernel dropped because nobody read in time, up to the last `look`."""
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
        try:
            set_buffers(self.socket, buffer, socket.SO_SNDBUF, socket.SO_RCVBUF)
            self.socket.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
            self.socket.bind((device, ethertype))
        except BaseException:
            self.socket.close()
            raise
        calls = FrameCalls(self.socket, self.longest)
        self.next_frame: Final[Callable[[], bytes | None]] = calls.receive
        self.close: Final[Callable[[], None]] = calls.close
        self._send: Final[Callable[[Buffer], int]] = calls.send
        self.send: Callable[[Buffer], int] = calls.send
        """Raises OSError, of which `is_down` says more."""

    def note_lengths(self, takes: Mapping[bytes, tuple[str, int]]) -> None:
        """Count frames that are too long for their receiver: `lost`. takes: MAC address -> the node's name, its MTU."""
        self._takes = takes
        self.send = self._send_noted

    def _send_noted(self, frame: Buffer) -> int:
        name, mtu = self._takes.get(bytes(frame[:6]), ("", 0))
        if name and len(frame) > mtu + ETHERNET_HEADER:
            count, longest = self._lost.get(name, (0, 0))
            self._lost[name] = count + 1, max(longest, len(frame))
        return self._send(frame)

    def lost(self) -> list[str]:
        """Return a sentence for each node that cannot take frames that were sent to it."""
        mtus = dict(self._takes.values())
        return [
            f"{count} frames to {name}, of up to {longest} bytes, are lost there: its MTU, {mtus[name]}, lets it take "
            f"{mtus[name] + ETHERNET_HEADER}"
            for name, (count, longest) in self._lost.items()
        ]

    def is_down(self, error: OSError, size: int) -> bool:
        """Whether sending a frame of that size failed because the interface or its peer is down. Raises ValueError for a
        frame that exceeds the MTU."""
        if error.errno == errno.EMSGSIZE and size > self._mtu + ETHERNET_HEADER:
            raise frame_too_long(size, self._mtu) from error
        return error.errno in DOWN or not self.has_carrier()

    def fileno(self) -> int:
        return self.socket.fileno()

    def has_carrier(self) -> bool:
        """Whether the interface's peer is up."""
        return has_carrier(self.socket.fileno(), self._device)

    def stamp(self) -> None:
        """Let the kernel stamp each frame with its time of arrival: `stamped`."""
        self.socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)

    def stamped(self) -> list[tuple[int, bytes]]:
        """Receive all frames that wait, each with its time of arrival in nanoseconds of the monotonic clock."""
        frames: list[tuple[int, bytes]] = []
        behind = time.time_ns() - time.monotonic_ns()  # stamps are of the wall clock, which may be set meanwhile
        while True:
            try:
                frame, control, _, _ = self.socket.recvmsg(self.longest, _STAMP_ROOM, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return frames
            except OSError as error:  # reported once by a socket whose interface was set down
                if error.errno not in DOWN:
                    raise
                continue
            seconds, nanoseconds = _TIMESPEC.unpack_from(control[0][2])
            frames.append((seconds * 1_000_000_000 + nanoseconds - behind, frame))

    def update_counts(self) -> None:
        """Update the counts."""
        received, dropped = take_statistics(self.socket)
        self.taken += received - dropped
        self.dropped += dropped

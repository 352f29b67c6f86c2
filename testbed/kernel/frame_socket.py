"""Packet socket for one EtherType, one frame per call: the wire of a NIC whose firmware runs in this process.

Other traffic of the interface is not received, and so takes no time of the NIC. Sending blocks while the interface's queue
is full; receiving never blocks. `testbed.kernel.packet_socket` receives all frames, in batches.
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
from testbed.kernel import interpreted_frames
from testbed.kernel.interpreted_frames import HEADROOM, PollingFrameCalls
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
_has_native_frames: Final = frames is not interpreted_frames

BUFFER: Final = 8 << 20
"""Bytes of frames, including the kernel's overhead, that can be queued while a program computes."""

_TIMESPEC: Final = struct.Struct("qq")
_STAMP_ROOM: Final = socket.CMSG_SPACE(_TIMESPEC.size)


class FrameSocket:
    """A packet socket for frames of one EtherType on an interface of the caller's network namespace.

    device: name of the interface. mtu: of the interface, bytes. buffer: bytes of the send and the receive buffer.
    polls_often: whether the process polls other sources, too, so that it finds no frame most times. Raises OSError if there
    is no such interface.

    `next_frame` returns the next frame; None if there is none, or the interface is down. It may read frames ahead: the
    descriptor shows pending frames only after None was returned.
    """

    __slots__ = (
        "_device", "_mtu", "_oversized", "_receiver_mtus", "_send", "close", "dropped", "max_frame", "next_frame",
        "received", "send", "socket",
    )  # fmt: skip

    def __init__(
        self, device: str, ethertype: int, mtu: int, buffer: int = BUFFER, *, polls_often: bool = False
    ) -> None:
        self._device = device
        self._mtu = mtu
        self._receiver_mtus: Mapping[bytes, tuple[str, int]] = {}
        # Receiver -> number of oversized frames sent to it, bytes of the longest
        self._oversized: dict[str, tuple[int, int]] = {}
        self.max_frame = mtu + HEADROOM
        self.received = 0
        """Frames received, up to the last `update_counts`."""
        self.dropped = 0
        """Frames that the kernel dropped because they were not read in time, up to the last `update_counts`."""
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
        try:
            set_buffers(self.socket, buffer, socket.SO_SNDBUF, socket.SO_RCVBUF)
            self.socket.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
            self.socket.bind((device, ethertype))
        except BaseException:
            self.socket.close()
            raise
        # Natively a receive without a frame costs no exception.
        looks_first = polls_often and not _has_native_frames
        calls = (PollingFrameCalls if looks_first else FrameCalls)(self.socket, self.max_frame)
        self.next_frame: Final[Callable[[], bytes | None]] = calls.receive
        self.close: Final[Callable[[], None]] = calls.close
        self._send: Final[Callable[[Buffer], int]] = calls.send
        self.send: Callable[[Buffer], int] = calls.send
        """Raises OSError, see `is_down`."""

    def count_oversized(self, receiver_mtus: Mapping[bytes, tuple[str, int]]) -> None:
        """Count frames that are too long for their receiver, see `oversized_sentences`. receiver_mtus: MAC address -> name
        and MTU of the node."""
        self._receiver_mtus = receiver_mtus
        self.send = self._send_counted

    def _send_counted(self, frame: Buffer) -> int:
        name, mtu = self._receiver_mtus.get(bytes(frame[:6]), ("", 0))
        if name and len(frame) > mtu + ETHERNET_HEADER:
            count, max_frame = self._oversized.get(name, (0, 0))
            self._oversized[name] = count + 1, max(max_frame, len(frame))
        return self._send(frame)

    def oversized_sentences(self) -> list[str]:
        """Return a sentence for each node to which frames were sent that exceed its MTU."""
        mtus = dict(self._receiver_mtus.values())
        return [
            f"{count} frames to {name}, of up to {max_frame} bytes, are lost there: its MTU of {mtus[name]} allows "
            f"{mtus[name] + ETHERNET_HEADER}"
            for name, (count, max_frame) in self._oversized.items()
        ]

    def is_down(self, error: OSError, size: int) -> bool:
        """Whether sending a frame failed because the interface or its peer is down. error: of `send`. size: of the frame,
        bytes. Raises ValueError if the frame exceeds the MTU."""
        if error.errno == errno.EMSGSIZE and size > self._mtu + ETHERNET_HEADER:
            raise frame_too_long(size, self._mtu) from error
        return error.errno in DOWN or not self.has_carrier()

    def fileno(self) -> int:
        return self.socket.fileno()

    def has_carrier(self) -> bool:
        """Whether the interface's peer is up."""
        return has_carrier(self.socket.fileno(), self._device)

    def enable_timestamps(self) -> None:
        """Let the kernel record the time of arrival of each frame, for `receive_timestamped`."""
        self.socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)

    def receive_timestamped(self) -> list[tuple[int, bytes]]:
        """Receive all pending frames, each with its time of arrival in nanoseconds of the monotonic clock."""
        frames: list[tuple[int, bytes]] = []
        clock_offset = time.time_ns() - time.monotonic_ns()  # timestamps are in wall-clock time
        while True:
            try:
                frame, control, _, _ = self.socket.recvmsg(self.max_frame, _STAMP_ROOM, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return frames
            except OSError as error:  # reported once by a socket whose interface was set down
                if error.errno not in DOWN:
                    raise
                continue
            seconds, nanoseconds = _TIMESPEC.unpack_from(control[0][2])
            frames.append((seconds * 1_000_000_000 + nanoseconds - clock_offset, frame))

    def update_counts(self) -> None:
        """Update `received` and `dropped`."""
        received, dropped = take_statistics(self.socket)
        self.received += received - dropped
        self.dropped += dropped

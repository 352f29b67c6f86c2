"""Reception and transmission of frames by packet sockets, in Python: one frame per call for a NIC, batches for the relay.

`native_frames.c` implements `FrameCalls` and `Arena` for the compiled build; tests compare both implementations. Python's
socket module has no recvmmsg and sendmmsg; they are called through libc, with buffers that are laid out once.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import select
import socket
import struct
import time
from array import array
from collections.abc import Callable
from itertools import accumulate, chain
from typing import Final

from protocols.core.firmware import Buffer
from testbed.kernel import gso
from testbed.kernel.packet_options import DOWN

BATCH: Final = 64
"""Maximum number of frames per system call."""

HEADROOM: Final = 14 + 8
"""Bytes by which a frame can exceed its interface's MTU: the Ethernet header and two VLAN tags."""

MAX_FRAME_SIZE: Final = 65_535 + HEADROOM
"""Maximum bytes of a frame, on an interface with the largest MTU."""

VLAN_VALID: Final = 1 << 4
VLAN_TPID_VALID: Final = 1 << 6
CSUM_NOT_READY: Final = 1 << 3
_UNUSUAL: Final = VLAN_VALID | CSUM_NOT_READY

FrameConverter = Callable[[bytes, memoryview, int, int, int, int], bytes | None]
"""Function that converts a frame that is tagged, offloaded or too long.

Its arguments are the frame's virtio_net_hdr; a view of the frame, valid during the call and cut at MAX_FRAME_SIZE; and the
frame's length, status, VLAN tag and the tag's EtherType, as in struct tpacket_auxdata. It returns the frame to receive
instead, or None to discard the frame."""

_NO_OFFLOADS: Final = bytes(gso.HEADER.size)
_DESTINATION: Final = struct.Struct("=HHi12x")  # struct sockaddr_ll: family, protocol (0: as in the frame), index
_HEADER_SIZE: Final = gso.HEADER.size  # bytes before each frame
_SLOT: Final = _HEADER_SIZE + MAX_FRAME_SIZE
# Offsets of the slots, and of the frames in them
_OFFSETS: Final = [(slot, slot + _HEADER_SIZE) for slot in range(0, BATCH * _SLOT, _SLOT)]
_MIN_LENGTH: Final = _HEADER_SIZE + 14  # including the Ethernet header
_MSG_DONTWAIT: Final = socket.MSG_DONTWAIT
_MSG_TRUNC: Final = socket.MSG_TRUNC

_IOVEC: Final = struct.Struct("QQ")  # address, length
_MESSAGE: Final = struct.Struct("QI4xQQQQi4xI4x")  # struct mmsghdr: msghdr (name, iov, control, flags), length
_LENGTH: Final = struct.Struct("56xI4x")
# Control data, in the order in which packet_recvmsg writes it: SCM_TIMESTAMPNS, then struct tpacket_auxdata.
_CONTROL: Final = struct.Struct("16xqq16xI12xHH4x")
_NANOSECONDS: Final = 1_000_000_000
_MAX_GAP: Final = 2_000  # ns; without preemption, the three readings of `_clocks` take a tenth of it
_MAX_ATTEMPTS: Final = 20

_libc = ctypes.CDLL(None, use_errno=True)
_libc.recvmmsg.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int, ctypes.c_void_p)
_libc.sendmmsg.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int)


class FrameCalls:
    """Reception and transmission by one packet socket, one frame per call.

    `receive` may read frames ahead: the descriptor shows pending frames only after `receive` has returned None.
    """

    __slots__ = ("_max_size", "_receive", "_socket", "send")

    def __init__(self, packet_socket: socket.socket, max_size: int) -> None:
        """packet_socket: is closed by `close`. max_size: maximum bytes of a received frame; longer frames are truncated."""
        if max_size < 1:
            raise ValueError(f"max_size must be 1 byte or more, got {max_size}")
        self._socket = packet_socket
        self._max_size = max_size
        self._receive = packet_socket.recv
        self.send: Callable[[Buffer], int] = packet_socket.send
        """Send a frame; return its length. Waits while the interface's queue is full. Raises OSError."""

    def receive(self) -> bytes | None:
        """Receive the next frame; None if none is pending, or the interface is down. Raises OSError."""
        # Without a frame, the exception takes 1.3 us, and polling the descriptor first 0.3 us. With a frame, polling takes
        # longer: a round trip of bare sockets takes 7.8 us this way, and 10 us with epoll.
        try:
            return self._receive(self._max_size, _MSG_DONTWAIT)
        except BlockingIOError:
            return None
        except OSError as error:  # reported once after the interface was set down
            if error.errno not in DOWN:
                raise
            return None

    def close(self) -> None:
        """Close the socket. All further calls raise OSError."""
        self._socket.close()


class PollingFrameCalls(FrameCalls):
    """`FrameCalls` for a process that polls other sources, too, and so finds no frame most times: `receive` polls the
    descriptor first."""

    __slots__ = ("_epoll", "_poll")

    def __init__(self, packet_socket: socket.socket, max_size: int) -> None:
        super().__init__(packet_socket, max_size)
        self._epoll = select.epoll()
        self._epoll.register(packet_socket.fileno(), select.EPOLLIN)
        self._poll: Callable[[float], object] = self._epoll.poll

    def receive(self) -> bytes | None:
        return super().receive() if self._poll(0) else None

    def close(self) -> None:
        self._poll = _report_event
        self._epoll.close()
        super().close()


class Arena:
    """Buffers for one batch, shared by any number of sockets of one process. Only pages that were used take memory."""

    __slots__ = (
        "_address", "_anchor", "_control", "_destination", "_frames", "_messages", "_sent_address", "_sent_messages",
        "_sent_vectors", "_template", "_vectors", "_view",
    )  # fmt: skip

    def __init__(self) -> None:
        self._frames = mmap.mmap(-1, BATCH * _SLOT)  # whose slices are bytes, without a view in between
        self._view = memoryview(self._frames)
        self._anchor = ctypes.c_char.from_buffer(self._frames)
        self._control = bytearray(BATCH * _CONTROL.size)
        self._vectors = bytearray(BATCH * _IOVEC.size)
        self._messages = bytearray(BATCH * _MESSAGE.size)
        control, vectors = _address(self._control), _address(self._vectors)
        first = ctypes.addressof(self._anchor)
        for i in range(BATCH):
            _IOVEC.pack_into(self._vectors, i * _IOVEC.size, first + i * _SLOT, _SLOT)
            header = (0, 0, vectors + i * _IOVEC.size, 1, control + i * _CONTROL.size, _CONTROL.size, 0, 0)
            _MESSAGE.pack_into(self._messages, i * _MESSAGE.size, *header)
        self._template = bytes(self._messages)
        self._address = _address(self._messages)
        sent_vectors = bytearray(BATCH * _IOVEC.size)
        self._sent_vectors = memoryview(sent_vectors).cast("Q")  # address, length, address, ...
        self._sent_messages = bytearray(BATCH * _MESSAGE.size)
        self._destination = bytearray(_DESTINATION.size)
        vectors, name = _address(sent_vectors), _address(self._destination)
        for i in range(BATCH):
            header = (name, _DESTINATION.size, vectors + i * _IOVEC.size, 1, 0, 0, 0, 0)
            _MESSAGE.pack_into(self._sent_messages, i * _MESSAGE.size, *header)
        self._sent_address = _address(self._sent_messages)

    def receive(
        self, descriptor: int, max_frames: int, earliest: int, max_size: int, convert: FrameConverter
    ) -> tuple[int, int, list[tuple[int, bytes]]]:
        """Receive frames that are pending on a packet socket with PACKET_VNET_HDR, PACKET_AUXDATA and SO_TIMESTAMPNS.

        max_frames: 1 to BATCH. earliest: minimum time of arrival. max_size: bytes; longer frames are passed to `convert`.

        Returns the number of frames read; the nanoseconds by which the wall clock is ahead of the monotonic clock; and the
        frames with their times of arrival, in nanoseconds of the monotonic clock, which do not decrease. Frames without a
        complete Ethernet header, and those that `convert` discards, are left out. No frame is received while the interface
        is down. Raises OSError, ValueError.
        """
        if not 1 <= max_frames <= BATCH:
            raise ValueError(f"max_frames must be 1 to {BATCH}, got {max_frames}")
        self._messages[:] = self._template
        count = _libc.recvmmsg(descriptor, self._address, max_frames, _MSG_DONTWAIT | _MSG_TRUNC, None)
        if count < 0:
            reason = ctypes.get_errno()
            if reason not in (errno.EAGAIN, errno.EINTR, *DOWN):
                raise OSError(reason, os.strerror(reason))
            return 0, 0, []
        now, clock_offset = _clocks()
        frames, view, max_length = self._frames, self._view, max_size + _HEADER_SIZE
        received: list[tuple[int, bytes]] = []
        lengths = _LENGTH.iter_unpack(memoryview(self._messages)[: count * _MESSAGE.size])
        controls = _CONTROL.iter_unpack(memoryview(self._control)[: count * _CONTROL.size])
        for (slot, begin), (length,), (seconds, nanoseconds, status, tci, tpid) in zip(
            _OFFSETS[:count], lengths, controls, strict=True
        ):
            stamp = seconds * _NANOSECONDS + nanoseconds - clock_offset
            if stamp > now:
                stamp = now
            if stamp < earliest:
                stamp = earliest
            earliest = stamp
            frame: bytes | None
            if length < _MIN_LENGTH:
                continue
            if length <= max_length and not status & _UNUSUAL:
                frame = frames[begin : slot + length]
            else:
                with view[begin : slot + min(length, _SLOT)] as frame_view:
                    frame = convert(frames[slot:begin], frame_view, length - _HEADER_SIZE, status, tci, tpid)
                if frame is None:
                    continue
            received.append((stamp, frame))
        return count, clock_offset, received

    def send(self, descriptor: int, index: int, frames: list[bytes], headers: list[bytes]) -> tuple[int, int]:
        """Send up to BATCH frames in order by the interface with this index; return the number of frames that the kernel
        accepted, and the errno of the next frame, 0 if all were accepted.

        headers: a virtio_net_hdr for each frame; empty: all frames are complete. Raises ValueError.
        """
        if len(frames) > BATCH or len(headers) not in (0, len(frames)):
            raise ValueError(
                f"a batch has at most {BATCH} frames, and no headers or as many as frames, got {len(frames)} frames and "
                f"{len(headers)} headers"
            )
        if not frames:
            return 0, 0
        if headers:
            joined = b"".join(chain.from_iterable(zip(headers, frames, strict=True)))
        else:
            joined = _NO_OFFLOADS.join([b"", *frames])
        self._destination[:] = _DESTINATION.pack(socket.AF_PACKET, 0, index)
        lengths = array("Q", [len(frame) + _HEADER_SIZE for frame in frames])
        start = ctypes.cast(ctypes.c_char_p(joined), ctypes.c_void_p).value or 0
        self._sent_vectors[0 : 2 * len(frames) : 2] = array("Q", accumulate(lengths[:-1], initial=start))
        self._sent_vectors[1 : 2 * len(frames) : 2] = lengths
        sent = 0
        while sent < len(frames):
            address = self._sent_address + sent * _MESSAGE.size
            count = _libc.sendmmsg(descriptor, address, len(frames) - sent, _MSG_DONTWAIT)
            if count > 0:
                sent += count
            elif (reason := ctypes.get_errno()) != errno.EINTR:
                return sent, reason
        return sent, 0


def _report_event(_: float) -> bool:
    """Report an event, so that `receive` reads the closed socket, which raises its error."""
    return True


def _address(buffer: bytearray) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def _clocks() -> tuple[int, int]:
    """Return the monotonic time, and the nanoseconds by which the wall clock, used for timestamps of frames, is ahead of it.

    Two clocks cannot be read at once. If this process is preempted between the readings, the difference is wrong, and
    with it the age of frames; then the clocks are read again.
    """
    before = time.monotonic_ns()
    for _ in range(_MAX_ATTEMPTS):
        wall = time.time_ns()
        after = time.monotonic_ns()
        if after - before <= _MAX_GAP:
            break
        before = after
    return after, wall - before

"""Frames in and out of packet sockets, in Python: one per call for a NIC, in batches for the relay.

`native_frames.c` has the same two classes for the compiled build; tests hold both against each other. Python's
socket module has no recvmmsg and sendmmsg; they are called through libc with buffers that are laid out once.
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
"""Maximum of frames per system call."""

HEADROOM: Final = 14 + 8
"""Bytes of a frame beyond its interface's MTU: the Ethernet header and two VLAN tags."""

LARGEST: Final = 65_535 + HEADROOM
"""Bytes of a frame on an interface with the largest MTU."""

VLAN_VALID: Final = 1 << 4
VLAN_TPID_VALID: Final = 1 << 6
CSUM_NOT_READY: Final = 1 << 3
_UNUSUAL: Final = VLAN_VALID | CSUM_NOT_READY

Unusual = Callable[[bytes, memoryview, int, int, int, int], bytes | None]
"""Called with a frame that is tagged, offloaded or too long: its virtio_net_hdr, a view of it for the time of the call (cut
where it is longer than LARGEST), its length, status, VLAN tag and the tag's EtherType, as in struct tpacket_auxdata. Returns
what is received in its place, if anything."""

_NO_OFFLOADS: Final = bytes(gso.HEADER.size)
_DESTINATION: Final = struct.Struct("=HHi12x")  # struct sockaddr_ll: family, protocol (the frame's own), index
_FRONT: Final = gso.HEADER.size  # bytes before each frame
_SLOT: Final = _FRONT + LARGEST
_PLACES: Final = [(slot, slot + _FRONT) for slot in range(0, BATCH * _SLOT, _SLOT)]  # and where the frames begin
_SHORTEST: Final = _FRONT + 14  # with the Ethernet header
_MSG_DONTWAIT: Final = socket.MSG_DONTWAIT
_MSG_TRUNC: Final = socket.MSG_TRUNC

_IOVEC: Final = struct.Struct("QQ")  # address, length
_MESSAGE: Final = struct.Struct("QI4xQQQQi4xI4x")  # struct mmsghdr: msghdr (name, iov, control, flags), length
_LENGTH: Final = struct.Struct("56xI4x")
# Control data, in the order in which packet_recvmsg writes it: SCM_TIMESTAMPNS, then struct tpacket_auxdata.
_CONTROL: Final = struct.Struct("16xqq16xI12xHH4x")
_NANOSECONDS: Final = 1_000_000_000
_MAX_GAP: Final = 2_000  # ns; two readings of the monotonic clock with another clock's between them take a tenth of it
_ATTEMPTS: Final = 20

_libc = ctypes.CDLL(None, use_errno=True)
_libc.recvmmsg.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int, ctypes.c_void_p)
_libc.sendmmsg.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int)


class FrameCalls:
    """Calls of one packet socket, one frame each. It may read frames ahead: the descriptor tells of frames that have come
    only once `receive` has returned None."""

    __slots__ = ("_longest", "_opened", "_receive", "send")

    def __init__(self, opened: socket.socket, longest: int) -> None:
        """opened: `close` closes it. longest: bytes of a frame, 1 or more; longer ones are cut."""
        if longest < 1:
            raise ValueError(f"a frame has 1 byte or more, not {longest}")
        self._opened = opened
        self._longest = longest
        self._receive = opened.recv
        self.send: Callable[[Buffer], int] = opened.send
        """Send a frame; return its length. Waits while the interface takes no more. OSError."""

    def receive(self) -> bytes | None:
        """Receive the next frame; None where none has come, or the interface is down. OSError."""
        # The exception takes longer than to look at the descriptor first (1.3 us; epoll 0.3), but a frame that has come is
        # here sooner: round trips of bare sockets by exceptions 7.8 us, by epoll 10.
        try:
            return self._receive(self._longest, _MSG_DONTWAIT)
        except BlockingIOError:
            return None
        except OSError as error:  # reported once by a socket whose interface was set down
            if error.errno not in DOWN:
                raise
            return None

    def close(self) -> None:
        """Close the socket: all calls raise OSError from now on."""
        self._opened.close()


class LookingFrameCalls(FrameCalls):
    """FrameCalls for a process that also looks at other things in turn, and so often finds no frame: `receive` looks at the
    descriptor first."""

    __slots__ = ("_epoll", "_poll")

    def __init__(self, opened: socket.socket, longest: int) -> None:
        super().__init__(opened, longest)
        self._epoll = select.epoll()
        self._epoll.register(opened.fileno(), select.EPOLLIN)
        self._poll: Callable[[float], object] = self._epoll.poll

    def receive(self) -> bytes | None:
        return super().receive() if self._poll(0) else None

    def close(self) -> None:
        self._poll = _report_event
        self._epoll.close()
        super().close()


class Arena:
    """Buffers for one batch, shared by any number of sockets of one process. Only used pages take memory."""

    __slots__ = (
        "_address", "_anchor", "_control", "_destination", "_frames", "_messages", "_sent_address", "_sent_messages",
        "_sent_vectors", "_template", "_vectors", "_view",
    )  # fmt: skip

    def __init__(self) -> None:
        self._frames = mmap.mmap(-1, BATCH * _SLOT)  # a slice of a mmap is bytes, without a view in between
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
        self, descriptor: int, most: int, earliest: int, longest: int, unusual: Unusual
    ) -> tuple[int, int, list[tuple[int, bytes]]]:
        """Receive up to `most` frames, 1 to BATCH, of up to `longest` bytes, that wait on a packet socket with
        PACKET_VNET_HDR, PACKET_AUXDATA and SO_TIMESTAMPNS.

        Returns how many came; by how much the wall clock, in nanoseconds, is ahead of the monotonic one; and each with its
        time of arrival on the monotonic clock, but for those without an Ethernet header, and those for which `unusual`
        returns None. Times are at least `earliest` and do not decrease. No frame comes where the interface is down.
        OSError."""
        if not 1 <= most <= BATCH:
            raise ValueError(f"a batch has 1 to {BATCH} frames, not {most}")
        self._messages[:] = self._template
        count = _libc.recvmmsg(descriptor, self._address, most, _MSG_DONTWAIT | _MSG_TRUNC, None)
        if count < 0:
            reason = ctypes.get_errno()
            if reason not in (errno.EAGAIN, errno.EINTR, *DOWN):
                raise OSError(reason, os.strerror(reason))
            return 0, 0, []
        now, behind = _clocks()
        frames, view, longest_slot = self._frames, self._view, longest + _FRONT
        received: list[tuple[int, bytes]] = []
        lengths = _LENGTH.iter_unpack(memoryview(self._messages)[: count * _MESSAGE.size])
        controls = _CONTROL.iter_unpack(memoryview(self._control)[: count * _CONTROL.size])
        for (slot, begin), (length,), (seconds, nanoseconds, status, tci, tpid) in zip(
            _PLACES[:count], lengths, controls, strict=True
        ):
            stamp = seconds * _NANOSECONDS + nanoseconds - behind
            if stamp > now:
                stamp = now
            if stamp < earliest:
                stamp = earliest
            earliest = stamp
            frame: bytes | None
            if length < _SHORTEST:
                continue
            if length <= longest_slot and not status & _UNUSUAL:
                frame = frames[begin : slot + length]
            else:
                with view[begin : slot + min(length, _SLOT)] as seen:
                    frame = unusual(frames[slot:begin], seen, length - _FRONT, status, tci, tpid)
                if frame is None:
                    continue
            received.append((stamp, frame))
        return count, behind, received

    def send(self, descriptor: int, index: int, frames: list[bytes], headers: list[bytes]) -> tuple[int, int]:
        """Send up to BATCH frames in order by the interface of that index. headers: a virtio_net_hdr for each; none: they
        are complete. Returns how many the kernel took before an error, and its number; 0: it took all."""
        if len(frames) > BATCH or len(headers) not in (0, len(frames)):
            raise ValueError(f"a batch has at most {BATCH} frames, and as many headers or none")
        if not frames:
            return 0, 0
        if headers:
            joined = b"".join(chain.from_iterable(zip(headers, frames, strict=True)))
        else:
            joined = _NO_OFFLOADS.join([b"", *frames])
        self._destination[:] = _DESTINATION.pack(socket.AF_PACKET, 0, index)
        lengths = array("Q", [len(frame) + _FRONT for frame in frames])
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
    """Report an event: reading the closed socket then raises its error."""
    return True


def _address(buffer: bytearray) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def _clocks() -> tuple[int, int]:
    """Return the monotonic time, and by how much the wall clock, which the kernel stamps frames with, is ahead of it.

    Two clocks cannot be read at once. If this process is preempted between the two readings, frames would seem older or
    younger than they are: then the clocks are read again.
    """
    before = time.monotonic_ns()
    for _ in range(_ATTEMPTS):
        wall = time.time_ns()
        after = time.monotonic_ns()
        if after - before <= _MAX_GAP:
            break
        before = after
    return after, wall - before

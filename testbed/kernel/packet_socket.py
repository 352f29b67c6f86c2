"""Packet sockets: complete frames in and out of an interface, many per system call.

Python's socket module has no recvmmsg and sendmmsg; they are called through libc with buffers that are laid out once.
Every frame comes with the time at which the kernel got it, so that a late reader knows by how much it is late, and with
its VLAN tag, which the kernel takes out of the frame before any packet socket sees it. GSO frames are received and sent as
they are, with their header (see `gso`).

Sent frames pass the kernel's qdiscs (PACKET_QDISC_BYPASS is never set) and are seen by captures.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import socket
import struct
import time
from array import array
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Final

from testbed.kernel import gso
from testbed.kernel.diversion import mark_program
from testbed.kernel.gso import NO_OFFLOADS, GsoFrame
from testbed.kernel.packet_options import (
    DOWN,
    ETH_P_ALL,
    PACKET_AUXDATA,
    PACKET_IGNORE_OUTGOING,
    PACKET_VNET_HDR,
    SO_MARK,
    SO_TIMESTAMPNS,
    SOL_PACKET,
    attach_filter,
    has_carrier,
    set_buffers,
    take_statistics,
)

BATCH: Final = 64
"""Frames per system call."""

GSO_BATCH: Final = 8
"""Frames per system call where the last ones were GSO frames of several segments: they have about as many bytes as a full
batch of others, and delay other links for as long."""

HEADROOM: Final = 14 + 8
"""Bytes of a frame beyond its interface's MTU: the Ethernet header and two VLAN tags."""

LARGEST: Final = 65_535 + HEADROOM
"""Bytes of a frame on an interface with the largest MTU."""

_SIOCGIFMTU: Final = 0x8921
_UNUSED_ETHERTYPE: Final = 0xFFFF  # an EtherType that is reserved; with 0 the kernel lets a socket keep what it had
_DESTINATION: Final = struct.Struct("=HHi12x")  # struct sockaddr_ll: family, protocol (the frame's own), index
_FRONT: Final = gso.HEADER.size  # bytes before each frame
_KIND: Final = 1  # offset of the GSO type, which says whether the frame is a GSO frame
_SLOT: Final = _FRONT + LARGEST
_PLACES: Final = [(slot, slot + _FRONT) for slot in range(0, BATCH * _SLOT, _SLOT)]  # and where the frames begin
_SHORTEST: Final = _FRONT + 14  # with the Ethernet header
_MSG_DONTWAIT: Final = 0x40
_MSG_TRUNC: Final = 0x20

_CSUM_NOT_READY: Final = 1 << 3
_VLAN_VALID: Final = 1 << 4
_VLAN_TPID_VALID: Final = 1 << 6
_TAGGED_OR_OFFLOADED: Final = _VLAN_VALID | _CSUM_NOT_READY

_IOVEC: Final = struct.Struct("QQ")  # address, length
_MESSAGE: Final = struct.Struct("QI4xQQQQi4xI4x")  # struct mmsghdr: msghdr (name, iov, control, flags), length
_LENGTH: Final = struct.Struct("56xI4x")
# Control data, in the order in which packet_recvmsg writes it: SCM_TIMESTAMPNS, then struct tpacket_auxdata.
_CONTROL: Final = struct.Struct("16xqq16xI12xHH4x")
_NANOSECONDS: Final = 1_000_000_000
_MAX_GAP: Final = 2_000  # ns; two readings of the monotonic clock with another clock's between them take a tenth of it
_ATTEMPTS: Final = 20

_KNOWN_OF_FRAME: Final = 1_024  # bytes: struct sk_buff, struct skb_shared_info and headroom, and some to spare

_libc = ctypes.CDLL(None, use_errno=True)
_libc.recvmmsg.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int, ctypes.c_void_p)
_libc.sendmmsg.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int)


class Arena:
    """Buffers for one batch, shared by any number of sockets of one process. Only used pages take memory."""

    def __init__(self) -> None:
        self.frames = mmap.mmap(-1, BATCH * _SLOT)  # a slice of a mmap is bytes, without a view in between
        self.view = memoryview(self.frames)
        self._anchor = ctypes.c_char.from_buffer(self.frames)
        self.control = bytearray(BATCH * _CONTROL.size)
        self.vectors = bytearray(BATCH * _IOVEC.size)
        self.messages = bytearray(BATCH * _MESSAGE.size)
        control, vectors = _address(self.control), _address(self.vectors)
        first = ctypes.addressof(self._anchor)
        for i in range(BATCH):
            _IOVEC.pack_into(self.vectors, i * _IOVEC.size, first + i * _SLOT, _SLOT)
            header = (0, 0, vectors + i * _IOVEC.size, 1, control + i * _CONTROL.size, _CONTROL.size, 0, 0)
            _MESSAGE.pack_into(self.messages, i * _MESSAGE.size, *header)
        self.template = bytes(self.messages)
        self.address = _address(self.messages)
        self.sent_vectors = bytearray(BATCH * _IOVEC.size)
        self.sent = memoryview(self.sent_vectors).cast("Q")  # address, length, address, ...
        self.sent_messages = bytearray(BATCH * _MESSAGE.size)
        self.destination = bytearray(_DESTINATION.size)
        vectors, name = _address(self.sent_vectors), _address(self.destination)
        for i in range(BATCH):
            header = (name, _DESTINATION.size, vectors + i * _IOVEC.size, 1, 0, 0, 0, 0)
            _MESSAGE.pack_into(self.sent_messages, i * _MESSAGE.size, *header)
        self.sent_address = _address(self.sent_messages)


def _address(buffer: bytearray) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


@dataclass(slots=True)
class Statistics:
    """Frames that a packet socket failed to receive or send; all 0 on a machine that keeps up and is set up right."""

    overrun: int = 0
    """Frames that the kernel dropped because they were not read in time."""
    oversized: int = 0
    """Frames longer than the interface's MTU allows, or GSO frames of an unknown type: offloads are on that should be
    off."""
    unsent: int = 0
    """Frames that the kernel refused although the interface was up."""
    down: int = 0
    """Frames for an interface that was down or gone, or whose peer was."""

    @property
    def lost(self) -> int:
        """Frames lost inside the emulator, not by an impairment."""
        return self.overrun + self.oversized + self.unsent


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


class PacketSocket:
    """A packet socket that receives all frames of one interface, and sends frames by it or by another one."""

    def __init__(self, device: str, arena: Arena, buffer: int, *, out: str = "", mark: int = 0) -> None:
        """device: an interface in the caller's network namespace. buffer: bytes that may wait when we are late. out: the
        interface by which frames are sent, and whose MTU holds for all, if it is another one. mark: of sent frames;
        frames with it are not received. OSError when there is no such interface."""
        self.device = device
        self.index = socket.if_nametoindex(device)
        self.out = out or device
        self.out_index = socket.if_nametoindex(self.out)
        self.filled = False
        """Whether the last batch was full, so that more frames may wait."""
        self.has_offloaded = False
        """Whether frames of the last batch are `GsoFrame`."""
        self.behind = 0
        """By how much the wall clock was ahead of the monotonic one when the last batch was read."""
        self._batch = BATCH
        self._has_gso = False  # the last batch had frames of several segments
        self._arena = arena
        self._destination = _DESTINATION.pack(socket.AF_PACKET, 0, self.out_index)
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, 0)
        self.statistics = Statistics()
        try:
            set_buffers(self._socket, buffer, socket.SO_RCVBUF, socket.SO_SNDBUF)
            self._socket.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
            self._socket.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
            self._socket.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            if mark:
                attach_filter(self._socket, mark_program(mark, marked=0, others=0xFFFF_FFFF))
                self._socket.setsockopt(socket.SOL_SOCKET, SO_MARK, mark)
            self._socket.bind((device, ETH_P_ALL))
            self._longest = self._mtu() + HEADROOM
        except BaseException:
            self._socket.close()
            raise

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    @property
    def room(self) -> int:
        """How many frames of any size, at least, may wait when we are late. The kernel counts for each its bytes, in blocks
        of up to twice as many, and its metadata."""
        buffer = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        return buffer // (2 * self._longest + _KNOWN_OF_FRAME)

    def stop_listening(self) -> None:
        """Stop receiving the interface's frames; those that have come can still be read, and frames be sent. When this
        returns, no processor is about to queue another frame; it takes the kernel some ten milliseconds."""
        with contextlib.suppress(OSError):  # an interface that is gone sends nothing either
            self._socket.bind((self.device, _UNUSED_ETHERTYPE))

    def still_there(self) -> bool:
        """Whether the interfaces are those that the socket was opened on; also updates the MTU."""
        try:
            if (socket.if_nametoindex(self.device), socket.if_nametoindex(self.out)) != (self.index, self.out_index):
                return False
            self._longest = self._mtu() + HEADROOM
        except OSError:
            return False
        return True

    def _mtu(self) -> int:
        request = struct.pack("16si20x", self.out.encode(), 0)  # struct ifreq
        answer = fcntl.ioctl(self._socket, _SIOCGIFMTU, request)
        mtu: int = struct.unpack_from("16si", answer)[1]
        return mtu

    def receive(self, earliest: int) -> list[tuple[int, bytes]]:
        """Receive up to a batch of frames, each with its time of arrival on the monotonic clock; none when nothing waits.

        Times are at least `earliest` and do not decrease: the wall clock may be set while frames wait, and two processors
        may stamp two frames in one order and queue them in the other.
        """
        arena = self._arena
        arena.messages[:] = arena.template
        self.has_offloaded = self._has_gso = False
        count = _libc.recvmmsg(self.fileno(), arena.address, self._batch, _MSG_DONTWAIT | _MSG_TRUNC, None)
        self.filled = count == self._batch
        if count <= 0:
            if count < 0:
                self._check_error(ctypes.get_errno())
            return []
        now, behind = _clocks()
        self.behind = behind
        frames, view, longest = arena.frames, arena.view, self._longest + _FRONT
        out: list[tuple[int, bytes]] = []
        lengths = _LENGTH.iter_unpack(memoryview(arena.messages)[: count * _MESSAGE.size])
        controls = _CONTROL.iter_unpack(memoryview(arena.control)[: count * _CONTROL.size])
        for (slot, begin), (length,), (seconds, nanoseconds, status, tci, tpid) in zip(
            _PLACES[:count], lengths, controls, strict=True
        ):
            stamp = seconds * _NANOSECONDS + nanoseconds - behind
            if stamp > now:
                stamp = now
            if stamp < earliest:
                stamp = earliest
            earliest = stamp
            if _SHORTEST <= length <= longest and not status & _TAGGED_OR_OFFLOADED:
                out.append((stamp, frames[begin : slot + length]))
                continue
            if length < _SHORTEST:
                continue
            frame: bytes | None
            if length > longest or status & _VLAN_VALID or frames[slot + _KIND]:
                tag = (tpid if status & _VLAN_TPID_VALID else 0x8100) << 16 | tci
                raw = tag.to_bytes(4, "big") if status & _VLAN_VALID else b""
                frame = self._unusual(slot, length, raw, is_complete=not status & _CSUM_NOT_READY)
            else:  # only its checksum is left, and the kernel knows where that is
                frame = GsoFrame(view[begin : slot + length])
                frame.header = frames[slot:begin]
                self.has_offloaded = True
            if frame is not None:
                out.append((stamp, frame))
        self._batch = GSO_BATCH if self._has_gso else BATCH
        return out

    def _check_error(self, reason: int) -> None:
        if reason == errno.EINVAL:  # a GSO frame of a type for which virtio_net_hdr has no value
            self.statistics.oversized += 1
            self.filled = True
        elif reason not in (errno.EAGAIN, errno.EINTR, *DOWN):
            raise OSError(reason, "recvmmsg")

    def _unusual(self, slot: int, length: int, tag: bytes, *, is_complete: bool) -> bytes | None:
        """Return a tagged, GSO or too long frame of the arena, with its tag if it has one. None, and counted as oversized,
        if it is too long for the wire, or cannot be segmented."""
        arena, begin = self._arena, slot + _FRONT
        if is_complete and length <= self._longest + _FRONT:
            frame = arena.frames[begin : slot + length]
            return frame[:12] + tag + frame[12:]
        gso_frame = None
        if not is_complete and length <= _SLOT:
            gso_frame = gso.gso_frame(arena.frames[slot:begin], arena.view[begin : slot + length], tag)
        if gso_frame is None or gso_frame.largest > self._longest:
            self.statistics.oversized += 1 if gso_frame is None else gso_frame.segments
            return None
        self.has_offloaded = True
        if gso_frame.segments > 1:
            self._has_gso = True
        return gso_frame

    def send(self, frames: list[bytes]) -> None:
        """Send complete frames in order. Those that the kernel does not take are counted."""
        for first in range(0, len(frames), BATCH):
            batch = frames[first : first + BATCH]
            self._send(NO_OFFLOADS.join([b"", *batch]), batch)

    def send_offloaded(self, frames: list[bytes]) -> None:
        """Send frames in order, some of which may be `GsoFrame`. Those that the kernel does not take are counted."""
        size = GSO_BATCH if max(map(len, frames), default=0) > self._longest else BATCH
        for first in range(0, len(frames), size):
            batch = frames[first : first + size]
            headers = [frame.header if isinstance(frame, GsoFrame) else NO_OFFLOADS for frame in batch]
            self._send(b"".join(chain.from_iterable(zip(headers, batch, strict=True))), batch)

    def _send(self, joined: bytes, frames: list[bytes]) -> None:
        """Send a batch. joined: the frames, each behind its virtio_net_hdr."""
        arena = self._arena
        arena.destination[:] = self._destination
        lengths = array("Q", [len(frame) + _FRONT for frame in frames])
        start = ctypes.cast(ctypes.c_char_p(joined), ctypes.c_void_p).value or 0
        arena.sent[0 : 2 * len(frames) : 2] = array("Q", accumulate(lengths[:-1], initial=start))
        arena.sent[1 : 2 * len(frames) : 2] = lengths
        first = 0
        while first < len(frames):
            address = arena.sent_address + first * _MESSAGE.size
            count = _libc.sendmmsg(self.fileno(), address, len(frames) - first, _MSG_DONTWAIT)
            if count > 0:
                first += count
                continue
            reason = ctypes.get_errno()
            if reason == errno.EINTR:
                continue
            lost = frames[first]
            wire_frames = lost.segments if isinstance(lost, GsoFrame) else 1
            if reason in DOWN or not has_carrier(self.fileno(), self.out):
                self.statistics.down += wire_frames
            else:
                self.statistics.unsent += wire_frames
            first += 1

    def update_statistics(self) -> Statistics:
        """Update the statistics and return them."""
        self.statistics.overrun += take_statistics(self._socket)[1]
        return self.statistics

"""Packet sockets: whole frames in and out of an interface, many per system call.

Python's socket module has no recvmmsg and sendmmsg; they are called through libc with buffers that are laid out once.
Every frame comes with the time at which the kernel got it, so that whoever is late to read it knows by how much, and
with its VLAN tag, which the kernel takes out of the frame before any packet socket sees it. Frames that their sender
left unfinished come and go as they are, with what is left to do (see `unfinished`).

The kernel's qdiscs stay in the way of what is sent (PACKET_QDISC_BYPASS is never set), and captures see it.
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

from testbed.kernel import unfinished
from testbed.kernel.unfinished import FINISHED, Unfinished

BATCH: Final = 64
"""Frames per system call."""

PIECES: Final = 8
"""The same where frames come in pieces of many: they are as many bytes, and other links wait for as long."""

HEADROOM: Final = 14 + 8
"""Bytes of a frame beyond its interface's MTU: the Ethernet header and two VLAN tags."""

LARGEST: Final = 65_535 + HEADROOM
"""Bytes of a frame on an interface with the largest MTU."""

_SIOCGIFMTU: Final = 0x8921
_SOL_PACKET: Final = 263
_PACKET_STATISTICS: Final = 6
_PACKET_AUXDATA: Final = 8
_PACKET_VNET_HDR: Final = 15
_PACKET_IGNORE_OUTGOING: Final = 23
_SO_SNDBUFFORCE: Final = 32
_SO_RCVBUFFORCE: Final = 33
_SO_TIMESTAMPNS: Final = 35
_ETH_P_ALL: Final = 3
_SO_ATTACH_FILTER: Final = 26
_PROGRAM: Final = struct.Struct("H6xQ")  # struct sock_fprog: length, address
_NOBODYS: Final = 0xFFFF  # an EtherType that is reserved; with 0 the kernel lets a socket keep what it had
# Classic BPF: nothing of a frame of IP for another's address, which the kernel counts as unclaimed; of others one byte.
_COUNT_ONLY: Final = b"".join(
    struct.pack("HBBI", *instruction)
    for instruction in (
        (0x20, 0, 0, 0xFFFF_F004),  # load SKF_AD_PKTTYPE
        (0x15, 0, 3, 3),  # PACKET_OTHERHOST: go on; else: one byte
        (0x20, 0, 0, 0xFFFF_F000),  # load SKF_AD_PROTOCOL
        (0x15, 2, 0, 0x0800),  # IPv4: nothing
        (0x15, 1, 0, 0x86DD),  # IPv6: nothing
        (0x06, 0, 0, 1),
        (0x06, 0, 0, 0),
    )
)
_FRONT: Final = unfinished.HEADER.size  # bytes before each frame
_KIND: Final = 1  # where these say whether it is a piece, and of what kind
_SLOT: Final = _FRONT + LARGEST
_PLACES: Final = [(slot, slot + _FRONT) for slot in range(0, BATCH * _SLOT, _SLOT)]  # and where the frames begin
_SHORTEST: Final = _FRONT + 14  # with the Ethernet header
_MSG_DONTWAIT: Final = 0x40
_MSG_TRUNC: Final = 0x20

_CSUM_NOT_READY: Final = 1 << 3
_VLAN_VALID: Final = 1 << 4
_VLAN_TPID_VALID: Final = 1 << 6
_TAGGED_OR_UNFINISHED: Final = _VLAN_VALID | _CSUM_NOT_READY

_IOVEC: Final = struct.Struct("QQ")  # address, length
_MESSAGE: Final = struct.Struct("QI4xQQQQi4xI4x")  # struct mmsghdr: msghdr (name, iov, control, flags), length
_LENGTH: Final = struct.Struct("56xI4x")
# Control data, in the order in which packet_recvmsg writes it: SCM_TIMESTAMPNS, then struct tpacket_auxdata.
_CONTROL: Final = struct.Struct("16xqq16xI12xHH4x")
_STATISTICS: Final = struct.Struct("II")

_DOWN: Final = (errno.ENETDOWN, errno.ENXIO, errno.ENODEV)

_NANOSECONDS: Final = 1_000_000_000
_AT_ONCE: Final = 2_000  # ns; two readings of the monotonic clock with another clock's between them take a tenth of it
_ATTEMPTS: Final = 20

_KNOWN_OF_FRAME: Final = 1_024  # bytes: struct sk_buff, struct skb_shared_info and headroom, and some to spare

_libc = ctypes.CDLL(None, use_errno=True)
_libc.recvmmsg.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int, ctypes.c_void_p)
_libc.sendmmsg.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int)


class Arena:
    """The buffers for one batch, shared by any number of sockets of one process. The kernel gives memory to what is used
    of them."""

    def __init__(self) -> None:
        self.frames = mmap.mmap(-1, BATCH * _SLOT)  # slicing a mmap gives bytes, without a view in between
        self.view = memoryview(self.frames)
        self._anchor = ctypes.c_char.from_buffer(self.frames)
        self.control = bytearray(BATCH * _CONTROL.size)
        self.vectors = bytearray(BATCH * _IOVEC.size)
        self.messages = bytearray(BATCH * _MESSAGE.size)
        control, vectors = _address(self.control), _address(self.vectors)
        first = ctypes.addressof(self._anchor)
        for i in range(BATCH):
            _IOVEC.pack_into(self.vectors, i * _IOVEC.size, first + i * _SLOT, _SLOT)
            place = (0, 0, vectors + i * _IOVEC.size, 1, control + i * _CONTROL.size, _CONTROL.size, 0, 0)
            _MESSAGE.pack_into(self.messages, i * _MESSAGE.size, *place)
        self.template = bytes(self.messages)
        self.address = _address(self.messages)
        self.sent_vectors = bytearray(BATCH * _IOVEC.size)
        self.sent = memoryview(self.sent_vectors).cast("Q")  # address, length, address, ...
        self.sent_messages = bytearray(BATCH * _MESSAGE.size)
        vectors = _address(self.sent_vectors)
        for i in range(BATCH):
            place = (0, 0, vectors + i * _IOVEC.size, 1, 0, 0, 0, 0)
            _MESSAGE.pack_into(self.sent_messages, i * _MESSAGE.size, *place)
        self.sent_address = _address(self.sent_messages)


def _address(buffer: bytearray) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


@dataclass(slots=True)
class Statistics:
    """What a packet socket could not do; all zero on a machine that keeps up and is set up right."""

    overrun: int = 0
    """Frames that the kernel dropped because we did not read in time."""
    oversized: int = 0
    """Frames longer than the interface's MTU allows, or left unfinished in a way that nobody here can finish: offloads are
    on that should be off."""
    unsent: int = 0
    """Frames that the kernel did not take although the interface was up."""
    down: int = 0
    """Frames for an interface that was down or gone."""

    @property
    def lost(self) -> int:
        """Frames lost inside the emulator, for no reason that anybody has asked for."""
        return self.overrun + self.oversized + self.unsent


def _clocks() -> tuple[int, int]:
    """The monotonic time, and by how much the wall clock, which the kernel stamps frames with, is ahead of it.

    Two clocks cannot be read at once. Who is kept from running between the two readings finds them too far apart, and a
    frame would be taken for older or younger than it is: then they are read again.
    """
    before = time.monotonic_ns()
    for _ in range(_ATTEMPTS):
        wall = time.time_ns()
        after = time.monotonic_ns()
        if after - before <= _AT_ONCE:
            break
        before = after
    return after, wall - before


class PacketSocket:
    """All frames that come in on one interface, and a way to send frames out by it."""

    def __init__(self, device: str, arena: Arena, buffer: int) -> None:
        """device: an interface in the caller's network namespace. buffer: bytes that may wait when we are late. OSError when
        there is no such interface."""
        self.device = device
        self.index = socket.if_nametoindex(device)
        self.filled = False
        """Whether the last batch was a full one, so that more may be waiting."""
        self.unfinished = False
        """Whether frames of the last batch are `Unfinished`."""
        self.behind = 0
        """By how much the wall clock was ahead of the monotonic one when the last batch was read."""
        self._batch = BATCH
        self._pieces = False  # the last batch had frames of several segments
        self._arena = arena
        self._bytes = 0  # frames that were reduced to a byte
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, 0)
        self.statistics = Statistics()
        try:
            for forced, usual in ((_SO_RCVBUFFORCE, socket.SO_RCVBUF), (_SO_SNDBUFFORCE, socket.SO_SNDBUF)):
                try:
                    self._socket.setsockopt(socket.SOL_SOCKET, forced, buffer)
                except PermissionError:  # without root the machine's limit holds
                    self._socket.setsockopt(socket.SOL_SOCKET, usual, buffer)
            self._socket.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
            self._socket.setsockopt(_SOL_PACKET, _PACKET_AUXDATA, 1)
            self._socket.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
            self._socket.bind((device, _ETH_P_ALL))
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
        """How many frames of any size, at least, may wait when we are late. The kernel counts what it has for each: its
        bytes, in blocks of up to twice as many, and what it knows of it."""
        buffer = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        return buffer // (2 * self._longest + _KNOWN_OF_FRAME)

    def mute(self) -> None:
        """Take no frame more, from this moment on; those that have come can still be received, and frames be sent.

        What comes and the kernel will not count as unclaimed is counted by `overheard`.
        """
        program = ctypes.create_string_buffer(_COUNT_ONLY, len(_COUNT_ONLY))
        self._socket.setsockopt(
            socket.SOL_SOCKET, _SO_ATTACH_FILTER, _PROGRAM.pack(len(_COUNT_ONLY) // 8, ctypes.addressof(program))
        )
        self.look()

    def stop_listening(self) -> None:
        """Leave the interface's frames alone: what nobody takes is counted by the kernel again. It takes the kernel some ten
        milliseconds."""
        with contextlib.suppress(OSError):  # an interface that is gone sends nothing either
            self._socket.bind((self.device, _NOBODYS))

    def overheard(self) -> int:
        """How many frames have come since `mute`, a piece of several being one, as for the kernel. Each of them is a byte in
        the queue; the kernel's own count would not do, since it cannot begin in the same moment as the filter."""
        while True:
            self.receive(0)
            if not self.filled:
                return self._bytes

    def still_there(self) -> bool:
        """Whether the interface is the one that the socket was opened on; takes note of another MTU."""
        try:
            if socket.if_nametoindex(self.device) != self.index:
                return False
            self._longest = self._mtu() + HEADROOM
        except OSError:
            return False
        return True

    def _mtu(self) -> int:
        request = struct.pack("16si20x", self.device.encode(), 0)  # struct ifreq
        answer = fcntl.ioctl(self._socket, _SIOCGIFMTU, request)
        mtu: int = struct.unpack_from("16si", answer)[1]
        return mtu

    def receive(self, earliest: int) -> list[tuple[int, bytes]]:
        """Up to a batch of frames, each with when it came, on the monotonic clock; none when nothing waits.

        earliest: no frame can have come before. Nor before the one ahead of it in the queue: the clock may be set while
        frames wait, and two processors may stamp two frames in one order and queue them in the other.
        """
        arena = self._arena
        arena.messages[:] = arena.template
        self.unfinished = self._pieces = False
        count = _libc.recvmmsg(self.fileno(), arena.address, self._batch, _MSG_DONTWAIT | _MSG_TRUNC, None)
        self.filled = count == self._batch
        if count <= 0:
            if count < 0:
                self._look_into(ctypes.get_errno())
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
            when = seconds * _NANOSECONDS + nanoseconds - behind
            if when > now:
                when = now
            if when < earliest:
                when = earliest
            earliest = when
            if _SHORTEST <= length <= longest and not status & _TAGGED_OR_UNFINISHED:
                out.append((when, frames[begin : slot + length]))
                continue
            if length < _SHORTEST:
                self._bytes += 1
                continue
            found: bytes | None
            if length > longest or status & _VLAN_VALID or frames[slot + _KIND]:
                tag = (tpid if status & _VLAN_TPID_VALID else 0x8100) << 16 | tci
                raw = tag.to_bytes(4, "big") if status & _VLAN_VALID else b""
                found = self._unusual(slot, length, raw, finished=not status & _CSUM_NOT_READY)
            else:  # only its checksum is left, and the kernel knows where that is
                found = Unfinished(view[begin : slot + length])
                found.header = frames[slot:begin]
                self.unfinished = True
            if found is not None:
                out.append((when, found))
        self._batch = PIECES if self._pieces else BATCH
        return out

    def _look_into(self, reason: int) -> None:
        if reason == errno.EINVAL:  # a frame is left unfinished in a way that the kernel has no words for
            self.statistics.oversized += 1
            self.filled = True
        elif reason not in (errno.EAGAIN, errno.EINTR, *_DOWN):
            raise OSError(reason, "recvmmsg")

    def _unusual(self, slot: int, length: int, tag: bytes, *, finished: bool) -> bytes | None:
        """What lies there in the arena, with its tag if it has one. None, and counted, if it is too long for the wire, or
        cannot be finished."""
        arena, begin = self._arena, slot + _FRONT
        if finished and length <= self._longest + _FRONT:
            frame = arena.frames[begin : slot + length]
            return frame[:12] + tag + frame[12:]
        found = None
        if not finished and length <= _SLOT:
            found = unfinished.unfinished(arena.frames[slot:begin], arena.view[begin : slot + length], tag)
        if found is None or found.largest > self._longest:
            self.statistics.oversized += 1 if found is None else found.segments
            return None
        self.unfinished = True
        if found.segments > 1:
            self._pieces = True
        return found

    def send(self, frames: list[bytes]) -> None:
        """Send the frames in order, finished ones. What the kernel does not take is counted."""
        for first in range(0, len(frames), BATCH):
            batch = frames[first : first + BATCH]
            self._send(FINISHED.join([b"", *batch]), batch)

    def send_unfinished(self, frames: list[bytes]) -> None:
        """The same where `Unfinished` ones are among them."""
        size = PIECES if max(map(len, frames), default=0) > self._longest else BATCH
        for first in range(0, len(frames), size):
            batch = frames[first : first + size]
            headers = [frame.header if isinstance(frame, Unfinished) else FINISHED for frame in batch]
            self._send(b"".join(chain.from_iterable(zip(headers, batch, strict=True))), batch)

    def _send(self, joined: bytes, frames: list[bytes]) -> None:
        """joined: the frames, with their headers."""
        arena = self._arena
        lengths = array("Q", [len(frame) + _FRONT for frame in frames])
        place = ctypes.cast(ctypes.c_char_p(joined), ctypes.c_void_p).value or 0
        arena.sent[0 : 2 * len(frames) : 2] = array("Q", accumulate(lengths[:-1], initial=place))
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
            wire_frames = lost.segments if isinstance(lost, Unfinished) else 1
            if reason in _DOWN:
                self.statistics.down += wire_frames
            else:
                self.statistics.unsent += wire_frames
            first += 1

    def look(self) -> Statistics:
        """The statistics until now."""
        _, dropped = _STATISTICS.unpack(self._socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, _STATISTICS.size))
        self.statistics.overrun += dropped  # the kernel begins at 0 again whenever it is asked
        return self.statistics

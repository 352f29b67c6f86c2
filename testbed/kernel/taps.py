"""Taps: packet sockets that capture an interface's frames that pass a filter, in both directions, with kernel timestamps.

Timestamps have the machine's wall clock in every namespace, so the difference of a frame's timestamps on two interfaces is
its latency. A tap does not affect other sockets, switches and programs.
"""

from __future__ import annotations

import errno
import fcntl
import socket
import struct
from typing import Final

from testbed.kernel import namespaces
from testbed.kernel.diversion import require_mark
from testbed.kernel.packet_options import (
    DOWN,
    ETH_P_ALL,
    PACKET_OUTGOING,
    SO_TIMESTAMPNS,
    attach_filter,
    set_buffers,
    take_statistics,
)

SNAP_LENGTH: Final = 80
"""Number of bytes at the beginning of a frame that a tap captures."""

FRAME_IN_BUFFER: Final = 1024
"""Approximate number of bytes that a small frame takes of a socket's buffer."""

_SIOCGIFINDEX: Final = 0x8933
_STAMP: Final = struct.Struct("qq")
_CONTROL: Final = socket.CMSG_SPACE(_STAMP.size)
_SECOND: Final = 1_000_000_000

# Classic BPF, the kernel's include/uapi/linux/filter.h: code, jump if true, jump if false, operand.
_INSTRUCTION: Final = struct.Struct("HBBI")
_LOAD_HALF, _LOAD_WORD, _JUMP_EQUAL, _RETURN = 0x28, 0x20, 0x15, 0x06
_ACCEPT: Final = 0x40000

CapturedFrame = tuple[bool, int, int, bytes]
"""A captured frame: whether it was outgoing, its time (wall clock, nanoseconds), its length, and its first bytes."""

FrameTest = tuple[int, int, int]
"""A test of a frame: offset, number of bytes (2 or 4), and the required value."""


def pass_any(tests: list[FrameTest]) -> bytes:
    """Make a classic BPF filter that passes frames for which at least one of the tests holds: at most 128, since a jump is
    limited to 255 instructions."""
    program: list[tuple[int, int, int, int]] = []
    for number, (offset, width, value) in enumerate(tests):
        remaining = len(tests) - number - 1
        program.append((_LOAD_HALF if width == 2 else _LOAD_WORD, 0, 0, offset))
        program.append((_JUMP_EQUAL, 2 * remaining + 1, 0, value))
    program += [(_RETURN, 0, 0, 0), (_RETURN, 0, 0, _ACCEPT)]
    return b"".join(_INSTRUCTION.pack(*instruction) for instruction in program)


class Tap:
    """A capture of one interface."""

    def __init__(self, namespace: str, device: str, accepted: bytes, buffer: int, port: str = "") -> None:
        """namespace: path of the network namespace. accepted: a filter, see `pass_any`. buffer: bytes of the receive buffer;
        without root, the machine's limit applies. port: name of an interface in the namespace: only incoming frames that are
        marked with its index are captured; empty: all. Raises OSError if there is no such interface."""
        self._socket = socket_in(namespace)
        try:
            set_buffers(self._socket, buffer, socket.SO_RCVBUF)
            self._socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            attach_filter(self._socket, (require_mark(index_in(self._socket, port)) if port else b"") + accepted)
            self._socket.bind((device, ETH_P_ALL))
        except BaseException:
            self._socket.close()
            raise
        self._buffer = bytearray(SNAP_LENGTH)

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    @property
    def capacity(self) -> int:
        """Approximate number of small frames that can wait to be read."""
        return self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // FRAME_IN_BUFFER

    def read(self, max_frames: int) -> list[CapturedFrame]:
        """Read pending frames, at most `max_frames`."""
        frames: list[CapturedFrame] = []
        buffer, receive = self._buffer, self._socket.recvmsg_into
        while len(frames) < max_frames:
            try:
                length, control, _, address = receive([buffer], _CONTROL, socket.MSG_TRUNC)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno in DOWN:  # reported once after the interface was set down
                    continue
                raise
            seconds, nanoseconds = _STAMP.unpack(control[0][2])
            outgoing = address[2] == PACKET_OUTGOING
            frames.append((outgoing, seconds * _SECOND + nanoseconds, length, bytes(buffer[:length])))
        return frames

    def overrun(self) -> int:
        """Return the number of frames, since the last call, for which the buffer had no space."""
        return take_statistics(self._socket)[1]


class Sender:
    """A packet socket that sends frames by an interface."""

    def __init__(self, namespace: str, device: str) -> None:
        self._socket = socket_in(namespace)
        try:
            self._socket.bind((device, 0))
        except BaseException:
            self._socket.close()
            raise

    def close(self) -> None:
        self._socket.close()

    def send(self, frame: bytes) -> bool:
        """Send a frame; return whether the kernel has accepted it: False if the queue is full or the interface is down."""
        try:
            self._socket.send(frame)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.ENOBUFS, *DOWN):
                return False
            raise
        return True


def index_in(sock: socket.socket, device: str) -> int:
    """Return the index of an interface in a socket's network namespace. Raises OSError if there is none."""
    request = struct.pack("16si20x", device.encode(), 0)  # struct ifreq
    index: int = struct.unpack_from("16si", fcntl.ioctl(sock, _SIOCGIFINDEX, request))[1]
    return index


def socket_in(namespace: str) -> socket.socket:
    """Open a packet socket in another namespace. namespace: path."""
    with namespaces.inside(namespace):
        return socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, 0)

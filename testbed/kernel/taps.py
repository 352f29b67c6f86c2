"""Taps: who listens to an interface in both directions and hears only the frames that a filter lets through, each with
the kernel's own time stamp of the instant at which it left or came in.

Both stamps are of the machine's wall clock, whichever namespaces the two interfaces are in: their difference is how long
a frame was on its way, however late anybody comes to read them. Reading does not disturb: no other listener, no switch
and no program sees anything of it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
from typing import Final

from testbed.kernel import namespaces, syscalls

SNAPPED: Final = 64
"""Bytes of a frame, from its beginning, that a tap hands on."""

FRAME_IN_BUFFER: Final = 1024
"""About how many bytes of a socket's buffer a small frame takes."""

_SOL_PACKET: Final = 263
_PACKET_STATISTICS: Final = 6
_SO_ATTACH_FILTER: Final = 26
_SO_RCVBUFFORCE: Final = 33
_SO_TIMESTAMPNS: Final = 35
_ETH_P_ALL: Final = 3
_PACKET_OUTGOING: Final = 4
_STAMP: Final = struct.Struct("qq")
_STATISTICS: Final = struct.Struct("II")
_CONTROL: Final = socket.CMSG_SPACE(_STAMP.size)
_SECOND: Final = 1_000_000_000

# Classic BPF, the kernel's include/uapi/linux/filter.h: code, jump if true, jump if false, operand.
_INSTRUCTION: Final = struct.Struct("HBBI")
_PROGRAM: Final = struct.Struct("HxxxxxxP")
_LOAD_HALF, _LOAD_WORD, _JUMP_EQUAL, _RETURN = 0x28, 0x20, 0x15, 0x06
_WHOLE: Final = 0x40000

_TRANSIENT: Final = (errno.ENETDOWN, errno.ENXIO, errno.ENODEV)

Heard = tuple[bool, int, int, bytes]
"""Whether it left (else it came in), when (wall clock, nanoseconds), its length, and its first bytes."""

Test = tuple[int, int, int]
"""Where in the frame, how many bytes (2 or 4), and what stands there."""


def any_of(tests: list[Test]) -> bytes:
    """A filter that lets a frame through if one of the tests holds."""
    program: list[tuple[int, int, int, int]] = []
    for number, (at, width, value) in enumerate(tests):
        left = len(tests) - number - 1
        program.append((_LOAD_HALF if width == 2 else _LOAD_WORD, 0, 0, at))
        program.append((_JUMP_EQUAL, 2 * left + 1, 0, value))
    program += [(_RETURN, 0, 0, 0), (_RETURN, 0, 0, _WHOLE)]
    return b"".join(_INSTRUCTION.pack(*one) for one in program)


class Tap:
    """One interface, heard."""

    def __init__(self, namespace: str, device: str, accepted: bytes, buffer: int) -> None:
        """namespace: its path. accepted: a filter, see `any_of`. buffer: bytes that may wait; without root the machine's
        limit holds. OSError when there is no such interface."""
        self._socket = socket_in(namespace, 0)
        try:
            try:
                self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, buffer)
            except PermissionError:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
            self._filter(accepted)
            self._socket.bind((device, _ETH_P_ALL))
        except BaseException:
            self._socket.close()
            raise
        self._head = bytearray(SNAPPED)

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    @property
    def room(self) -> int:
        """How many small frames may wait to be read."""
        return self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // FRAME_IN_BUFFER

    def read(self, most: int) -> list[Heard]:
        """What waits, but no more frames than this."""
        found: list[Heard] = []
        head, receive = self._head, self._socket.recvmsg_into
        while len(found) < most:
            try:
                length, control, _, address = receive([head], _CONTROL, socket.MSG_TRUNC)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno in _TRANSIENT:  # told once when the interface goes down
                    continue
                raise
            seconds, nanoseconds = _STAMP.unpack(control[0][2])
            outgoing = address[2] == _PACKET_OUTGOING
            found.append((outgoing, seconds * _SECOND + nanoseconds, length, bytes(head[:length])))
        return found

    def overrun(self) -> int:
        """Frames that did not fit into the buffer since this was asked last."""
        _, dropped = _STATISTICS.unpack(self._socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, _STATISTICS.size))
        return int(dropped)

    def _filter(self, accepted: bytes) -> None:
        buffer = ctypes.create_string_buffer(accepted, len(accepted))
        program = _PROGRAM.pack(len(accepted) // _INSTRUCTION.size, ctypes.addressof(buffer))
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


class Sender:
    """A way to send frames out by an interface."""

    def __init__(self, namespace: str, device: str) -> None:
        self._socket = socket_in(namespace, 0)
        try:
            self._socket.bind((device, 0))
        except BaseException:
            self._socket.close()
            raise

    def close(self) -> None:
        self._socket.close()

    def send(self, frame: bytes) -> bool:
        """Whether the kernel has taken it."""
        try:
            self._socket.send(frame)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.ENOBUFS, *_TRANSIENT):
                return False
            raise
        return True


def socket_in(namespace: str, protocol: int) -> socket.socket:
    """A packet socket that was opened in another namespace."""
    handle = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with namespaces.staying():
            syscalls.setns(handle, syscalls.CLONE_NEWNET)
            kind = socket.SOCK_RAW | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
            return socket.socket(socket.AF_PACKET, kind, protocol)
    finally:
        os.close(handle)

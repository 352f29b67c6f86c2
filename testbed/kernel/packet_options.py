"""Options of packet sockets: constants of the kernel's headers that Python lacks, and functions that set them; the carrier
of an interface (include/uapi/linux/ethtool.h, ETHTOOL_GLINK)."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import socket
import struct
from collections.abc import Sequence
from typing import Final

SOL_PACKET: Final = 263
PACKET_RX_RING, PACKET_STATISTICS, PACKET_AUXDATA, PACKET_VERSION = 5, 6, 8, 10
PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 15, 23
SO_ATTACH_FILTER, SO_TIMESTAMPNS, SO_MARK = 26, 35, 36
_FORCED: Final = {socket.SO_SNDBUF: 32, socket.SO_RCVBUF: 33}  # SO_SNDBUFFORCE, SO_RCVBUFFORCE
ETH_P_ALL: Final = 3
PACKET_OUTGOING: Final = 4
_PROGRAM: Final = struct.Struct("H6xQ")  # struct sock_fprog: length, address
_INSTRUCTION: Final = 8  # bytes of an instruction of classic BPF
_CODE: Final = struct.Struct("HBBI")
Instruction = tuple[int, int, int, int]
"""An instruction of classic BPF: code, jump if true, jump if false, operand."""

_PACKET_FANOUT, _PACKET_FANOUT_DATA = 18, 22
_ROUND_ROBIN, _BY_PROGRAM = 1, 6  # PACKET_FANOUT_LB, PACKET_FANOUT_CBPF
_IGNORE_OUTGOING: Final = 0x4000
_GROUP: Final = struct.Struct("<HH")
_STATISTICS: Final = struct.Struct("II")  # struct tpacket_stats: frames, including dropped ones; dropped frames

SIOCETHTOOL: Final = 0x8946

DOWN: Final = (errno.ENETDOWN, errno.ENXIO, errno.ENODEV)
"""Errors of sockets on an interface that is down or gone."""

_ETHTOOL_GLINK: Final = 0x0A


def set_buffers(sock: socket.socket, size: int, *kinds: int) -> None:
    """Set the size of a socket's buffers, in bytes. Without root, the machine's limit applies. kinds: SO_RCVBUF,
    SO_SNDBUF."""
    for kind in kinds:
        try:
            sock.setsockopt(socket.SOL_SOCKET, _FORCED[kind], size)
        except PermissionError:
            sock.setsockopt(socket.SOL_SOCKET, kind, size)


def attach_filter(sock: socket.socket, program: bytes) -> None:
    """Attach a classic BPF program to a socket as its filter."""
    buffer = ctypes.create_string_buffer(program, len(program))
    option = _PROGRAM.pack(len(program) // _INSTRUCTION, ctypes.addressof(buffer))
    sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, option)


def join_fanout(sock: socket.socket, group: int, program: Sequence[Instruction] = ()) -> None:
    """Add a bound packet socket to a fanout group of its interface: each frame goes to one socket of the group.

    group: 0 to 65535. program: classic BPF, which gets the frame without its Ethernet header; the result modulo the
    number of sockets selects the socket. Empty: round robin. Sockets are numbered in the order of joining; when a
    socket is closed, the last one gets its number (net/packet/af_packet.c). Raises OSError.
    """
    mode = _BY_PROGRAM if program else _ROUND_ROBIN
    sock.setsockopt(SOL_PACKET, _PACKET_FANOUT, _GROUP.pack(group, mode | _IGNORE_OUTGOING))
    if program:
        code = b"".join([_CODE.pack(*instruction) for instruction in program])
        buffer = ctypes.create_string_buffer(code, len(code))
        sock.setsockopt(SOL_PACKET, _PACKET_FANOUT_DATA, _PROGRAM.pack(len(program), ctypes.addressof(buffer)))


def take_statistics(sock: socket.socket) -> tuple[int, int]:
    """Return the number of frames that arrived since the last call, and the number of those that the kernel dropped for lack
    of space."""
    received, dropped = _STATISTICS.unpack(sock.getsockopt(SOL_PACKET, PACKET_STATISTICS, _STATISTICS.size))
    return received, dropped


def has_carrier(descriptor: int, device: str) -> bool:
    """Whether an interface has a carrier: its peer is up. descriptor: of a socket in the interface's network namespace.

    The driver's state is read. The kernel's link watch notices a lost carrier up to a second later, and until then sending
    fails with ENOBUFS.
    """
    answer = ctypes.create_string_buffer(struct.pack("II", _ETHTOOL_GLINK, 0))
    request = struct.pack("16sP16x", device.encode(), ctypes.addressof(answer))  # struct ifreq
    try:
        fcntl.ioctl(descriptor, SIOCETHTOOL, request)
    except OSError:  # the interface does not exist
        return False
    return bool(struct.unpack_from("II", answer)[1])

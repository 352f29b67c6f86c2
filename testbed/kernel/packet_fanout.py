"""Fan-out of packet sockets: several sockets of one interface share its frames, each of which goes to one of them.

Frames are dealt out by a classic BPF program, whose result modulo the number of sockets chooses the one, or in turn. The
program sees a frame from behind its Ethernet header on. Sockets are numbered in the order in which they have joined; when
one is closed, the last takes its number (net/packet/af_packet.c).
"""

from __future__ import annotations

import ctypes
import socket
import struct
from collections.abc import Sequence
from typing import Final

from testbed.kernel.packet_options import SOL_PACKET

Instruction = tuple[int, int, int, int]
"""Classic BPF: code, jump if true, jump if false, k."""

_PACKET_FANOUT, _PACKET_FANOUT_DATA = 18, 22
_IN_TURN, _BY_PROGRAM = 1, 6  # PACKET_FANOUT_LB, PACKET_FANOUT_CBPF
_IGNORE_OUTGOING: Final = 0x4000
_GROUP: Final = struct.Struct("<HH")
_INSTRUCTION: Final = struct.Struct("HBBI")
_PROGRAM: Final = struct.Struct("H6xQ")  # struct sock_fprog


def join(opened: socket.socket, group: int, program: Sequence[Instruction] = ()) -> None:
    """Let a bound packet socket share the frames of a group, 0 to 65535, of its network namespace. program: deals them out;
    without one they go to each socket in turn. OSError."""
    mode = _BY_PROGRAM if program else _IN_TURN
    opened.setsockopt(SOL_PACKET, _PACKET_FANOUT, _GROUP.pack(group, mode | _IGNORE_OUTGOING))
    if program:
        code = b"".join([_INSTRUCTION.pack(*instruction) for instruction in program])
        kept = ctypes.create_string_buffer(code, len(code))
        opened.setsockopt(SOL_PACKET, _PACKET_FANOUT_DATA, _PROGRAM.pack(len(program), ctypes.addressof(kept)))

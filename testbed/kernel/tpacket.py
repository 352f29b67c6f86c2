"""TPACKET_V3 rings: capture of all frames of an interface, in both directions, in memory shared with the kernel.

A frame takes no system call. The machine's limit on socket buffers does not apply to the ring, so that an unprivileged user
gets as much memory as root. Every frame has a kernel timestamp, as with other packet sockets. A ring does not affect other
sockets, switches and programs.

Source: the kernel's Documentation/networking/packet_mmap.rst.
"""

from __future__ import annotations

import mmap
import socket
import struct
from dataclasses import dataclass
from typing import Final

from testbed.kernel import gso
from testbed.kernel.diversion import drop_reinserted
from testbed.kernel.packet_options import (
    ETH_P_ALL,
    PACKET_OUTGOING,
    PACKET_RX_RING,
    PACKET_VERSION,
    PACKET_VNET_HDR,
    SOL_PACKET,
    attach_filter,
    take_statistics,
)
from testbed.kernel.taps import index_in, socket_in

BLOCK: Final = 1 << 18
"""Bytes of a block, the unit that the kernel hands over. Four of the largest GSO frames fit into a block."""

DELAY: Final = 10
"""Milliseconds after which the kernel hands over a block that is not full."""

_TPACKET_V3: Final = 2
_SECOND: Final = 1_000_000_000

_REQUEST: Final = struct.Struct("7I")  # struct tpacket_req3
_BLOCK_HEAD: Final = struct.Struct("8x3I")  # struct tpacket_block_desc: status, number of frames, offset of the first
_STATUS: Final = 8  # offset of the status in a block
_TO_KERNEL: Final = bytes(4)  # TP_STATUS_KERNEL
# struct tpacket3_hdr and a part of struct sockaddr_ll: offset of the next one, seconds, nanoseconds, captured bytes,
# bytes of the frame, status, offset of the frame, VLAN tag, the tag's EtherType, packet type.
_FRAME: Final = struct.Struct("=6IH6xIH20xB")
_USER: Final = 1  # TP_STATUS_USER
_CSUM_NOT_READY, _VLAN_VALID, _VLAN_TPID_VALID = 1 << 3, 1 << 4, 1 << 6
_ETHERTYPE: Final = 12  # offset in a frame

TappedFrame = tuple[int, bool, bytes]
"""A captured frame: its time (wall clock, nanoseconds), whether it was outgoing, and its bytes as on a wire."""


@dataclass(slots=True)
class Counts:
    """Counts of a ring. received: captured frames; a GSO frame counts once. dropped: frames for which the ring had no space,
    because the reader was late. cut: frames that are truncated in the ring."""

    received: int = 0
    dropped: int = 0
    cut: int = 0


class Ring:
    """A capture of one interface. GSO frames are segmented (see `gso`)."""

    def __init__(self, namespace: str, device: str, size: int) -> None:
        """namespace: path of the network namespace. size: bytes of memory; at least two blocks are used. Raises OSError
        if there is no such interface."""
        blocks = max(2, size // BLOCK)
        self._device = device
        self.counts = Counts()
        """Counts up to the last `update_counts`."""
        self._socket = socket_in(namespace)
        try:
            self._socket.setsockopt(SOL_PACKET, PACKET_VERSION, _TPACKET_V3)
            self._socket.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
            request = _REQUEST.pack(BLOCK, blocks, 2048, blocks * (BLOCK // 2048), DELAY, 0, 0)
            self._socket.setsockopt(SOL_PACKET, PACKET_RX_RING, request)
            self._memory = mmap.mmap(self._socket.fileno(), blocks * BLOCK)
            self.index: Final = self._index_now()
            # A port receives frames again that the relay puts back into the switch.
            attach_filter(self._socket, drop_reinserted(self.index))
            self._socket.bind((device, ETH_P_ALL))
        except BaseException:
            self._socket.close()
            raise
        self._size = blocks * BLOCK
        self._next = 0  # the block that the kernel hands over next

    def is_current(self) -> bool:
        """Whether the ring's interface still has its name."""
        try:
            return self._index_now() == self.index
        except OSError:
            return False

    def _index_now(self) -> int:
        return index_in(self._socket, self._device)

    def fileno(self) -> int:
        return self._socket.fileno()

    def clear_error(self) -> None:
        """Clear the error that the socket reports after its interface went down or was removed. Until then, the
        descriptor is readable."""
        self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)

    def close(self) -> None:
        self._memory.close()
        self._socket.close()

    def read(self) -> list[TappedFrame]:
        """Return the frames of the next block that the kernel has handed over; empty if there is none."""
        memory, begin = self._memory, self._next
        status, count, first = _BLOCK_HEAD.unpack_from(memory, begin)
        if not status & _USER:
            return []
        frames: list[TappedFrame] = []
        unpack, offset = _FRAME.unpack_from, begin + first
        for _ in range(count):
            step, seconds, nanoseconds, captured, length, flags, frame_offset, tci, tpid, kind = unpack(memory, offset)
            start = offset + frame_offset
            offset += step
            frame = memory[start : start + captured]
            when, is_outgoing = seconds * _SECOND + nanoseconds, kind == PACKET_OUTGOING
            if captured < length:
                self.counts.cut += 1
            elif flags & (_VLAN_VALID | _CSUM_NOT_READY):
                tag = b""
                if flags & _VLAN_VALID:
                    tag = ((tpid if flags & _VLAN_TPID_VALID else 0x8100) << 16 | tci).to_bytes(4, "big")
                if flags & _CSUM_NOT_READY:
                    header = memory[start - gso.HEADER.size : start]
                    unsegmented = gso.gso_frame(header, frame, tag)
                    if unsegmented is not None:
                        frames += [(when, is_outgoing, segment) for segment in unsegmented.segment()]
                        continue
                if tag:
                    frame = frame[:_ETHERTYPE] + tag + frame[_ETHERTYPE:]
            frames.append((when, is_outgoing, frame))
        memory[begin + _STATUS : begin + _STATUS + len(_TO_KERNEL)] = _TO_KERNEL
        self._next = (begin + BLOCK) % self._size
        return frames

    def update_counts(self) -> Counts:
        """Update the counts and return them."""
        frames, dropped = take_statistics(self._socket)
        self.counts.received += frames - dropped
        self.counts.dropped += dropped
        return self.counts

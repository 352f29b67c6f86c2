"""Rings: all frames of an interface, those that leave and those that come in, in memory that the kernel shares with us.

A packet socket whose queue is a TPACKET_V3 ring (the kernel's Documentation/networking/packet_mmap.rst): a frame costs no
system call, and the ring's size is no business of the machine's limit for socket buffers, so that an ordinary user gets
as much as root. Every frame has the kernel's own stamp of the instant at which it passed, the same that every other packet
socket gets of it. Listening does not disturb: nobody sees anything of it.
"""

from __future__ import annotations

import fcntl
import mmap
import socket
import struct
from dataclasses import dataclass
from typing import Final

from testbed.kernel import unfinished
from testbed.kernel.taps import socket_in

BLOCK: Final = 1 << 18
"""Bytes that are handed over at a time: the largest piece that a sender's offloads leave fits in four times."""

DELAY: Final = 10
"""Milliseconds after which a block is handed over that is not full."""

_SIOCGIFINDEX: Final = 0x8933
_SOL_PACKET: Final = 263
_PACKET_RX_RING: Final = 5
_PACKET_STATISTICS: Final = 6
_PACKET_VERSION: Final = 10
_PACKET_VNET_HDR: Final = 15
_TPACKET_V3: Final = 2
_ETH_P_ALL: Final = 3
_OUTGOING: Final = 4  # PACKET_OUTGOING
_SECOND: Final = 1_000_000_000

_REQUEST: Final = struct.Struct("7I")  # struct tpacket_req3
_COUNTS: Final = struct.Struct("3I")  # struct tpacket_stats_v3: frames with those dropped, dropped, freezes
_BLOCK_HEAD: Final = struct.Struct("8x3I")  # of struct tpacket_block_desc: status, frames, where the first one is
_STATUS: Final = 8  # where a block's status is
_KERNELS: Final = bytes(4)  # TP_STATUS_KERNEL
# struct tpacket3_hdr and what follows of struct sockaddr_ll: next, seconds, nanoseconds, bytes here, bytes in all, status,
# where the frame is, VLAN tag, its EtherType, how it passed.
_FRAME: Final = struct.Struct("=6IH6xIH20xB")
_USER: Final = 1  # TP_STATUS_USER
_CSUM_NOT_READY, _VLAN_VALID, _VLAN_TPID_VALID = 1 << 3, 1 << 4, 1 << 6
_ETHERTYPE: Final = 12  # where it is in a frame

Passed = tuple[int, bool, bytes]
"""When (wall clock, nanoseconds), whether it left (else it came in), and the frame as it is on a wire."""


@dataclass(slots=True)
class Counts:
    """taken: frames that found room in the ring, a piece of several being one. dropped: frames that found none, since
    nobody had read in time. cut: frames that are longer than what the ring holds of them."""

    taken: int = 0
    dropped: int = 0
    cut: int = 0


class Ring:
    """One interface, heard. What a sender's kernel has left unfinished is finished here (see `unfinished`)."""

    def __init__(self, namespace: str, device: str, size: int) -> None:
        """namespace: its path. size: bytes of memory, of which there are at least two blocks. OSError when there is no such
        interface."""
        blocks = max(2, size // BLOCK)
        self._device = device
        self.counts = Counts()
        """Up to the last `look`."""
        self._socket = socket_in(namespace, 0)
        try:
            self._socket.setsockopt(_SOL_PACKET, _PACKET_VERSION, _TPACKET_V3)
            self._socket.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
            request = _REQUEST.pack(BLOCK, blocks, 2048, blocks * (BLOCK // 2048), DELAY, 0, 0)
            self._socket.setsockopt(_SOL_PACKET, _PACKET_RX_RING, request)
            self._memory = mmap.mmap(self._socket.fileno(), blocks * BLOCK)
            self._socket.bind((device, _ETH_P_ALL))
            self.index: Final = self._index_now()
        except BaseException:
            self._socket.close()
            raise
        self._size = blocks * BLOCK
        self._next = 0  # the block that the kernel hands over next

    def still_there(self) -> bool:
        """Whether the interface of that name is the one that the ring was opened on."""
        try:
            return self._index_now() == self.index
        except OSError:
            return False

    def _index_now(self) -> int:
        request = struct.pack("16si20x", self._device.encode(), 0)  # struct ifreq
        answer = fcntl.ioctl(self._socket, _SIOCGIFINDEX, request)
        index: int = struct.unpack_from("16si", answer)[1]
        return index

    def fileno(self) -> int:
        return self._socket.fileno()

    def forget_error(self) -> None:
        """The interface went down or away; until this is called the ring is always ready to be read."""
        self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)

    def close(self) -> None:
        self._memory.close()
        self._socket.close()

    def read(self) -> list[Passed]:
        """The frames of the next block that is handed over; none when there is none yet."""
        memory, begin = self._memory, self._next
        status, count, first = _BLOCK_HEAD.unpack_from(memory, begin)
        if not status & _USER:
            return []
        found: list[Passed] = []
        unpack, at = _FRAME.unpack_from, begin + first
        for _ in range(count):
            step, seconds, nanoseconds, here, length, flags, mac, tci, tpid, kind = unpack(memory, at)
            start = at + mac
            at += step
            frame = memory[start : start + here]
            when, left = seconds * _SECOND + nanoseconds, kind == _OUTGOING
            if here < length:
                self.counts.cut += 1
            elif flags & (_VLAN_VALID | _CSUM_NOT_READY):
                tag = b""
                if flags & _VLAN_VALID:
                    tag = ((tpid if flags & _VLAN_TPID_VALID else 0x8100) << 16 | tci).to_bytes(4, "big")
                if flags & _CSUM_NOT_READY:
                    header = memory[start - unfinished.HEADER.size : start]
                    whole = unfinished.unfinished(header, frame, tag)
                    if whole is not None:
                        found += [(when, left, one) for one in whole.finish()]
                        continue
                if tag:
                    frame = frame[:_ETHERTYPE] + tag + frame[_ETHERTYPE:]
            found.append((when, left, frame))
        memory[begin + _STATUS : begin + _STATUS + len(_KERNELS)] = _KERNELS
        self._next = (begin + BLOCK) % self._size
        return found

    def look(self) -> Counts:
        """The counts until now."""
        answer = self._socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, _COUNTS.size)
        frames, dropped, _ = _COUNTS.unpack(answer)  # the kernel begins at 0 again whenever it is asked
        self.counts.taken += frames - dropped
        self.counts.dropped += dropped
        return self.counts

"""Packet sockets: reception and transmission of complete frames, many per system call.

Every received frame has the time at which the kernel received it, from which its lateness can be computed. The VLAN tag,
which the kernel removes from the frame, is inserted again. GSO frames are received and sent unchanged, with their header
(see `gso`).

Sent frames pass the kernel's qdiscs (PACKET_QDISC_BYPASS is not set) and are visible to captures.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import socket
import struct
from dataclasses import dataclass
from typing import Final

from testbed.kernel import gso
from testbed.kernel.diversion import filter_by_mark
from testbed.kernel.gso import NO_OFFLOADS, GsoFrame
from testbed.kernel.interpreted_frames import (
    BATCH,
    CSUM_NOT_READY,
    HEADROOM,
    MAX_FRAME_SIZE,
    VLAN_TPID_VALID,
    VLAN_VALID,
)
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

try:
    from testbed.kernel import native_frames as frames  # of the compiled build
except ImportError:
    from testbed.kernel import interpreted_frames as frames  # type: ignore[no-redef]  # the same classes

Arena = frames.Arena

GSO_BATCH: Final = 8
"""Frames per system call after a batch with GSO frames of several segments. These have about as many bytes as a full
batch of other frames, and delay other links for as long."""

_SIOCGIFMTU: Final = 0x8921
_UNUSED_ETHERTYPE: Final = 0xFFFF  # reserved; with 0, the kernel would keep the socket's previous one
_GSO_TYPE: Final = 1  # offset of the GSO type in a virtio_net_hdr
_FRAME_OVERHEAD: Final = 1_024  # bytes: struct sk_buff, struct skb_shared_info, headroom and a reserve


@dataclass(slots=True)
class Statistics:
    """Numbers of frames that a packet socket failed to receive or send. All are 0 on a machine that keeps up and is
    configured correctly, while the interfaces are up."""

    overrun: int = 0
    """Frames that the kernel dropped because they were not read in time."""
    oversized: int = 0
    """Received frames longer than the interface's MTU allows, or GSO frames of an unknown type: offloads are on that should
    be off."""
    unsent: int = 0
    """Frames that the kernel refused although the interface was up."""
    down: int = 0
    """Frames to send while the interface or its peer was down or removed."""

    @property
    def lost(self) -> int:
        """Frames lost inside the emulator, not by an impairment."""
        return self.overrun + self.oversized + self.unsent


class PacketSocket:
    """A packet socket that receives all frames of one interface, and sends frames by it or by another one."""

    def __init__(self, device: str, arena: Arena, buffer: int, *, out: str = "", mark: int = 0) -> None:
        """device: an interface in the caller's network namespace. buffer: bytes of the receive and the send buffer. out: the
        interface by which frames are sent, and whose MTU limits all frames; empty: `device`. mark: of sent frames; frames
        with this mark are not received; 0: none. Raises OSError if there is no such interface."""
        self.device = device
        self.index = socket.if_nametoindex(device)
        self.out = out or device
        self.out_index = socket.if_nametoindex(self.out)
        self.is_full = False
        """Whether the last batch was full, so that more frames may wait."""
        self.has_offloaded = False
        """Whether frames of the last batch are `GsoFrame`."""
        self.clock_offset = 0
        """Nanoseconds by which the wall clock was ahead of the monotonic clock when the last batch was read."""
        self._batch = BATCH
        self._has_gso = False  # whether the last batch had frames of several segments
        self.arena: Final = arena
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, 0)
        self.statistics = Statistics()
        try:
            set_buffers(self._socket, buffer, socket.SO_RCVBUF, socket.SO_SNDBUF)
            self._socket.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
            self._socket.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
            self._socket.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            if mark:
                attach_filter(self._socket, filter_by_mark(mark, if_marked=0, otherwise=0xFFFF_FFFF))
                self._socket.setsockopt(socket.SOL_SOCKET, SO_MARK, mark)
            self._socket.bind((device, ETH_P_ALL))
            self._max_frame = self._mtu() + HEADROOM
        except BaseException:
            self._socket.close()
            raise

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    @property
    def capacity(self) -> int:
        """Minimum number of frames of any size that fit into the receive buffer. The kernel charges the bytes of a frame,
        rounded up to at most twice as many, and its metadata."""
        buffer = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        return buffer // (2 * self._max_frame + _FRAME_OVERHEAD)

    def stop_receiving(self) -> None:
        """Stop receiving the interface's frames. Queued frames can still be read, and frames can be sent.

        When this returns, no processor queues further frames, for which the kernel takes about ten milliseconds.
        """
        with contextlib.suppress(OSError):  # the interface was removed
            self._socket.bind((self.device, _UNUSED_ETHERTYPE))

    def is_current(self) -> bool:
        """Update the MTU; return whether the interfaces still exist with their former indexes."""
        try:
            if (socket.if_nametoindex(self.device), socket.if_nametoindex(self.out)) != (self.index, self.out_index):
                return False
            self._max_frame = self._mtu() + HEADROOM
        except OSError:
            return False
        return True

    def _mtu(self) -> int:
        request = struct.pack("16si20x", self.out.encode(), 0)  # struct ifreq
        answer = fcntl.ioctl(self._socket, _SIOCGIFMTU, request)
        mtu: int = struct.unpack_from("16si", answer)[1]
        return mtu

    def receive(self, earliest: int) -> list[tuple[int, bytes]]:
        """Receive up to a batch of frames, each with its time of arrival in nanoseconds of the monotonic clock; empty
        if none is pending.

        Times are at least `earliest` and do not decrease. Without that, they could: the wall clock may be set while frames
        are queued, and processors may queue two frames in another order than they timestamp them.
        """
        self.has_offloaded = self._has_gso = False
        try:
            count, clock_offset, frames = self.arena.receive(
                self.fileno(), self._batch, earliest, self._max_frame, self._convert
            )
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self.statistics.oversized += 1  # a GSO frame whose type virtio_net_hdr cannot represent
            self.is_full = True
            return []
        self.is_full = count == self._batch
        if count:
            self.clock_offset = clock_offset
            self._batch = GSO_BATCH if self._has_gso else BATCH
        return frames

    def _convert(self, header: bytes, view: memoryview, length: int, status: int, tci: int, tpid: int) -> bytes | None:
        """Convert a tagged, GSO or too long frame, see `interpreted_frames.FrameConverter`: insert its tag, and make a
        `GsoFrame` if it is incomplete. None if the frame is too long for the wire or cannot be segmented, which is
        counted as oversized."""
        is_short, is_complete, tag = length <= self._max_frame, not status & CSUM_NOT_READY, b""
        if status & VLAN_VALID:
            tag = ((tpid if status & VLAN_TPID_VALID else 0x8100) << 16 | tci).to_bytes(4, "big")
        if is_short and is_complete:
            return b"".join((view[:12], tag, view[12:]))
        frame = None
        if is_short and not tag and not header[_GSO_TYPE]:  # only the checksum is missing, whose place the header has
            frame = GsoFrame(view)
            frame.header = header
        elif not is_complete and length <= MAX_FRAME_SIZE:
            frame = gso.gso_frame(header, view, tag)
        if frame is None or frame.max_segment_size > self._max_frame:
            self.statistics.oversized += 1 if frame is None else frame.segments
            return None
        self.has_offloaded = True
        if frame.segments > 1:
            self._has_gso = True
        return frame

    def send(self, frames: list[bytes]) -> None:
        """Send complete frames in order. Frames that the kernel does not accept are counted."""
        for first in range(0, len(frames), BATCH):
            self._send(frames[first : first + BATCH], [])

    def send_offloaded(self, frames: list[bytes]) -> None:
        """Send frames, some of which may be `GsoFrame`, in order. Frames that the kernel does not accept are counted."""
        size = GSO_BATCH if max(map(len, frames), default=0) > self._max_frame else BATCH
        for first in range(0, len(frames), size):
            batch = frames[first : first + size]
            self._send(batch, [frame.header if isinstance(frame, GsoFrame) else NO_OFFLOADS for frame in batch])

    def _send(self, frames: list[bytes], headers: list[bytes]) -> None:
        """Send a batch. headers: see `Arena.send`."""
        while frames:
            sent, reason = self.arena.send(self.fileno(), self.out_index, frames, headers)
            if not reason:
                return
            lost = frames[sent]
            wire_frames = lost.segments if isinstance(lost, GsoFrame) else 1
            if reason in DOWN or not has_carrier(self.fileno(), self.out):
                self.statistics.down += wire_frames
            else:
                self.statistics.unsent += wire_frames
            frames, headers = frames[sent + 1 :], headers[sent + 1 :]

    def update_statistics(self) -> Statistics:
        """Update the statistics and return them."""
        self.statistics.overrun += take_statistics(self._socket)[1]
        return self.statistics

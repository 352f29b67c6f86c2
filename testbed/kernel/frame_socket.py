"""A packet socket for one EtherType, one frame per call: what lies under a NIC whose firmware runs in this process.

The kernel's own traffic on the interface never comes here: it costs such a NIC nothing. Sending waits where the interface
takes no more for a moment; receiving never does. `testbed.kernel.packets` is for who takes everything, in batches.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import socket
import struct
import time
from typing import Final

from testbed.kernel.offloads import SIOCETHTOOL
from testbed.kernel.packets import HEADROOM

BUFFER: Final = 8 << 20
"""Bytes of frames, with the kernel's overhead for each, that may wait while a program computes."""

DOWN: Final = (errno.ENETDOWN, errno.ENXIO, errno.ENODEV)
"""Why nothing comes or goes while an interface is down or gone."""

_ETHTOOL_GLINK: Final = 0x0A
_SOL_PACKET: Final = 263
_PACKET_STATISTICS: Final = 6
_PACKET_IGNORE_OUTGOING: Final = 23
_FORCED: Final = {socket.SO_SNDBUF: 32, socket.SO_RCVBUF: 33}  # SO_SNDBUFFORCE, SO_RCVBUFFORCE
_SO_TIMESTAMPNS: Final = 35
_TIMESPEC: Final = struct.Struct("qq")
_STAMP_ROOM: Final = socket.CMSG_SPACE(_TIMESPEC.size)
_COUNTS: Final = struct.Struct("II")  # struct tpacket_stats: frames, of which dropped


class FrameSocket:
    """Frames of one EtherType on an interface of the caller's network namespace.

    mtu: the interface's, in bytes. OSError when there is no such interface. `socket` is for the loop that reads it:
    ``socket.recv(longest, MSG_DONTWAIT)``.
    """

    __slots__ = ("_device", "dropped", "longest", "socket", "taken")

    def __init__(self, device: str, ethertype: int, mtu: int, buffer: int = BUFFER) -> None:
        self._device = device
        self.longest = mtu + HEADROOM
        self.taken = 0
        """Frames that came and found room, up to the last `look`."""
        self.dropped = 0
        """Frames that the kernel dropped because nobody read in time, up to the last `look`."""
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
        try:
            for usual, forced in _FORCED.items():
                try:
                    self.socket.setsockopt(socket.SOL_SOCKET, forced, buffer)
                except PermissionError:  # without root the machine's limit holds
                    self.socket.setsockopt(socket.SOL_SOCKET, usual, buffer)
            self.socket.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
            self.socket.bind((device, ethertype))
        except BaseException:
            self.socket.close()
            raise

    def fileno(self) -> int:
        return self.socket.fileno()

    def close(self) -> None:
        self.socket.close()

    def has_carrier(self) -> bool:
        """Whether something that is up is at the interface's other end. What is sent while nothing is finds no buffers
        (ENOBUFS) until the kernel's link watch has noticed, up to a second later; the driver knows at once."""
        answer = ctypes.create_string_buffer(struct.pack("II", _ETHTOOL_GLINK, 0))
        request = struct.pack("16sP16x", self._device.encode(), ctypes.addressof(answer))  # struct ifreq
        try:
            fcntl.ioctl(self.socket, SIOCETHTOOL, request)
        except OSError:  # the interface is gone
            return False
        return bool(struct.unpack_from("II", answer)[1])

    def stamp(self) -> None:
        """Let the kernel note when each frame comes: `stamped`."""
        self.socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)

    def stamped(self) -> list[tuple[int, bytes]]:
        """All frames that have come, each with the time at which it did, in nanoseconds of the monotonic clock."""
        found: list[tuple[int, bytes]] = []
        behind = time.time_ns() - time.monotonic_ns()  # stamps are of the other clock, which may be set meanwhile
        while True:
            try:
                frame, told, _, _ = self.socket.recvmsg(self.longest, _STAMP_ROOM, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return found
            except OSError as error:  # told once to a socket whose interface was set down
                if error.errno not in DOWN:
                    raise
                continue
            seconds, nanoseconds = _TIMESPEC.unpack_from(told[0][2])
            found.append((seconds * 1_000_000_000 + nanoseconds - behind, frame))

    def look(self) -> None:
        """Bring the counts up to date."""
        counts = self.socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, _COUNTS.size)
        came, dropped = _COUNTS.unpack(counts)  # the kernel begins at 0 again whenever it is asked
        self.taken += came - dropped
        self.dropped += dropped

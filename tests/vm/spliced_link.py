"""Two free ends with redirection between them, as in a spliced link, and frames of the kernel's own stack on them.

    sender -- a | redirected | b -- receiver            all in one namespace; the tested qdisc is on b

Long series of frames are pktgen's: UDP with a number that counts from 1, as fast as the kernel can make them.
pktgen ends only after its last frame has left; frames that the qdisc is to hold come from a packet socket.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from testbed.kernel import namespaces, netem, netlink_messages, qdiscs
from testbed.kernel.qdiscs import Qdisc

SLOW = float(os.environ.get("TESTBED_SLOW", "1"))
TIMEOUT = 60 * SLOW  # seconds
SENDER, A, B, RECEIVER = 101, 102, 103, 104
MTU = 1500
PKTGEN = Path("/proc/net/pktgen")

_UNUSED_MAC = "06:00:00:00:00:01"  # the receiver's stack must not answer
_OWN = b"\x88\xb5"  # IEEE 802 local experimental EtherType 1
_NUMBER = struct.Struct(">I")
_NUMBER_AT = 14 + 20 + 8 + 4
_SO_RCVBUFFORCE = 33
_BUFFER = 1 << 27


@contextmanager
def packet_generator() -> Iterator[None]:
    """Load pktgen, which adds two kernel threads to every new namespace."""
    subprocess.run(["modprobe", "pktgen"], check=True)
    try:
        yield
    finally:
        subprocess.run(["rmmod", "pktgen"], check=True)


class SplicedLink:
    """The four interfaces, made and used by a thread in their namespace."""

    def __init__(self, opened: namespaces.OpenNamespace) -> None:
        self.route = opened.route
        self.route.execute(
            [
                netlink_messages.make_veth("sender", SENDER, MTU, opened.descriptor, "a", A),
                netlink_messages.make_veth("receiver", RECEIVER, MTU, opened.descriptor, "b", B),
                *(netlink_messages.set_up(index) for index in (SENDER, A, B, RECEIVER)),
                netlink_messages.add_clsact(A),
                netlink_messages.redirect_ingress(A, B),
            ]
        )
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.htons(3))
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER)
        self._socket.bind(("receiver", 3))
        self._taken = 0

    def close(self) -> None:
        self._socket.close()

    def set(self, options: netem.Options) -> None:
        self.route.execute([netem.request(B, options)])

    def qdisc(self) -> Qdisc:
        return qdiscs.qdiscs(self.route)[B]

    def offer(self, count: int) -> list[int]:
        """Send frames numbered from 1. Returns the time at which each was sent, nanoseconds of the monotonic clock."""
        send_times = []
        head = bytes.fromhex(_UNUSED_MAC.replace(":", "")) + bytes(6) + _OWN
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as sender:
            sender.bind(("sender", 0))
            for number in range(1, count + 1):
                send_times.append(time.monotonic_ns())
                sender.send(head.ljust(_NUMBER_AT, b"\0") + _NUMBER.pack(number) + bytes(10))
        return send_times

    def send(self, count: int, size: int = 60) -> None:
        """Send frames numbered from 1 with pktgen; return when the last one has left the qdisc or is lost."""
        _control("kpktgend_0", "rem_device_all", "add_device sender")
        settings = (f"count {count}", "clone_skb 0", f"pkt_size {size}", "delay 0", "xmit_mode queue_xmit")
        settings += ("flag NO_TIMESTAMP", "dst 10.0.0.2", f"dst_mac {_UNUSED_MAC}")
        _control("sender", *settings)
        _control("pgctrl", "start")
        text = (PKTGEN / "sender").read_text()
        assert "Result: OK" in text, text

    def arrived(self, held: int = 0) -> list[bytes]:
        """Return the frames that have arrived since the last call, once no more than `held` frames are in the qdisc."""
        deadline = time.monotonic() + TIMEOUT
        while (qdisc := self.qdisc()).queued > held:
            assert time.monotonic() < deadline, f"{qdisc.queued} frames are still held after {TIMEOUT} s"
            time.sleep(0.01)  # between two samples
        frames: list[bytes] = []
        while self._taken + len(frames) < qdisc.frames:
            try:
                frames.append(self._socket.recv(2048))
            except BlockingIOError:
                missing_count = qdisc.frames - self._taken - len(frames)
                assert time.monotonic() < deadline, f"{missing_count} frames have left and not arrived"
                time.sleep(0.01)  # between two samples
        self._taken += len(frames)
        return frames

    def arrivals(self) -> list[tuple[int, int]]:
        """Receive all frames in the qdisc; return their arrival times, nanoseconds of the monotonic clock, and numbers."""
        deadline = time.monotonic() + TIMEOUT
        arrivals: list[tuple[int, int]] = []
        while self.qdisc().queued or self._taken < self.qdisc().frames:
            assert time.monotonic() < deadline, f"frames are still held after {TIMEOUT} s"
            readable, _, _ = select.select([self._socket], [], [], 0.5)
            while readable:
                try:
                    frame = self._socket.recv(2048)
                except BlockingIOError:
                    break
                arrivals.append((time.monotonic_ns(), _NUMBER.unpack_from(frame, _NUMBER_AT)[0]))
                self._taken += 1
        return arrivals


def numbers(frames: list[bytes]) -> list[int]:
    return [_NUMBER.unpack_from(frame, _NUMBER_AT)[0] for frame in frames]


@contextmanager
def spliced() -> Iterator[SplicedLink]:
    with namespaces.restore_namespace():
        opened = namespaces.make("testbed-test", namespaces.WIRE_SETTINGS)
        try:
            link = SplicedLink(opened)
            try:
                yield link
            finally:
                link.close()
        finally:
            opened.close()


def _control(file: str, *commands: str) -> None:
    """Write commands to a file of pktgen, which takes one command a write."""
    for command in commands:
        descriptor = os.open(PKTGEN / file, os.O_WRONLY)
        try:
            os.write(descriptor, f"{command}\n".encode())
        finally:
            os.close(descriptor)

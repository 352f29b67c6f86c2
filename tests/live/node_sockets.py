"""Packet sockets in nodes' namespaces, numbered frames, and a NIC's address."""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from testbed import RunningCluster
from testbed.kernel import namespaces, offloads, syscalls
from testbed.kernel.children import in_child
from testbed.kernel.packet_options import SO_TIMESTAMPNS
from testbed.kernel.syscalls import CLONE_NEWNET, setns

ETH_P_ALL = 0x0003
OURS = 0x88B5  # IEEE 802 local experimental EtherType 1
BROADCAST = b"\xff" * 6
PACKET_OUTGOING = 4


@contextmanager
def open_socket(namespace: str, device: str, protocol: int = OURS) -> Iterator[socket.socket]:
    """Open a packet socket on an interface in another namespace."""
    handle = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with namespaces.restore_namespace():
            syscalls.setns(handle, syscalls.CLONE_NEWNET)
            actual = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(protocol))
    finally:
        os.close(handle)
    with actual:
        actual.bind((device, protocol))
        actual.setblocking(False)
        yield actual


@contextmanager
def nic_sockets(cluster: RunningCluster) -> Iterator[dict[str, socket.socket]]:
    """Open a packet socket on the first NIC of every node."""
    with ExitStack() as stack:
        yield {
            node.name: stack.enter_context(open_socket(node.namespace, node.layout.nics[0].name))
            for node in cluster
            if node.layout.nics
        }


def numbered_frame(destination: bytes, source: bytes, number: int) -> bytes:
    return destination + source + OURS.to_bytes(2, "big") + number.to_bytes(4, "big") + bytes(46)


def mac(cluster: RunningCluster, node: str) -> bytes:
    return bytes.fromhex(cluster[node].layout.nics[0].mac.replace(":", ""))


def received(packet_socket: socket.socket) -> list[bytes]:
    """Read all received frames, without the node's own."""
    frames = []
    while True:
        try:
            data, address = packet_socket.recvfrom(65_536)
        except BlockingIOError:
            return frames
        except OSError as error:
            if error.errno != errno.ENETDOWN:  # reported once to a socket whose interface was set down
                raise
            continue
        if address[2] != PACKET_OUTGOING:
            frames.append(data)


def enable_timestamps(packet_socket: socket.socket) -> None:
    """Enable the kernel's receive time stamps, for `received_with_times`."""
    packet_socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)


def received_with_times(packet_socket: socket.socket) -> list[tuple[int, bytes]]:
    """Read all received frames, without the node's own, each with the kernel's time stamp, nanoseconds
    of CLOCK_REALTIME."""
    frames = []
    while True:
        try:
            data, control, _, address = packet_socket.recvmsg(65_536, 64)
        except BlockingIOError:
            return frames
        if address[2] != PACKET_OUTGOING:
            ((_, _, stamp),) = control
            seconds, nanoseconds = struct.unpack("qq", stamp)
            frames.append((seconds * 1_000_000_000 + nanoseconds, data))


def wait_until_readable(packet_socket: socket.socket, deadline: float = 10) -> None:
    until = time.monotonic() + deadline
    while not select.select([packet_socket], [], [], max(0, until - time.monotonic()))[0]:
        raise AssertionError(f"no frame within {deadline} s")


def frame_numbers(frames: list[bytes]) -> list[int]:
    return [int.from_bytes(data[14:18], "big") for data in frames]


def accepts_gso(cluster: RunningCluster, node: str) -> bool | None:
    def query() -> bool | None:
        handle = os.open(cluster[node].namespace, os.O_RDONLY)
        setns(handle, CLONE_NEWNET)
        with socket.socket() as opened:
            return offloads.accepts_gso(opened.fileno(), cluster[node].layout.nics[0].name)

    return in_child(query)


def socket_in(namespace: str, make: Callable[[], socket.socket]) -> socket.socket:
    handle = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with namespaces.restore_namespace():
            syscalls.setns(handle, syscalls.CLONE_NEWNET)
            return make()
    finally:
        os.close(handle)

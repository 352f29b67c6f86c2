"""Protocol between a host process and the agent of its NIC on a Unix socket: each packet is one JSON object.

The host requests "attach", and gets the region's layout, its adapter, and three descriptors: the region's memory; an eventfd
with which the host wakes the agent; and the reading end of a pipe with which the agent wakes the host. The socket stays open
as long as both processes run; end of file means that the peer has ended. Later the host may request "report" and "waiting".

The agent does not wake the host by an eventfd, because a passed descriptor shares its flags with the sender's: a host could
make the agent's next write block forever. Only the agent has the writing end of the pipe, and it never reads or writes the
host's eventfd.

The socket's name is abstract: it belongs to the node's network namespace, needs no file, and ends with the agent.
"""

from __future__ import annotations

import json
import os
import socket
from typing import Any, Final

from testbed.errors import TestbedError

VERSION: Final = 4
_MAX_PACKET: Final = 64 * 1024  # bytes: enough for the addresses of a thousand NICs
_MAX_DESCRIPTORS: Final = 3  # passed with one packet


class AttachError(TestbedError):
    """There is no NIC to attach to, or its agent refuses this process."""


class NoAgentError(AttachError):
    """The interface has no agent."""


class NicGoneError(TestbedError):
    """The agent of the NIC has ended, or has detached this host process for a violation of the protocol."""


def socket_name(device: str, worker: int = 0) -> str:
    """Return the abstract name of the socket on which the agent of an interface, or one of its workers, listens."""
    return f"\0testbed/nic/{device}/agent" + (f"/{worker}" if worker else "")


def listen(device: str, worker: int = 0) -> socket.socket:
    """Open the listening socket of an interface's agent. Raises OSError if there is an agent already."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        listener.bind(socket_name(device, worker))
        listener.listen(64)
    except BaseException:
        listener.close()
        raise
    return listener


def connect(device: str, worker: int = 0) -> socket.socket:
    """Connect to the agent of an interface. Raises NoAgentError."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        connection.connect(socket_name(device, worker))
    except OSError as error:
        connection.close()
        reason = os.strerror(error.errno or 0)
        raise NoAgentError(f"no agent shares {device} in this network namespace: {reason}") from error
    return connection


def send(connection: socket.socket, message: dict[str, Any], descriptors: tuple[int, ...] = ()) -> None:
    """Send a message without blocking. Raises OSError when the other end is closed or its buffer is full."""
    flags = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
    socket.send_fds(connection, [json.dumps(message).encode()], list(descriptors), flags)


def receive(connection: socket.socket, flags: int = 0) -> tuple[dict[str, Any] | None, list[int]]:
    """Receive the next message; return it, or None when the other end is closed, and the descriptors passed with it. flags:
    as of recvmsg(2). Raises BlockingIOError with MSG_DONTWAIT if there is no message, ValueError for a packet that is no
    JSON object."""
    try:
        packet, descriptors, _, _ = socket.recv_fds(
            connection, _MAX_PACKET, _MAX_DESCRIPTORS, flags | socket.MSG_CMSG_CLOEXEC
        )
    except ConnectionResetError:
        return None, []
    try:
        message = json.loads(packet) if packet else None
        if message is not None and not isinstance(message, dict):
            raise ValueError("not an object")
    except (ValueError, RecursionError) as error:
        for descriptor in descriptors:
            os.close(descriptor)
        raise ValueError(f"the message is invalid: {error}") from error
    return message, descriptors

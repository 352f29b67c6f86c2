"""Protocol between a host process and the agent of its NIC on a Unix socket: one JSON object a packet.

The host requests "attach", and gets the region's layout, its adapter on the network, and three descriptors: the region's
memory; an eventfd by which it wakes the agent; the reading end of a pipe by which the agent wakes it. The socket stays open
as long as both live: end of file is the other's death. Later the host may request "report" and "waiting".

There are no eventfds both ways, because a descriptor that is handed over shares its flags with ours: a host could make the
agent's next write block for ever. Only the agent has the writing end of the pipe, and it never reads or writes the host's
eventfd.

The socket's name is abstract: it belongs to the node's network namespace, needs no file, and ends with the agent.
"""

from __future__ import annotations

import json
import os
import socket
from typing import Any, Final

from testbed.errors import TestbedError

VERSION: Final = 3
_MAX: Final = 64 * 1024  # bytes of a packet; addresses of a thousand NICs have room
_DESCRIPTORS: Final = 3


class AttachError(TestbedError):
    """There is no NIC to attach to, or it refuses this process."""


class NoAgentError(AttachError):
    """The interface has no agent."""


class NicGoneError(TestbedError):
    """The agent of the NIC has ended, or has detached this host process for misconduct."""


def name_of(device: str, worker: int = 0) -> str:
    """Return the name of the socket on which the agent of an interface listens, or one of its workers."""
    return f"\0testbed/nic/{device}/agent" + (f"/{worker}" if worker else "")


def listening(device: str, worker: int = 0) -> socket.socket:
    """Open the listening socket of an interface's agent. OSError where it has one already."""
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        opened.bind(name_of(device, worker))
        opened.listen(64)
    except BaseException:
        opened.close()
        raise
    return opened


def connected(device: str, worker: int = 0) -> socket.socket:
    """Connect to the agent of an interface. Raises NoAgentError."""
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        opened.connect(name_of(device, worker))
    except OSError as error:
        opened.close()
        raise NoAgentError(f"{device} is shared by no agent here: {os.strerror(error.errno or 0)}") from error
    return opened


def send(end: socket.socket, message: dict[str, Any], descriptors: tuple[int, ...] = ()) -> None:
    """Send a message without blocking. OSError when the other end is gone, or its buffer is full."""
    flags = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
    socket.send_fds(end, [json.dumps(message).encode()], list(descriptors), flags)


def receive(end: socket.socket, flags: int = 0) -> tuple[dict[str, Any] | None, list[int]]:
    """Receive the next message, None when the other end is gone, and its descriptors. Raises BlockingIOError with
    MSG_DONTWAIT, ValueError for a packet that is no JSON object."""
    try:
        packet, handed, _, _ = socket.recv_fds(end, _MAX, _DESCRIPTORS, flags | socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError:
        return None, []
    try:
        message = json.loads(packet) if packet else None
        if message is not None and not isinstance(message, dict):
            raise ValueError("not an object")
    except (ValueError, RecursionError) as error:
        for descriptor in handed:
            os.close(descriptor)
        raise ValueError(f"the message is invalid: {error}") from error
    return message, handed

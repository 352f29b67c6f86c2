"""What a host process and the agent of its NIC say to each other on a Unix socket: one JSON object a packet.

The host asks "attach", and is given the region's layout, who it is on the network, and three descriptors: of the region's
memory; an eventfd by which it wakes the agent; the reading end of a pipe by which the agent wakes it. The socket stays open
as long as both live: its end is the other's death. Later the host may ask for "report" and "waiting".

Why not eventfds both ways: a descriptor that is handed over shares its flags with ours. A host could let the agent's next
write to it wait for ever. The writing end of a pipe is the agent's alone; and the host's eventfd it never reads nor writes.

The name is abstract: it belongs to the node's network namespace, needs no file, and ends with the agent.
"""

from __future__ import annotations

import json
import os
import socket
from typing import Any, Final

from testbed.errors import TestbedError

VERSION: Final = 2
_MOST: Final = 64 * 1024  # bytes of a packet; addresses of a thousand NICs have room
_DESCRIPTORS: Final = 3


class AttachError(TestbedError):
    """There is no NIC to attach to, or it does not take this process."""


class NoAgentError(AttachError):
    """The interface has no agent."""


class NicGoneError(TestbedError):
    """The agent of the NIC has ended, or has refused this host process for what it did."""


def name_of(device: str) -> str:
    """Of the socket on which the agent of this interface listens."""
    return f"\0testbed/nic/{device}/agent"


def listening(device: str) -> socket.socket:
    """OSError where the interface has an agent already."""
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        opened.bind(name_of(device))
        opened.listen(64)
    except BaseException:
        opened.close()
        raise
    return opened


def connected(device: str) -> socket.socket:
    """Raises NoAgentError."""
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        opened.connect(name_of(device))
    except OSError as error:
        opened.close()
        raise NoAgentError(f"{device} is shared by no agent here: {os.strerror(error.errno or 0)}") from error
    return opened


def tell(end: socket.socket, said: dict[str, Any], descriptors: tuple[int, ...] = ()) -> None:
    """Without waiting. OSError when the other end is gone, or takes nothing any more."""
    flags = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
    socket.send_fds(end, [json.dumps(said).encode()], list(descriptors), flags)


def hear(end: socket.socket, flags: int = 0) -> tuple[dict[str, Any] | None, list[int]]:
    """The next object, None when the other end is gone, and what descriptors came with it. Raises BlockingIOError with
    MSG_DONTWAIT, ValueError for what is no object."""
    try:
        packet, handed, _, _ = socket.recv_fds(end, _MOST, _DESCRIPTORS, flags | socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError:
        return None, []
    try:
        said = json.loads(packet) if packet else None
        if said is not None and not isinstance(said, dict):
            raise ValueError("not an object")
    except (ValueError, RecursionError) as error:
        for descriptor in handed:
            os.close(descriptor)
        raise ValueError(f"what was said makes no sense: {error}") from error
    return said, handed

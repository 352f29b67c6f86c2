"""Control channel between a node process and the process that started it, on a Unix socket. A message is a word and plain
data.

A message is one packet, which arrives completely or not at all. When the process at one end dies, the other end gets end of
file at once. The data is pickled, since both processes are forks of one program.
"""

from __future__ import annotations

import pickle
import select
import socket
from typing import Final

from testbed.errors import TestbedError

_MAX_PACKET: Final = 128 * 1024  # bytes; the kernel's default limit is 208 KiB, which includes its own overhead


class Channel:
    """One end of a channel. `fileno()` is readable when there is a message, or when the other end is closed."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        """Make the two ends of a new channel."""
        first, second = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        return cls(first), cls(second)

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def send(self, word: str, data: object = None, end: Channel | None = None) -> None:
        """Send a message. end: end of another channel, to be passed with the message (see `receive_with_channel`). Raises
        the errors of `encode`, and ConnectionError when this channel's other end is closed."""
        packet = encode(word, data)
        if end is None:
            self._socket.send(packet, socket.MSG_NOSIGNAL)
        else:
            socket.send_fds(self._socket, [packet], [end.fileno()], socket.MSG_NOSIGNAL)

    def has_message(self) -> bool:
        """Whether `receive` would return without waiting."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def receive(self) -> tuple[str, object] | None:
        """Wait for the next message; return its word and data, or None when the other end is closed."""
        try:
            packet = self._socket.recv(_MAX_PACKET + 1)
        except (
            ConnectionResetError
        ):  # raised once if the peer has ended with unread messages; those it sent are still here
            packet = self._socket.recv(_MAX_PACKET + 1)
        return _decode(packet)

    def receive_with_channel(self) -> tuple[tuple[str, object] | None, Channel | None]:
        """Wait for the next message, as `receive`; also return the end of another channel, if one was passed with it."""
        try:
            packet, descriptors = self._receive()
        except ConnectionResetError:
            packet, descriptors = self._receive()
        return _decode(packet), Channel(socket.socket(fileno=descriptors[0])) if descriptors else None

    def _receive(self) -> tuple[bytes, list[int]]:
        packet, descriptors, _, _ = socket.recv_fds(self._socket, _MAX_PACKET + 1, 1, socket.MSG_CMSG_CLOEXEC)
        return packet, descriptors


def encode(word: str, data: object) -> bytes:
    """Encode a message for a channel. Raises TestbedError for data that is too large or cannot be pickled."""
    try:
        packet = pickle.dumps((word, data))
    except (pickle.PicklingError, AttributeError, TypeError, RecursionError) as error:
        raise TestbedError(
            f"{error}: the result of a program must be plain data, such as numbers, strings and lists"
        ) from error
    if len(packet) > _MAX_PACKET:
        raise TestbedError(
            f"a message of {len(packet)} bytes is too long; at most {_MAX_PACKET} are allowed: write a file instead"
        )
    return packet


def _decode(packet: bytes) -> tuple[str, object] | None:
    if not packet:
        return None
    word, data = pickle.loads(packet)  # written by a fork of this process
    return str(word), data

"""Control channel between a node process and the process that started it: words with plain data on a Unix socket.

Each word is one packet, which arrives completely or not at all; the death of the other end is an immediate end of file.
The data is pickled: both ends are forks of one program.
"""

from __future__ import annotations

import pickle
import select
import socket
from typing import Final

from testbed.errors import TestbedError

_MAX: Final = 128 * 1024  # bytes of a packet; the kernel's usual limit is 208 KiB, with its own overhead


class Channel:
    """One end of a channel. fileno() is readable when there is a word, or the other end is gone."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        return cls(ours), cls(theirs)

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def send(self, word: str, data: object = None, end: Channel | None = None) -> None:
        """Send a word with data. end: of another channel, passed along with it (see `receive_with_channel`). Raises the
        errors of `packed`, and ConnectionError when the other end is gone."""
        packet = packed(word, data)
        if end is None:
            self._socket.send(packet, socket.MSG_NOSIGNAL)
        else:
            socket.send_fds(self._socket, [packet], [end.fileno()], socket.MSG_NOSIGNAL)

    def has_word(self) -> bool:
        """Whether `receive` would return without waiting."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def receive(self) -> tuple[str, object] | None:
        """Wait for the next word; None when the other end is gone."""
        try:
            packet = self._socket.recv(_MAX + 1)
        except (
            ConnectionResetError
        ):  # raised once if the other end left words unread; its earlier words can still be read
            packet = self._socket.recv(_MAX + 1)
        return _understood(packet)

    def receive_with_channel(self) -> tuple[tuple[str, object] | None, Channel | None]:
        """Wait for the next word, as `receive`, and the end of another channel if one came with it."""
        try:
            packet, handed = self._receive()
        except ConnectionResetError:
            packet, handed = self._receive()
        return _understood(packet), Channel(socket.socket(fileno=handed[0])) if handed else None

    def _receive(self) -> tuple[bytes, list[int]]:
        packet, handed, _, _ = socket.recv_fds(self._socket, _MAX + 1, 1, socket.MSG_CMSG_CLOEXEC)
        return packet, handed


def packed(word: str, data: object) -> bytes:
    """Encode a word for a channel. Raises TestbedError for data that is too large, or that cannot be pickled."""
    try:
        packet = pickle.dumps((word, data))
    except (pickle.PicklingError, AttributeError, TypeError, RecursionError) as error:
        raise TestbedError(
            f"{error}: what a program returns must be plain data, such as numbers, texts, lists"
        ) from error
    if len(packet) > _MAX:
        raise TestbedError(
            f"{len(packet)} bytes are too many for one message; {_MAX} are allowed: write a file instead"
        )
    return packet


def _understood(packet: bytes) -> tuple[str, object] | None:
    if not packet:
        return None
    word, data = pickle.loads(packet)  # written by ourselves, before or after a fork
    return str(word), data

"""What a node process and whoever started it tell each other: words with plain data, one packet each on a Unix socket.

A packet is whole or not there, and the other end's death is an end of the file at once. The data is pickled: both ends are
one program, forked.
"""

from __future__ import annotations

import pickle
import select
import socket
from typing import Final

from testbed.errors import TestbedError

_MOST: Final = 128 * 1024  # bytes of a packet; the kernel's usual limit is 208 KiB, with its own overhead


class Channel:
    """One end. fileno() can be read when there is a word, or the other end is gone."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        return cls(one), cls(other)

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def tell(self, word: str, data: object = None, end: Channel | None = None) -> None:
        """end: of another channel, which the other end of this one gets, too (by `hear_with`). Raises what `packed` does,
        ConnectionError when the other end is gone."""
        packet = packed(word, data)
        if end is None:
            self._socket.send(packet, socket.MSG_NOSIGNAL)
        else:
            socket.send_fds(self._socket, [packet], [end.fileno()], socket.MSG_NOSIGNAL)

    def has_word(self) -> bool:
        """Whether `hear` would not wait now."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def hear(self) -> tuple[str, object] | None:
        """The next word, waiting for it; None when the other end is gone."""
        try:
            packet = self._socket.recv(_MOST + 1)
        except ConnectionResetError:  # told once where it has not read all: what it said before can still be read
            packet = self._socket.recv(_MOST + 1)
        return _understood(packet)

    def hear_with(self) -> tuple[tuple[str, object] | None, Channel | None]:
        """As `hear`, and the end of another channel where one came with the word."""
        try:
            packet, handed = self._receive()
        except ConnectionResetError:
            packet, handed = self._receive()
        return _understood(packet), Channel(socket.socket(fileno=handed[0])) if handed else None

    def _receive(self) -> tuple[bytes, list[int]]:
        packet, handed, _, _ = socket.recv_fds(self._socket, _MOST + 1, 1, socket.MSG_CMSG_CLOEXEC)
        return packet, handed


def packed(word: str, data: object) -> bytes:
    """As it goes over a channel. Raises TestbedError for data that is too large, or that only its own process knows."""
    try:
        packet = pickle.dumps((word, data))
    except (pickle.PicklingError, AttributeError, TypeError, RecursionError) as error:
        raise TestbedError(
            f"{error}: what a program returns must be plain data, such as numbers, texts, lists"
        ) from error
    if len(packet) > _MOST:
        raise TestbedError(f"{len(packet)} bytes are too many to be told; {_MOST} are allowed: write a file instead")
    return packet


def _understood(packet: bytes) -> tuple[str, object] | None:
    if not packet:
        return None
    word, data = pickle.loads(packet)  # written by ourselves, before or after a fork
    return str(word), data

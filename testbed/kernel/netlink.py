"""Route-netlink socket of one network namespace: many requests in one system call, few acknowledgements.

pyroute2's own sockets start a process to be opened in another namespace and take one round trip per request; here the
socket is opened by a thread in the namespace, and a batch is one `send`. Requests come encoded from `netlink_messages`.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from testbed.kernel.changes import announce

SOL_NETLINK = 270
NETLINK_CAP_ACK = 10
NETLINK_EXT_ACK = 11
NETLINK_GET_STRICT_CHK = 12

NLMSG_ERROR = 2
NLMSG_DONE = 3
NLM_F_ACK = 0x4
NLM_F_DUMP_INTR = 0x10
NLM_F_CAPPED = 0x100
NLM_F_ACK_TLVS = 0x200
NLMSGERR_ATTR_MSG = 1

_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port
_ERROR = struct.Struct("=i")
_ATTRIBUTE = struct.Struct("=HH")
_FLAGS = struct.Struct("=H")  # at offset 6 of a message
_SEQUENCE = struct.Struct("=I")  # at offset 8

# The kernel takes a message of up to SO_SNDBUF; half of Linux's default (208 KiB, counted with overhead) is always safe.
BATCH_BYTES = 64 * 1024
_RECEIVE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Refusal:
    """One request of a batch that the kernel refused. position: its index. reason: errno's text and the kernel's message."""

    position: int
    errno: int
    reason: str


class RequestError(Exception):
    """The kernel refused requests. The others of the batch were executed."""

    def __init__(self, refusals: Sequence[Refusal]) -> None:
        self.refusals = tuple(refusals)
        super().__init__("; ".join(f"request {refusal.position}: {refusal.reason}" for refusal in refusals))


class RouteSocket:
    """A netlink socket, bound to the network namespace in which it was opened."""

    def __init__(self, opened: int | None = None) -> None:
        """opened: the descriptor of a socket that another process opened in its namespace; this object owns it."""
        if opened is not None:
            self._socket = socket.socket(fileno=opened)
            return
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
        for option in (NETLINK_CAP_ACK, NETLINK_EXT_ACK, NETLINK_GET_STRICT_CHK):
            self._socket.setsockopt(SOL_NETLINK, option, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)

    def close(self) -> None:
        self._socket.close()

    def fileno(self) -> int:
        """Return the descriptor, which also serves for ioctls on interfaces of the namespace."""
        return self._socket.fileno()

    def execute(self, requests: Sequence[bytes], what: str = "netlink") -> None:
        """Send the requests in as few system calls as possible; wait until the kernel has executed the last.

        The kernel goes on after a request that it refuses. RequestError lists all refusals.
        """
        refusals: list[Refusal] = []
        first = 0
        while first < len(requests):
            batch = bytearray()
            last = first
            while last < len(requests) and (not batch or len(batch) + len(requests[last]) <= BATCH_BYTES):
                start = len(batch)
                batch += requests[last]
                last += 1
                _SEQUENCE.pack_into(batch, start + 8, last)
            (flags,) = _FLAGS.unpack_from(batch, start + 6)
            _FLAGS.pack_into(batch, start + 6, flags | NLM_F_ACK)
            self._socket.send(batch)
            announce(what)
            refusals += self._finish(last)
            first = last
        if refusals:
            raise RequestError(refusals)

    def _finish(self, last: int) -> list[Refusal]:
        """Read answers up to that of request number `last`; return the refusals among them."""
        refusals = []
        while True:
            for kind, flags, sequence, body in _messages(self._socket.recv(_RECEIVE_BYTES)):
                if kind != NLMSG_ERROR:
                    continue
                (code,) = _ERROR.unpack_from(body)
                if code:
                    refusals.append(_refusal(sequence - 1, -code, flags, body))
                if sequence == last:
                    return refusals

    def ask(self, request: bytes) -> memoryview:
        """Send a request for one object; return the body of the answer. RequestError when the kernel refuses."""
        self._socket.send(request)
        for kind, flags, _, body in _messages(self._socket.recv(_RECEIVE_BYTES)):
            if kind != NLMSG_ERROR:
                return body
            (code,) = _ERROR.unpack_from(body)
            raise RequestError([_refusal(0, -code, flags, body)])
        raise OSError(errno.EBADMSG, "netlink: an empty answer")

    def dump(self, request: bytes) -> list[memoryview]:
        """Request a table; return the bodies (after the netlink header) of all its entries."""
        while True:
            self._socket.send(request)
            entries: list[memoryview] = []
            interrupted = False
            done = False
            while not done:
                for kind, flags, _, body in _messages(self._socket.recv(_RECEIVE_BYTES)):
                    interrupted = interrupted or bool(flags & NLM_F_DUMP_INTR)
                    if kind == NLMSG_DONE:
                        done = True
                    elif kind == NLMSG_ERROR:
                        (code,) = _ERROR.unpack_from(body)
                        if code:
                            raise RequestError([_refusal(0, -code, flags, body)])
                    else:
                        entries.append(body)
            if not interrupted:  # otherwise the table changed under the dump: ask again
                return entries


def _messages(data: bytes) -> Iterator[tuple[int, int, int, memoryview]]:
    view = memoryview(data)
    offset = 0
    while offset + _HEADER.size <= len(view):
        length, kind, flags, sequence, _ = _HEADER.unpack_from(view, offset)
        if length < _HEADER.size:
            raise OSError(errno.EBADMSG, "netlink: a message shorter than its header")
        yield kind, flags, sequence, view[offset + _HEADER.size : offset + length]
        offset += (length + 3) & ~3


def attributes(view: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Iterate over the attributes (type without its flag bits, payload) of a netlink message's tail."""
    offset = 0
    while offset + 4 <= len(view):
        length, kind = _ATTRIBUTE.unpack_from(view, offset)
        if length < 4:
            raise OSError(errno.EBADMSG, "netlink: an attribute shorter than its header")
        yield kind & 0x3FFF, view[offset + 4 : offset + length]
        offset += (length + 3) & ~3


def _refusal(position: int, code: int, flags: int, body: memoryview) -> Refusal:
    message = _extended_message(flags, body)
    return Refusal(position, code, f"{os.strerror(code)} ({message})" if message else os.strerror(code))


def _extended_message(flags: int, body: memoryview) -> str:
    """Return the message of an extended acknowledgement, or empty."""
    if not flags & NLM_F_ACK_TLVS:
        return ""
    offset = _ERROR.size + _HEADER.size
    if not flags & NLM_F_CAPPED:  # the refused request follows in full
        (length,) = struct.unpack_from("=I", body, _ERROR.size)
        offset = _ERROR.size + ((length + 3) & ~3)
    for kind, value in attributes(body[offset:]):
        if kind == NLMSGERR_ATTR_MSG:
            return bytes(value).rstrip(b"\0").decode(errors="replace")
    return ""

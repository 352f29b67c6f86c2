"""Route-netlink socket of one network namespace: many requests in one system call, few acknowledgements.

pyroute2 needs a process to open a socket in another namespace, and waits for each reply. This socket is opened by a
thread in the namespace, and sends requests in batches. `netlink_messages` encodes the requests.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from testbed.kernel.changes import announce
from testbed.lazy_dataclass import dataclass

# Constants have the names of the kernel's headers.
SOL_NETLINK = 270
NETLINK_CAP_ACK, NETLINK_EXT_ACK, NETLINK_GET_STRICT_CHK = 10, 11, 12
NLMSG_ERROR, NLMSG_DONE = 2, 3
NLM_F_REQUEST, NLM_F_ACK, NLM_F_DUMP_INTR, NLM_F_DUMP = 0x1, 0x4, 0x10, 0x300
NLM_F_CAPPED, NLM_F_ACK_TLVS = 0x100, 0x200  # of an error
NLM_F_REPLACE, NLM_F_EXCL, NLM_F_CREATE = 0x100, 0x200, 0x400  # of a request
NLMSGERR_ATTR_MSG = 1
RTM_NEWQDISC, RTM_DELQDISC, RTM_GETQDISC = 36, 37, 38
RTM_NEWTFILTER, RTM_DELTFILTER, RTM_GETTFILTER = 44, 45, 46
TC_H_ROOT, TC_H_CLSACT = 0xFFFF_FFFF, 0xFFFF_FFF1
TC_H_CLSACT_INGRESS, TC_H_CLSACT_EGRESS = 0xFFFF_FFF2, 0xFFFF_FFF3
TCA_KIND, TCA_OPTIONS, TCA_STATS2, TCA_STAB = 1, 2, 7, 8  # TCA_ACT_KIND and TCA_ACT_OPTIONS have the same values
TCA_STATS_BASIC, TCA_STATS_QUEUE, TCA_STATS_PKT64 = 1, 3, 8
TCA_MIRRED_PARMS = 2
ETH_P_ALL = socket.htons(0x0003)
# Priorities of the filters on one hook: loss classifiers before redirections to a stage, and those before redirections that
# join two cables. Diversions to the relay come first (`diversion.PRIORITY`, 1). Filters on the egress side, which redirect
# frames to a patch, have other priorities, since a dump of one side contains the u32 filters of both: first the exceptions,
# then the filter for all other frames.
LOSS_PRIORITY, STAGE_PRIORITY, JOIN_PRIORITY, EXCEPTION_PRIORITY, PATCH_PRIORITY = 2, 3, 4, 5, 6
TC_MESSAGE = struct.Struct("=BxxxiIII")  # struct tcmsg: family, index, handle, parent, info
MIRRED = struct.Struct("=IIiiiiI")  # struct tc_mirred: index, capab, action, refcnt, bindcnt, eaction, ifindex
_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port
_ERROR = struct.Struct("=i")
_ATTRIBUTE = struct.Struct("=HH")
_FLAGS = struct.Struct("=H")  # at offset 6 of a message
_SEQUENCE = struct.Struct("=I")  # at offset 8

# The kernel accepts up to SO_SNDBUF, by default 208 KiB including its overhead: less than half of that always fits.
BATCH_BYTES = 64 * 1024
_RECEIVE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request of a batch that the kernel rejected. position: index of the request. errno: its error number. reason:
    text of the error, and the kernel's message."""

    position: int
    errno: int
    reason: str


class RequestError(Exception):
    """The kernel rejected requests of a batch. All other requests were executed."""

    def __init__(self, refusals: Sequence[Refusal]) -> None:
        self.refusals = tuple(refusals)
        super().__init__("; ".join(f"request {refusal.position}: {refusal.reason}" for refusal in refusals))


class RouteSocket:
    """A netlink socket, bound to the network namespace in which it was opened."""

    def __init__(self, descriptor: int | None = None) -> None:
        """descriptor: of a netlink socket that another process has opened; this object owns it. None: open one here."""
        if descriptor is not None:
            self._socket = socket.socket(fileno=descriptor)
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

    def execute(self, requests: Sequence[bytes], description: str = "netlink") -> None:
        """Send requests in as few system calls as possible, and wait until the kernel has executed the last one.

        description: for the announcements of changes. The kernel continues after a rejected request. Raises RequestError
        with all rejected requests.
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
            announce(description)
            refusals += self._read_refusals(last)
            first = last
        if refusals:
            raise RequestError(refusals)

    def _read_refusals(self, last: int) -> list[Refusal]:
        """Read replies up to that of request number `last`; return the refusals."""
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

    def query(self, request: bytes) -> memoryview:
        """Send a request for one object; return the body of the reply. Raises RequestError."""
        self._socket.send(request)
        for kind, flags, _, body in _messages(self._socket.recv(_RECEIVE_BYTES)):
            if kind != NLMSG_ERROR:
                return body
            (code,) = _ERROR.unpack_from(body)
            raise RequestError([_refusal(0, -code, flags, body)])
        raise OSError(errno.EBADMSG, "netlink: an empty reply")

    def dump(self, table: int, fields: bytes) -> list[memoryview]:
        """Request a table; return the bodies of all its entries, without netlink headers. table: RTM_GET*. fields: the
        body of the request. Raises RequestError."""
        request = message(table, NLM_F_REQUEST | NLM_F_DUMP, fields, sequence=1)
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
                        (code,) = _ERROR.unpack_from(body)
                        if code < 0:  # the kernel rejected the request, or the dump failed on the way
                            raise RequestError([_refusal(0, -code, flags, body, is_done=True)])
                    elif kind == NLMSG_ERROR:
                        (code,) = _ERROR.unpack_from(body)
                        if code:
                            raise RequestError([_refusal(0, -code, flags, body)])
                    else:
                        entries.append(body)
            if not interrupted:  # otherwise the table changed during the dump: repeat it
                return entries


def message(kind: int, flags: int, body: bytes, sequence: int = 0) -> bytes:
    """Encode a request. body: the message after the netlink header."""
    return _HEADER.pack(_HEADER.size + len(body), kind, flags, sequence, 0) + body


def attribute(kind: int, value: bytes) -> bytes:
    """Encode an attribute, padded to a multiple of 4 bytes."""
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value + bytes(-len(value) % 4)


def _messages(data: bytes) -> Iterator[tuple[int, int, int, memoryview]]:
    view = memoryview(data)
    offset = 0
    while offset + _HEADER.size <= len(view):
        length, kind, flags, sequence, _ = _HEADER.unpack_from(view, offset)
        if length < _HEADER.size:
            raise OSError(errno.EBADMSG, "netlink: a message shorter than its header")
        yield kind, flags, sequence, view[offset + _HEADER.size : offset + length]
        offset += (length + 3) & ~3


def attributes(view: memoryview) -> dict[int, memoryview]:
    """Return the attributes at the end of a netlink message: type, without its flag bits, -> payload."""
    payloads = {}
    unpack, offset, last = _ATTRIBUTE.unpack_from, 0, len(view) - _ATTRIBUTE.size
    while offset <= last:
        length, kind = unpack(view, offset)
        if length < 4:
            raise OSError(errno.EBADMSG, "netlink: an attribute shorter than its header")
        payloads[kind & 0x3FFF] = view[offset + 4 : offset + length]
        offset += (length + 3) & ~3
    return payloads


def nested(view: memoryview, *path: int) -> memoryview | None:
    """Return the payload of a nested attribute; None if it is missing. path: the types, outermost first."""
    for kind in path:
        payload = attributes(view).get(kind)
        if payload is None:
            return None
        view = payload
    return view


def text(value: memoryview) -> str:
    """Decode the payload of a text attribute."""
    return bytes(value).rstrip(b"\0").decode(errors="replace")


class Filter(NamedTuple):
    """A filter on an interface's hook. options: the attributes of TCA_OPTIONS, by type."""

    priority: int
    kind: str
    options: Mapping[int, memoryview]


def filters(route: RouteSocket, index: int, side: int) -> list[Filter]:
    """Read the filters on one side of an interface's hook. side: TC_H_CLSACT_INGRESS or TC_H_CLSACT_EGRESS."""
    hook_filters = []
    for entry in route.dump(RTM_GETTFILTER, TC_MESSAGE.pack(0, index, 0, side, 0)):
        *_, info = TC_MESSAGE.unpack_from(entry)
        values = attributes(entry[TC_MESSAGE.size :])
        options = attributes(values[TCA_OPTIONS]) if TCA_OPTIONS in values else {}
        hook_filters.append(Filter(info >> 16, text(values[TCA_KIND]), options))
    return hook_filters


def redirected_to(actions: memoryview) -> int | None:
    """Return the index of the interface to which a filter's first action redirects; 0 if that was removed, None for another
    action."""
    parameters = nested(actions, 1, TCA_OPTIONS, TCA_MIRRED_PARMS)
    return None if parameters is None else int(MIRRED.unpack_from(parameters)[6])


def _refusal(position: int, code: int, flags: int, body: memoryview, *, is_done: bool = False) -> Refusal:
    message = _extended_message(flags, body, is_done)
    return Refusal(position, code, f"{os.strerror(code)} ({message})" if message else os.strerror(code))


def _extended_message(flags: int, body: memoryview, is_done: bool) -> str:
    """Return the message of an extended acknowledgement, or an empty string. is_done: whether it is in an NLMSG_DONE, which
    does not repeat the request."""
    if not flags & NLM_F_ACK_TLVS:
        return ""
    offset = _ERROR.size if is_done else _ERROR.size + _HEADER.size
    if not (is_done or flags & NLM_F_CAPPED):  # the refused request follows in full
        (length,) = struct.unpack_from("=I", body, _ERROR.size)
        offset = _ERROR.size + ((length + 3) & ~3)
    value = attributes(body[offset:]).get(NLMSGERR_ATTR_MSG)
    return "" if value is None else text(value)

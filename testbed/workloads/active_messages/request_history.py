"""History of a program's active messages, for checkers.

A `RequestHistory` observes the host library of a native workload and records the events of each request and reply:

    {"clock_ns": 0, "what": "begin", "n": 0, "life": 1}
    {"clock_ns": 17, "what": "request", "n": 4, "endpoint": 1, "peer": 2, "peer_endpoint": 0, "handler": 1, "bytes": 16,
     "digest": "9f3c..."}
    {"clock_ns": 29, "what": "handled", "n": 9, "endpoint": 1, "peer": 0, "peer_endpoint": 3, "life": 1, "handler": 1,
     "bytes": 16, "digest": "41a0..."}
    {"clock_ns": 29, "what": "reply", "n": 9, "endpoint": 1, "peer": 0, "peer_endpoint": 3, "life": 1, "handler": 2,
     "bytes": 4, "digest": "77b2..."}
    {"clock_ns": 40, "what": "replied", "n": 4, "endpoint": 1, "peer": 2, "peer_endpoint": 0, "handler": 2, "bytes": 4,
     "digest": "5e1d..."}
    {"clock_ns": 55, "what": "returned", "n": 5, "endpoint": 1, "peer": 2, "peer_endpoint": 0, "error": "unreachable"}
    {"clock_ns": 60, "what": "reply returned", "n": 9, "endpoint": 1, "peer": 0, "peer_endpoint": 3, "life": 1,
     "error": "unreachable"}
    {"clock_ns": 71, "what": "freed", "n": 0, "endpoint": 1}
    {"clock_ns": 90, "what": "end", "n": 0, "unhandled": [[0, 2, 1]]}

n is the sender's number of the request. endpoint is an endpoint of this node. peer and peer_endpoint are the remote
side: in "request", "replied" and "returned" the destination of the request, in all other events the request's sender.
life is a NIC's incarnation: in "begin" that of this node's NIC, otherwise that of the request's sender. A reply with
handler 0 is made by the library. bytes is the size of the arguments, four bytes each, and of the data; digest is the
digest of handler, arguments and data. "end": the program has ended, with or without an error. unhandled has, for each
endpoint, its number, and the numbers of requests, and of replies and returned messages, that arrived and were not
handled.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

from protocols.active_messages.endpoint_names import MessageContent, RequestName
from protocols.active_messages.observer import Observable
from testbed.workloads.history import EventWriter, digest

REQUEST, HANDLED, REPLY, REPLIED = "request", "handled", "reply", "replied"
RETURNED, REPLY_RETURNED, FREED, BEGIN, END = "returned", "reply returned", "freed", "begin", "end"

_PEER: Final = ("endpoint", "peer", "peer_endpoint")
_CONTENT: Final = ("handler", "bytes", "digest")
_KEYS_OF: Final[Mapping[str, tuple[str, ...]]] = {
    BEGIN: ("life",),
    REQUEST: (*_PEER, *_CONTENT),
    HANDLED: (*_PEER, "life", *_CONTENT),
    REPLY: (*_PEER, "life", *_CONTENT),
    REPLIED: (*_PEER, *_CONTENT),
    RETURNED: (*_PEER, "error"),
    REPLY_RETURNED: (*_PEER, "life", "error"),
    FREED: ("endpoint",),
    END: ("unhandled",),
}
_KINDS: Final = {"digest": (str, "text"), "error": (str, "text"), "unhandled": (list, "list")}
_NUMBER: Final = (int, "whole number")


def check_request_event(event: Mapping[str, Any]) -> None:
    """Raise ValueError if a document is not an event of a `RequestHistory`."""
    what = event.get("what")
    if not isinstance(what, str) or what not in _KEYS_OF:
        raise ValueError(f"what is {str(what)[:20]!r}, none of the events of active messages")
    for key in ("clock_ns", "n", *_KEYS_OF[what]):
        if key not in event:
            raise ValueError(f"{what!r} has no {key}")
        kind, name = _KINDS.get(key, _NUMBER)
        if type(event[key]) is not kind:
            raise ValueError(f"{key} of {what!r} is not a {name}")


class RequestHistory:
    """Observer of one program's active messages. Implements `protocols.active_messages.observer.Observer`."""

    def __init__(self, library: Observable, clock: Callable[[], int], write: EventWriter) -> None:
        """library: host library of a program that has not begun. clock: returns nanoseconds. write: called with each
        event."""
        self._library = library
        self._clock = clock
        self._write = write
        self._record(BEGIN, 0, life=library.life)
        library.observer = self

    def close(self) -> None:
        """Record the program's end, and its unhandled messages."""
        self._record(END, 0, unhandled=[list(counts) for counts in self._library.unhandled()])
        self._library.observer = None

    def request_sent(self, endpoint: int, number: int, to: tuple[int, int], content: MessageContent) -> None:
        self._record(REQUEST, number, **_peer(endpoint, to), **_content(content))

    def request_handled(self, endpoint: int, request: RequestName, content: MessageContent) -> None:
        self._record(HANDLED, request.number, **_sender(endpoint, request), **_content(content))

    def reply_sent(self, endpoint: int, request: RequestName, content: MessageContent) -> None:
        self._record(REPLY, request.number, **_sender(endpoint, request), **_content(content))

    def reply_handled(self, endpoint: int, number: int, source: tuple[int, int], content: MessageContent) -> None:
        self._record(REPLIED, number, **_peer(endpoint, source), **_content(content))

    def request_returned(self, endpoint: int, number: int, to: tuple[int, int], status: str) -> None:
        self._record(RETURNED, number, **_peer(endpoint, to), error=status)

    def reply_returned(self, endpoint: int, request: RequestName, status: str) -> None:
        self._record(REPLY_RETURNED, request.number, **_sender(endpoint, request), error=status)

    def endpoint_freed(self, endpoint: int) -> None:
        self._record(FREED, 0, endpoint=endpoint)

    def _record(self, what: str, number: int, **fields: object) -> None:
        self._write({"clock_ns": self._clock(), "what": what, "n": number, **fields})


def _peer(endpoint: int, peer: tuple[int, int]) -> Mapping[str, object]:
    return {"endpoint": endpoint, "peer": peer[0], "peer_endpoint": peer[1]}


def _sender(endpoint: int, request: RequestName) -> Mapping[str, object]:
    return {**_peer(endpoint, (request.node, request.endpoint)), "life": request.life}


def _content(content: MessageContent) -> Mapping[str, object]:
    handler, arguments, data = content
    words = struct.pack(f"!{len(arguments) + 1}I", handler, *arguments)
    return {
        "handler": handler,
        "bytes": 4 * len(arguments) + len(data),
        "digest": digest(memoryview(words + bytes(data))),
    }

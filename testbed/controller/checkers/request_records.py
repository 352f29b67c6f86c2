"""Active messages as checkers read them: each request with the calls of its handler and its ends, from the histories
written by `testbed.workloads.active_messages.request_history`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from protocols.active_messages.endpoint_names import RequestName
from testbed.runtime.journal import broken_line, read_numbered
from testbed.workloads.active_messages import request_history as events
from testbed.workloads.active_messages.request_history import check_request_event

NEVER: Final = 1 << 62
"""Time of an end that a program has not recorded: it was killed, or its history is cut off."""

Endpoint = tuple[int, int]
"""A node's rank, and its endpoint's number."""


@dataclass(slots=True)
class Message:
    """A request or reply as one side saw it. at: nanoseconds of the history's clock. place: file and line. size:
    bytes of arguments and data."""

    at: int
    place: str
    handler: int
    size: int
    digest: str


@dataclass(slots=True)
class Handling:
    """A call of a request's handler. by: the endpoint. reply: what it replied; None: nothing was recorded.
    reply_returned: when the reply came back to it, or NEVER."""

    by: Endpoint
    request: Message
    reply: Message | None = None
    reply_returned: int = NEVER


@dataclass(slots=True)
class RequestEnd:
    """An end of a request as reported to its sender. error: why it was returned; empty: it was replied to. by: the endpoint
    that replied, or the destination. reply: None where it was returned."""

    at: int
    place: str
    by: Endpoint
    error: str = ""
    reply: Message | None = None


@dataclass(slots=True)
class Request:
    """A request. sender, to: names of nodes. sent: None where only its handling or end was recorded. void_at: when its
    sender's endpoint was freed, or its program restarted or ended; NEVER: not recorded."""

    name: RequestName
    sender: str
    sent: Message | None = None
    to: str = ""
    destination: Endpoint = (-1, -1)
    handlings: list[Handling] = field(default_factory=list)
    ends: list[RequestEnd] = field(default_factory=list)
    void_at: int = NEVER

    def __str__(self) -> str:
        size, place = ("", "never sent") if self.sent is None else (f"{self.sent.size} bytes; ", self.sent.place)
        to = f" to endpoint {self.destination[1]} of {self.to}" if self.to else ""
        return f"request {self.name.number} of endpoint {self.name.endpoint} of {self.sender}{to} ({size}{place})"


@dataclass(slots=True)
class ProgramLife:
    """One life of a node's program, in nanoseconds. number: of its NIC's incarnation. ended: by the program or a
    restart. is_graceful: `unhandled` was recorded at its end: by endpoint, requests and answers."""

    number: int
    began: int
    ended: int = NEVER
    is_graceful: bool = False
    unhandled: Mapping[int, tuple[int, int]] = field(default_factory=dict)


@dataclass(slots=True)
class RequestRecords:
    """All requests of a run. names: of nodes, by rank. lives: by rank. freed: when endpoints were freed. last: the latest
    time of all histories."""

    names: Sequence[str]
    requests: dict[RequestName, Request] = field(default_factory=dict)
    lives: list[list[ProgramLife]] = field(default_factory=list)
    freed: defaultdict[Endpoint, list[int]] = field(default_factory=lambda: defaultdict(list))
    last: int = 0


def read_requests(folder: Path, names: Sequence[str]) -> RequestRecords:
    """Read a run's folder ``history``, one file for each node. names: by rank. BrokenFileError names the broken line."""
    return _records({name: read_numbered(folder / f"{name}.jsonl") for name in names}, folder)


def requests_of(recorded: Mapping[str, Iterable[Mapping[str, Any]]], folder: str = "history") -> RequestRecords:
    """Read events by node, in the order of ranks. Raises BrokenFileError for an invalid event."""
    return _records({name: enumerate(some, 1) for name, some in recorded.items()}, Path(folder))


def _records(recorded: Mapping[str, Iterable[tuple[int, Mapping[str, Any]]]], folder: Path) -> RequestRecords:
    records = RequestRecords(list(recorded))
    for rank, (name, lines) in enumerate(recorded.items()):
        _NodeReader(records, rank, folder / f"{name}.jsonl").read(lines)
    return records


class _NodeReader:
    """Reads the history of one node."""

    def __init__(self, records: RequestRecords, rank: int, file: Path) -> None:
        self._records = records
        self._rank = rank
        self._file = file
        self._lives: list[ProgramLife] = []
        self._open: dict[tuple[int, int], Request] = {}  # by endpoint and number, of the present life
        self._handling: dict[tuple[int, RequestName], Handling] = {}
        records.lives.append(self._lives)

    def read(self, lines: Iterable[tuple[int, Mapping[str, Any]]]) -> None:
        for line, event in lines:
            try:
                check_request_event(event)
            except ValueError as error:
                raise broken_line(self._file, line, error) from error
            self._records.last = max(self._records.last, event["clock_ns"])
            if not self._lives or event["what"] == events.BEGIN:
                self._begin(event)
            self._take(event, f"{self._file.parent.name}/{self._file.name}:{line}")

    def _begin(self, event: Mapping[str, Any]) -> None:
        clock = event["clock_ns"]
        if self._lives:
            self._end(clock)
        self._lives.append(ProgramLife(event.get("life", 0), clock))

    def _end(self, clock: int) -> None:
        """End the present life."""
        life = self._lives[-1]
        life.ended = min(life.ended, clock)
        for request in self._open.values():
            request.void_at = min(request.void_at, clock)
        self._open.clear()

    def _take(self, event: Mapping[str, Any], place: str) -> None:
        what, clock = event["what"], event["clock_ns"]
        if what == events.REQUEST:
            self._sent(event, place)
        elif what in (events.REPLIED, events.RETURNED):
            self._ended(event, place)
        elif what in (events.HANDLED, events.REPLY, events.REPLY_RETURNED):
            self._handled(event, place)
        elif what == events.FREED:
            self._records.freed[self._rank, event["endpoint"]].append(clock)
            for (endpoint, _), request in list(self._open.items()):
                if endpoint == event["endpoint"]:
                    request.void_at = min(request.void_at, clock)
        elif what == events.END:
            life = self._lives[-1]
            life.is_graceful = True
            life.unhandled = {endpoint: (requests, answers) for endpoint, requests, answers in event["unhandled"]}
            life.ended = clock

    def _request(self, name: RequestName) -> Request:
        names, requests = self._records.names, self._records.requests
        if name not in requests:
            sender = names[name.node] if 0 <= name.node < len(names) else f"node {name.node}"
            requests[name] = Request(name, sender)
        return requests[name]

    def _own(self, event: Mapping[str, Any]) -> RequestName:
        return RequestName(self._rank, self._lives[-1].number, event["endpoint"], event["n"])

    def _sent(self, event: Mapping[str, Any], place: str) -> None:
        request, names, peer = self._request(self._own(event)), self._records.names, event["peer"]
        request.sent = _message(event, place)
        request.to = names[peer] if 0 <= peer < len(names) else f"node {peer}"
        request.destination = peer, event["peer_endpoint"]
        self._open[event["endpoint"], event["n"]] = request

    def _ended(self, event: Mapping[str, Any], place: str) -> None:
        reply = _message(event, place) if event["what"] == events.REPLIED else None
        by = event["peer"], event["peer_endpoint"]
        end = RequestEnd(event["clock_ns"], place, by, event.get("error", ""), reply)
        self._request(self._own(event)).ends.append(end)
        self._open.pop((event["endpoint"], event["n"]), None)

    def _handled(self, event: Mapping[str, Any], place: str) -> None:
        name = RequestName(event["peer"], event["life"], event["peer_endpoint"], event["n"])
        key = event["endpoint"], name
        if event["what"] == events.HANDLED:
            handling = self._handling[key] = Handling((self._rank, event["endpoint"]), _message(event, place))
            self._request(name).handlings.append(handling)
        elif key in self._handling and event["what"] == events.REPLY:
            self._handling[key].reply = _message(event, place)
        elif key in self._handling:
            self._handling[key].reply_returned = event["clock_ns"]


def _message(event: Mapping[str, Any], place: str) -> Message:
    return Message(event["clock_ns"], place, event["handler"], event["bytes"], event["digest"])

"""Histories of active messages in memory: each request with the calls of its handler and its ends, read from files that
`testbed.workloads.active_messages.request_history` writes."""

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
"""Time of an end that was not recorded, since the program was killed or its history is truncated."""

Endpoint = tuple[int, int]
"""Rank of a node, and number of its endpoint."""


@dataclass(slots=True)
class Message:
    """A request or reply as recorded by one side. time: nanoseconds of the history's clock. location: file and line. size:
    bytes of arguments and data."""

    time: int
    location: str
    handler: int
    size: int
    digest: str


@dataclass(slots=True)
class Handling:
    """A call of a request's handler at `endpoint`. reply: None if none was recorded. reply_returned: time at which the reply
    was returned to the endpoint, or NEVER."""

    endpoint: Endpoint
    request: Message
    reply: Message | None = None
    reply_returned: int = NEVER


@dataclass(slots=True)
class RequestEnd:
    """An end of a request as reported to its sender. error: reason of the return; empty if there was a reply. endpoint:
    source of the reply, or destination of the returned request. reply: None if the request was returned."""

    time: int
    location: str
    endpoint: Endpoint
    error: str = ""
    reply: Message | None = None


@dataclass(slots=True)
class Request:
    """A request. sender, receiver: names of nodes. sent: None if only its handling or end was recorded. void_at: when the
    sender's endpoint was freed, or its program restarted or ended; NEVER if not recorded."""

    name: RequestName
    sender: str
    sent: Message | None = None
    receiver: str = ""
    destination: Endpoint = (-1, -1)
    handlings: list[Handling] = field(default_factory=list)
    ends: list[RequestEnd] = field(default_factory=list)
    void_at: int = NEVER

    def __str__(self) -> str:
        size, location = ("", "never sent") if self.sent is None else (f"{self.sent.size} bytes; ", self.sent.location)
        to = f" to endpoint {self.destination[1]} of {self.receiver}" if self.receiver else ""
        return f"request {self.name.number} of endpoint {self.name.endpoint} of {self.sender}{to} ({size}{location})"


@dataclass(slots=True)
class ProgramLife:
    """One life of a node's program. started, ended: nanoseconds; a life ends with the program or by a restart. number:
    incarnation of its NIC. is_graceful: whether `unhandled` was recorded at its end: numbers of unhandled requests and
    answers, by endpoint."""

    number: int
    started: int
    ended: int = NEVER
    is_graceful: bool = False
    unhandled: Mapping[int, tuple[int, int]] = field(default_factory=dict)


@dataclass(slots=True)
class RequestRecords:
    """All requests of a run. names: names of nodes, by rank. lives: lives by rank. freed: times at which endpoints were
    freed. last_time: last time of all histories, nanoseconds."""

    names: Sequence[str]
    requests: dict[RequestName, Request] = field(default_factory=dict)
    lives: list[list[ProgramLife]] = field(default_factory=list)
    freed: defaultdict[Endpoint, list[int]] = field(default_factory=lambda: defaultdict(list))
    last_time: int = 0


def read_requests(folder: Path, names: Sequence[str]) -> RequestRecords:
    """Read a run's folder ``history``, with one file for each node. names: by rank. Raises BrokenFileError, which names the
    line."""
    return _build_records({name: read_numbered(folder / f"{name}.jsonl") for name in names}, folder)


def requests_of(recorded: Mapping[str, Iterable[Mapping[str, Any]]], folder: str = "history") -> RequestRecords:
    """Convert events by node, in the order of ranks. Raises BrokenFileError for an invalid event."""
    return _build_records({name: enumerate(node_events, 1) for name, node_events in recorded.items()}, Path(folder))


def _build_records(recorded: Mapping[str, Iterable[tuple[int, Mapping[str, Any]]]], folder: Path) -> RequestRecords:
    records = RequestRecords(list(recorded))
    for rank, (name, lines) in enumerate(recorded.items()):
        _NodeReader(records, rank, folder / f"{name}.jsonl").read(lines)
    return records


class _NodeReader:
    """Reader of one node's history."""

    def __init__(self, records: RequestRecords, rank: int, file: Path) -> None:
        self._records = records
        self._rank = rank
        self._file = file
        self._lives: list[ProgramLife] = []
        self._open: dict[tuple[int, int], Request] = {}  # by endpoint and number, of the current life
        self._handlings: dict[tuple[int, RequestName], Handling] = {}
        records.lives.append(self._lives)

    def read(self, lines: Iterable[tuple[int, Mapping[str, Any]]]) -> None:
        for line, event in lines:
            try:
                check_request_event(event)
            except ValueError as error:
                raise broken_line(self._file, line, error) from error
            self._records.last_time = max(self._records.last_time, event["clock_ns"])
            if not self._lives or event["what"] == events.BEGIN:
                self._begin_life(event)
            self._add(event, f"{self._file.parent.name}/{self._file.name}:{line}")

    def _begin_life(self, event: Mapping[str, Any]) -> None:
        clock = event["clock_ns"]
        if self._lives:
            self._end_life(clock)
        self._lives.append(ProgramLife(event.get("life", 0), clock))

    def _end_life(self, clock: int) -> None:
        """End the current life."""
        life = self._lives[-1]
        life.ended = min(life.ended, clock)
        for request in self._open.values():
            request.void_at = min(request.void_at, clock)
        self._open.clear()

    def _add(self, event: Mapping[str, Any], location: str) -> None:
        kind, clock = event["what"], event["clock_ns"]
        if kind == events.REQUEST:
            self._add_request(event, location)
        elif kind in (events.REPLIED, events.RETURNED):
            self._add_end(event, location)
        elif kind in (events.HANDLED, events.REPLY, events.REPLY_RETURNED):
            self._add_handling(event, location)
        elif kind == events.FREED:
            self._records.freed[self._rank, event["endpoint"]].append(clock)
            for (endpoint, _), request in list(self._open.items()):
                if endpoint == event["endpoint"]:
                    request.void_at = min(request.void_at, clock)
        elif kind == events.END:
            life = self._lives[-1]
            life.is_graceful = True
            life.unhandled = {endpoint: (requests, answers) for endpoint, requests, answers in event["unhandled"]}
            life.ended = clock

    def _find_or_add_request(self, name: RequestName) -> Request:
        names, requests = self._records.names, self._records.requests
        if name not in requests:
            sender = names[name.node] if 0 <= name.node < len(names) else f"node {name.node}"
            requests[name] = Request(name, sender)
        return requests[name]

    def _own_name(self, event: Mapping[str, Any]) -> RequestName:
        return RequestName(self._rank, self._lives[-1].number, event["endpoint"], event["n"])

    def _add_request(self, event: Mapping[str, Any], location: str) -> None:
        request, names, peer = self._find_or_add_request(self._own_name(event)), self._records.names, event["peer"]
        request.sent = _build_message(event, location)
        request.receiver = names[peer] if 0 <= peer < len(names) else f"node {peer}"
        request.destination = peer, event["peer_endpoint"]
        self._open[event["endpoint"], event["n"]] = request

    def _add_end(self, event: Mapping[str, Any], location: str) -> None:
        reply = _build_message(event, location) if event["what"] == events.REPLIED else None
        endpoint = event["peer"], event["peer_endpoint"]
        end = RequestEnd(event["clock_ns"], location, endpoint, event.get("error", ""), reply)
        self._find_or_add_request(self._own_name(event)).ends.append(end)
        self._open.pop((event["endpoint"], event["n"]), None)

    def _add_handling(self, event: Mapping[str, Any], location: str) -> None:
        name = RequestName(event["peer"], event["life"], event["peer_endpoint"], event["n"])
        key = event["endpoint"], name
        if event["what"] == events.HANDLED:
            handling = self._handlings[key] = Handling((self._rank, event["endpoint"]), _build_message(event, location))
            self._find_or_add_request(name).handlings.append(handling)
        elif key in self._handlings and event["what"] == events.REPLY:
            self._handlings[key].reply = _build_message(event, location)
        elif key in self._handlings:
            self._handlings[key].reply_returned = event["clock_ns"]


def _build_message(event: Mapping[str, Any], location: str) -> Message:
    return Message(event["clock_ns"], location, event["handler"], event["bytes"], event["digest"])

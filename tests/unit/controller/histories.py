"""Hand-made histories of correct runs, for tests of checkers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from testbed.controller.checkers.check_report import Report
from testbed.controller.checkers.histories import histories_of
from testbed.controller.checkers.promises import Circumstances, check_histories

Event = dict[str, Any]
MILLISECOND, SECOND = 1_000_000, 1_000_000_000


@dataclass(frozen=True)
class Message:
    """content: digest of its bytes. any_source, any_tag: its receive uses the wildcard."""

    source: int
    sink: int
    tag: int = 0
    content: str = "00"
    size: int = 8
    any_source: bool = False
    any_tag: bool = False


class HistoryBuilder:
    """Events of each node n1, n2, ..., with a clock that advances at each event."""

    def __init__(self, nodes: int) -> None:
        self.events: dict[str, list[Event]] = {f"n{number + 1}": [] for number in range(nodes)}
        self.clock = 0
        self._counts = [0] * nodes

    def add_event(self, rank: int, what: str, **facts: Any) -> Event:
        self.clock += MILLISECOND
        event = {"clock_ns": self.clock, "what": what, **facts}
        self.events[f"n{rank + 1}"].append(event)
        return event

    def begin_send(self, rank: int, to: int, tag: int = 0, content: str = "00", size: int = 8) -> int:
        number = self._next(rank)
        self.add_event(rank, "send", n=number, peer=to, context=0, tag=tag, bytes=size, digest=content)
        return number

    def begin_receive(self, rank: int, source: int = -1, tag: int = -1, size: int = 4096) -> int:
        number = self._next(rank)
        self.add_event(rank, "receive", n=number, peer=source, context=0, tag=tag, bytes=size)
        return number

    def complete_send(self, rank: int, number: int) -> None:
        self.add_event(rank, "sent", n=number)

    def complete_receive(
        self, rank: int, number: int, source: int, tag: int = 0, content: str = "00", size: int = 8
    ) -> None:
        self.add_event(rank, "received", n=number, peer=source, context=0, tag=tag, bytes=size, digest=content)

    def fail_transfer(self, rank: int, number: int, error_class: int = 101, **envelope: int) -> None:
        facts = {"n": number, "error": "node 2 does not answer", "class": error_class, **envelope}
        self.add_event(rank, "failed", **facts)

    def report(self, circumstances: Circumstances | None = None) -> Report:
        return check_histories(histories_of(self.events), circumstances or Circumstances())

    def restart_numbering(self, rank: int) -> None:
        """Number the next transfer of a rank 1, as its restarted program does."""
        self._counts[rank] = 0

    def _next(self, rank: int) -> int:
        self._counts[rank] += 1
        return self._counts[rank]


def exchange_all(nodes: int, messages: Sequence[Message]) -> HistoryBuilder:
    """Send and receive the messages one after the other, so that a wildcard receive matches its own message."""
    history = HistoryBuilder(nodes)
    for message in messages:
        receive = history.begin_receive(
            message.sink, -1 if message.any_source else message.source, -1 if message.any_tag else message.tag
        )
        send = history.begin_send(message.source, message.sink, message.tag, message.content, message.size)
        history.complete_receive(message.sink, receive, message.source, message.tag, message.content, message.size)
        history.complete_send(message.source, send)
    return history


def positions_of(events: Mapping[str, Sequence[Event]], what: str) -> Iterator[tuple[str, int]]:
    """Yield (node, position) of each event of a kind."""
    for node, node_events in events.items():
        for index, event in enumerate(node_events):
            if event["what"] == what:
                yield node, index

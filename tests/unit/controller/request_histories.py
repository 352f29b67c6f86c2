"""Hand-made histories of active messages, for tests of checkers."""

from __future__ import annotations

from typing import Any

from testbed.controller.checkers.check_report import Report
from testbed.controller.checkers.promises import Circumstances
from testbed.controller.checkers.request_promises import check_requests
from testbed.controller.checkers.request_records import requests_of

Event = dict[str, Any]
MILLISECOND, SECOND = 1_000_000, 1_000_000_000
SENDER, RECEIVER = 0, 1
"""Ranks."""


class RequestEvents:
    """Events of two nodes, with a clock that advances at each event: n1 sends requests and n2 handles them."""

    def __init__(self) -> None:
        self.events: dict[str, list[Event]] = {"n1": [], "n2": []}
        self.clock = 0
        self.incarnations = [1, 1]
        for rank in (SENDER, RECEIVER):
            self.add_event(rank, "begin", life=1)

    def add_event(self, rank: int, what: str, n: int = 0, **facts: Any) -> None:
        self.clock += MILLISECOND
        self.events[f"n{rank + 1}"].append({"clock_ns": self.clock, "what": what, "n": n, **facts})

    def request(self, n: int, content: str = "aa", endpoint: int = 0) -> None:
        self.add_event(
            SENDER, "request", n, endpoint=0, peer=1, peer_endpoint=endpoint, handler=1, bytes=4, digest=content
        )

    def handled(self, n: int, content: str = "aa", endpoint: int = 0) -> None:
        facts = {"endpoint": endpoint, "peer": 0, "peer_endpoint": 0, "life": self.incarnations[SENDER]}
        self.add_event(RECEIVER, "handled", n, **facts, handler=1, bytes=4, digest=content)

    def reply(self, n: int, content: str = "bb") -> None:
        facts = {"endpoint": 0, "peer": 0, "peer_endpoint": 0, "life": self.incarnations[SENDER]}
        self.add_event(RECEIVER, "reply", n, **facts, handler=2, bytes=4, digest=content)

    def replied(self, n: int, content: str = "bb") -> None:
        self.add_event(SENDER, "replied", n, endpoint=0, peer=1, peer_endpoint=0, handler=2, bytes=4, digest=content)

    def returned(self, n: int, status: str = "unreachable") -> None:
        self.add_event(SENDER, "returned", n, endpoint=0, peer=1, peer_endpoint=0, error=status)

    def reply_returned(self, n: int) -> None:
        facts = {"endpoint": 0, "peer": 0, "peer_endpoint": 0, "life": self.incarnations[SENDER]}
        self.add_event(RECEIVER, "reply returned", n, **facts, error="unreachable")

    def freed(self, rank: int, endpoint: int = 0) -> None:
        self.add_event(rank, "freed", endpoint=endpoint)

    def end(self, rank: int, *unhandled: tuple[int, int, int]) -> None:
        self.add_event(rank, "end", unhandled=[list(message) for message in unhandled])

    def restart(self, rank: int) -> None:
        self.incarnations[rank] += 1
        self.add_event(rank, "begin", life=self.incarnations[rank])

    def exchange(self, n: int, content: str = "aa", reply: str = "bb") -> None:
        """Send a request, handle it and reply to it."""
        self.request(n, content)
        self.handled(n, content)
        self.reply(n, reply)
        self.replied(n, reply)

    def report(self, circumstances: Circumstances | None = None) -> Report:
        return check_requests(requests_of(self.events), circumstances)

"""A pair of SSAM's nodes with an endpoint each."""

from __future__ import annotations

from collections.abc import Coroutine

from protocols.active_messages.am_errors import Returned
from protocols.active_messages.am_interface import ActiveMessages, Token
from protocols.core.completion import Completion
from protocols.ssam.am_endpoints import Endpoint
from protocols.ssam.settings import Settings
from tests.unit.protocols.ssam_pair import Pair

TAG = 7
"""Tag of both endpoints."""
SEGMENT_SIZE = 5000
SQUARE, SQUARED, STORE, STORED = 1, 2, 3, 4
"""Handlers: of requests, and of the replies to them."""


class EndpointPair:
    """An endpoint on each node of a pair; their handlers square a word, or return the end of stored data. index: the second
    endpoint's index in the first one's translation table. received: what handlers received."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.pair = Pair(settings=settings)
        self.received: list[object] = []
        self.returned: list[Returned] = []
        self.first, self.second = (self._endpoint(number) for number in (0, 1))
        self.index = self.first.map_any(self.second.name, TAG)

    def _endpoint(self, number: int) -> Endpoint:
        library: ActiveMessages = self.pair.nodes[number].library
        endpoint = library.allocate_bundle().allocate_endpoint()
        assert isinstance(endpoint, Endpoint)
        endpoint.tag = TAG
        endpoint.segment = bytearray(SEGMENT_SIZE)
        endpoint.error_handler = self.returned.append
        endpoint.set_handler(SQUARE, lambda token, word: token.reply(SQUARED, word * word))
        endpoint.set_handler(SQUARED, lambda _, word: self.received.append(word))
        endpoint.set_handler(STORE, self._store)
        endpoint.set_handler(STORED, lambda _, data, word: self.received.append((bytes(data), word)))
        return endpoint

    def _store(self, token: Token, data: memoryview, word: int) -> None:
        self.received.append(bytes(data))
        token.reply_medium(STORED, data[-8:], word)

    def run(self, program: Coroutine[Completion[None], None, object], timeouts: int = 20) -> None:
        """Drive a program while the fibre carries cells."""
        self.pair.drive(program, timeouts)
        self.pair.settle(timeouts=40)

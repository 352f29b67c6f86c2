"""SSAM's endpoints, by AM-2's names: requests, replies, refusals, and bulk messages a cell at a time."""

from __future__ import annotations

from collections.abc import Coroutine

import pytest

from protocols.active_messages.am_errors import Returned, ReturnedError, RuleError, Status
from protocols.active_messages.am_interface import ActiveMessages, Token
from protocols.active_messages.endpoint_names import ANY, NONE, EndpointName
from protocols.atm.cell import ETHERNET, HEADER
from protocols.core.completion import Completion
from protocols.ssam.am_endpoints import Endpoint
from protocols.ssam.cells import BYTES, REPLY, REQUEST, unpack
from protocols.ssam.settings import Settings
from tests.unit.protocols.ssam_pair import Pair, kind_of

TAG = 7
SEGMENT = 5000
ASK, ANSWER, DATA, STORED = 1, 2, 3, 4


class Ends:
    """An endpoint on each node of a pair, the second of which squares and stores what the first one sends."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.pair = Pair(settings=settings)
        self.heard: list[object] = []
        self.returned: list[Returned] = []
        self.first, self.second = (self._endpoint(number) for number in (0, 1))
        self.place = self.first.map_any(self.second.name, TAG)

    def _endpoint(self, number: int) -> Endpoint:
        library: ActiveMessages = self.pair.nodes[number].library
        endpoint = library.allocate_bundle().allocate_endpoint()
        assert isinstance(endpoint, Endpoint)
        endpoint.tag = TAG
        endpoint.segment = bytearray(SEGMENT)
        endpoint.error_handler = self.returned.append
        endpoint.set_handler(ASK, lambda token, word: token.reply(ANSWER, word * word))
        endpoint.set_handler(ANSWER, lambda _, word: self.heard.append(word))
        endpoint.set_handler(DATA, self._stored)
        endpoint.set_handler(STORED, lambda _, data, word: self.heard.append((bytes(data), word)))
        return endpoint

    def _stored(self, token: Token, data: memoryview, word: int) -> None:
        self.heard.append(bytes(data))
        token.reply_medium(STORED, data[-8:], word)

    def run(self, work: Coroutine[Completion[None], None, object], time_outs: int = 20) -> None:
        """Drive a program while the fibre carries cells."""
        self.pair.drive(work, time_outs)
        self.pair.settle(time_outs=40)


def test_a_request_calls_its_handler_and_the_reply_the_requesters() -> None:
    ends = Ends()
    ends.run(ends.first.request(ends.place, ASK, 12))
    assert ends.heard == [144]
    assert not ends.returned
    assert ends.first.credits(ends.place) == Settings().window


@pytest.mark.parametrize("word_count", [9, 10])
def test_a_request_has_nine_words(word_count: int) -> None:
    ends = Ends()
    ends.second.set_handler(5, lambda _, *word_count: ends.heard.append(word_count))
    words_sent = tuple(range(word_count))
    if word_count == 9:
        ends.run(ends.first.request(ends.place, 5, *words_sent))
        assert ends.heard == [words_sent]
    else:
        with pytest.raises(ValueError, match="10 words and 0 bytes of data take 40 bytes: a message has 36"):
            ends.run(ends.first.request(ends.place, 5, *words_sent))


def test_data_in_a_single_cell_has_32_bytes_the_split_c_papers_payload() -> None:
    ends = Ends()
    assert ends.pair.nodes[0].library.medium_room(1) == 32
    ends.run(ends.first.request_medium(ends.place, DATA, bytes(range(32)), 9))
    assert ends.heard == [bytes(range(32)), (bytes(range(24, 32)), 9)]


@pytest.mark.parametrize("size", [0, 1, 20, 21, 60, 61, 4000])
@pytest.mark.parametrize(
    "settings", [{}, {"long_payload": True}, {"window": 4, "long_window": 32}, {"interrupts": True}], ids=str
)
@pytest.mark.parametrize("loses", [False, True])
def test_a_bulk_message_is_written_into_the_segment_a_cell_at_a_time(
    size: int, settings: dict[str, int], loses: bool
) -> None:
    ends, counts = Ends(Settings(**settings)), [0]

    def lose(_: bytes) -> bool:
        counts[0] += 1
        return loses and counts[0] % 7 == 3

    ends.pair.lose = lose
    data = bytes(number % 251 for number in range(size))
    ends.run(ends.first.request_bulk(ends.place, DATA, data, 17, 5), time_outs=60)
    assert ends.heard == [data, (data[-8:], 5)]
    assert ends.second.segment is not None
    assert bytes(ends.second.segment[17 : 17 + size]) == data
    assert not any(ends.second.segment[:17]), "nothing is written before it"
    assert not any(ends.second.segment[17 + size :]), "nothing is written behind it"
    assert not ends.returned


@pytest.mark.parametrize(("long_payload", "kind", "cells"), [(False, REQUEST, 101), (True, BYTES, 92)])
def test_a_longer_payload_takes_fewer_cells(long_payload: bool, kind: int, cells: int) -> None:
    """Section 3.4.4: 44 bytes in place of 40, since the cells behind the first one need no handler's address."""
    ends, cell_types = Ends(Settings(long_payload=long_payload)), list[int]()
    ends.pair.lose = lambda frame: bool(cell_types.append(kind_of(frame)))
    ends.run(ends.first.request_bulk(ends.place, DATA, bytes(4000), 0, 5))
    assert cell_types.count(kind) >= cells - 1
    assert cell_types.count(REQUEST) + cell_types.count(BYTES) == cells


def test_the_first_cell_of_a_long_message_asks_for_a_larger_window_and_its_answer_grants_it() -> None:
    """Section 3.5: the larger window holds until the long message ends."""
    ends, windows = Ends(Settings(window=2, long_window=16)), list[int]()
    connection = ends.pair.nodes[0].library._connection(1)

    def is_lost(_: bytes) -> bool:
        windows.append(connection.window)
        return False

    ends.pair.lose = is_lost
    ends.run(ends.first.request_bulk(ends.place, DATA, bytes(2000), 0, 5))
    assert (windows[0], max(windows), connection.window) == (2, 16, 2)
    windows.clear()
    ends.run(ends.first.request_bulk(ends.place, DATA, bytes(60), 0, 5))
    assert set(windows) == {2}, "a message that fits into the window asks for none"


@pytest.mark.parametrize(
    ("spoil", "status"),
    [
        (lambda ends: setattr(ends.second, "tag", TAG + 1), Status.BAD_TAG),
        (lambda ends: setattr(ends.second, "tag", NONE), Status.BAD_TAG),
        (lambda ends: ends.second.free(), Status.BAD_ENDPOINT),
        (lambda ends: ends.second.set_handler(DATA, None), Status.BAD_HANDLER),
        (lambda ends: setattr(ends.second, "segment", None), Status.BAD_SEGMENT),
        (lambda ends: setattr(ends.second, "segment", bytearray(1999)), Status.BAD_SEGMENT),
    ],
)
@pytest.mark.parametrize("loses", [False, True])
def test_a_message_that_is_not_accepted_is_returned_with_the_reason(spoil, status: Status, loses: bool) -> None:  # type: ignore[no-untyped-def]
    ends, counts = Ends(), [0]

    def lose(_: bytes) -> bool:
        counts[0] += 1
        return loses and counts[0] % 5 == 2

    ends.pair.lose = lose
    spoil(ends)
    ends.run(ends.first.request_bulk(ends.place, DATA, bytes(2000), 0, 5), time_outs=60)
    assert [
        (returned_message.status, returned_message.handler, returned_message.arguments)
        for returned_message in ends.returned
    ] == [(status, DATA, (5,))]
    assert not ends.heard
    assert ends.first.credits(ends.place) == Settings().window


def test_an_endpoint_with_the_tag_any_accepts_every_tag() -> None:
    ends = Ends()
    ends.second.tag = ANY
    ends.run(ends.first.request(ends.first.map_any(ends.second.name, 99), ASK, 3))
    assert ends.heard == [9]


def test_a_request_to_a_node_that_has_restarted_is_returned_as_unreachable_in_the_middle_of_a_bulk_message() -> None:
    ends = Ends(Settings(window=4))
    work = ends.first.request_bulk(ends.place, DATA, bytes(4000), 0, 5)
    ends.pair.start(work, rounds=6)
    ends.pair.restart(1)
    ends.run(work)
    assert [returned_message.status for returned_message in ends.returned] == [Status.UNREACHABLE]
    assert ends.first.credits(ends.place) == 4


def test_an_abandoned_request_is_returned_once_and_a_late_reply_dropped() -> None:
    ends = Ends()
    ends.pair.lose = lambda frame: kind_of(frame) == REPLY
    ends.run(ends.first.request(ends.place, ASK, 3))
    assert ends.first.abandon(ends.place) == 1
    assert ends.first.abandon(ends.place) == 0
    ends.pair.lose = lambda _: False
    ends.pair.settle(time_outs=8)
    assert [returned_message.status for returned_message in ends.returned] == [Status.ABANDONED]
    assert not ends.heard


def test_handlers_may_send_nothing_but_one_reply() -> None:
    ends, errors = Ends(), list[str]()

    def reply_twice(token: Token, word: int) -> None:
        for attempt in (
            lambda: ends.second.request(0, ASK, 1).send(None),
            lambda: ends.second.request_bulk(0, ASK, b"1", 0).send(None),
            lambda: ends.second.poll().send(None),
        ):
            with pytest.raises(RuleError) as caught:
                attempt()
            errors.append(str(caught.value))
        token.reply(ANSWER, word)
        with pytest.raises(RuleError, match="a handler replies once"):
            token.reply(ANSWER, word)
        tokens.append(token)

    def of_reply(token: Token, _: int) -> None:
        with pytest.raises(RuleError, match="a reply's handler: it may send nothing"):
            token.reply(ANSWER, 1)

    tokens: list[Token] = []
    ends.second.map(0, ends.first.name, TAG)
    ends.second.set_handler(ASK, reply_twice)
    ends.first.set_handler(ANSWER, of_reply)
    ends.run(ends.first.request(ends.place, ASK, 1))
    assert len(errors) == 3
    with pytest.raises(RuleError, match="the handler has ended"):
        tokens[0].reply(ANSWER, 1)


def test_a_handlers_exception_passes_through_the_poll_and_its_message_counts_as_handled() -> None:
    ends = Ends()
    calls = []

    def fails(_: Token, word: int) -> None:
        calls.append(word)
        if word == 1:
            raise ZeroDivisionError

    ends.second.set_handler(ASK, fails)
    ends.run(ends.first.request(ends.place, ASK, 0))
    for word in (1, 2):
        with pytest.raises(StopIteration):
            ends.first.request(ends.place, ASK, word).send(None)
    with pytest.raises(ZeroDivisionError):
        ends.pair.settle()
    ends.pair.settle(time_outs=6)
    assert calls == [0, 1, 2]
    assert ends.first.credits(ends.place) == Settings().window


def test_a_message_without_an_error_handler_to_return_it_to_raises() -> None:
    ends = Ends()
    ends.first.error_handler = None
    with pytest.raises(ReturnedError, match="bad handler"):
        ends.run(ends.first.request(ends.place, 99))


def test_unhandled_messages_of_a_program_are_counted_by_endpoint() -> None:
    ends = Ends()
    ends.run(ends.first.request(ends.place, ASK, 1))
    with pytest.raises(StopIteration):
        ends.first.request(ends.place, ASK, 2).send(None)
    for frame in ends.pair.nodes[0].outgoing:
        ends.pair.nodes[1].device.receive(0, frame)
    assert ends.pair.nodes[1].library.unhandled() == [(0, 1, 0)]


def test_a_node_whose_program_has_ended_answers_again_and_handles_nothing_new() -> None:
    ends = Ends()
    ends.pair.lose = lambda frame: kind_of(frame) == REPLY
    ends.run(ends.first.request(ends.place, ASK, 5))
    assert not ends.heard
    ends.pair.nodes[1].library.program_ended()
    ends.pair.lose = lambda _: False
    with pytest.raises(StopIteration):
        ends.first.request(ends.place, ASK, 6).send(None)
    ends.pair.settle(time_outs=8)
    assert ends.heard == [25]


@pytest.mark.parametrize("data", [b"", b"123", b"\0\0\0\1", bytes(8), bytes(11)])
@pytest.mark.parametrize("form", range(4))
@pytest.mark.parametrize("word_count", [0, 7, 15])
def test_a_request_of_another_format_is_refused_or_counted_and_changes_nothing(
    form: int, word_count: int, data: bytes
) -> None:
    ends = Ends()
    ends.run(ends.first.request(ends.place, ASK, 2))
    assert ends.pair.nodes[0].library.try_request(1, form << 30 | word_count << 26 | DATA, data)
    ends.pair.settle(time_outs=3)
    ends.run(ends.first.request(ends.place, ASK, 3))
    assert ends.heard == [4, 9]


def test_bad_input_is_refused_and_nothing_is_sent() -> None:
    ends = Ends()
    for work, error in (
        (ends.first.request(ends.place, 0), "handler 0: 1 to 255"),
        (ends.first.request(ends.place, ASK, -1), "integers from 0 to"),
        (ends.first.request(5, ASK), "index 5 of the translation table is empty"),
        (ends.first.request_bulk(ends.place, ASK, b"1", -1), "1 bytes from -1 on"),
        (ends.first.request_bulk(ends.place, ASK, b"1", 0, 1, 2, 3, 4, 5), "5 words: a bulk message has 4 at most"),
    ):
        with pytest.raises((ValueError, LookupError), match=error):
            work.send(None)
    for name, error in ((EndpointName(3, 0), "node must be 0 to 2, got 3"), (EndpointName(0, 64), "got 64")):
        with pytest.raises(ValueError, match=error):
            ends.first.map_any(name, TAG)
    with pytest.raises(ValueError, match="must be writable"):
        ends.first.segment = memoryview(b"1")
    assert not ends.pair.nodes[0].outgoing
    assert unpack(bytes(48)) is None
    assert ETHERNET + HEADER == 19


@pytest.mark.parametrize("settings", [{"window": 8, "long_window": 8}, {"window": 8, "long_window": 33}], ids=str)
def test_a_larger_window_is_larger_and_has_slots(settings: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"long_window of \d+: above window \(8\), and 32 at most; 0: none"):
        Settings(**settings)

"""SSAM's endpoints, by AM-II's interface: requests, replies, returned messages, and bulk messages sent cell by cell."""

from __future__ import annotations

from array import array
from itertools import count

import pytest

from protocols.active_messages.am_errors import ReturnedError, RuleError, Status
from protocols.active_messages.am_interface import Token
from protocols.active_messages.endpoint_names import ANY, NONE, EndpointName
from protocols.atm.cell import ETHERNET, HEADER
from protocols.ssam.cells import BYTES, REPLY, REQUEST, unpack
from protocols.ssam.settings import Settings
from tests.unit.protocols.ssam_endpoints import SQUARE, SQUARED, STORE, TAG, EndpointPair
from tests.unit.protocols.ssam_pair import kind_of


def test_a_request_runs_its_handler_and_the_reply_the_requesters() -> None:
    ends = EndpointPair()
    ends.run(ends.first.request(ends.index, SQUARE, 12))
    assert ends.received == [144]
    assert not ends.returned
    assert ends.first.credits(ends.index) == Settings().window


@pytest.mark.parametrize("word_count", [9, 10])
def test_a_request_has_at_most_nine_words(word_count: int) -> None:
    ends = EndpointPair()
    ends.second.set_handler(5, lambda _, *words: ends.received.append(words))
    words = tuple(range(word_count))
    if word_count == 9:
        ends.run(ends.first.request(ends.index, 5, *words))
        assert ends.received == [words]
    else:
        with pytest.raises(ValueError, match="10 words and 0 bytes of data take 40 bytes: a message has 36"):
            ends.run(ends.first.request(ends.index, 5, *words))


def test_data_in_a_single_cell_has_32_bytes_as_in_the_split_c_paper() -> None:
    ends = EndpointPair()
    assert ends.pair.nodes[0].library.medium_room(1) == 32
    ends.run(ends.first.request_medium(ends.index, STORE, bytes(range(32)), 9))
    assert ends.received == [bytes(range(32)), (bytes(range(24, 32)), 9)]


def test_data_of_items_of_several_bytes_is_sent_completely() -> None:
    ends, words = EndpointPair(), array("I", range(50))
    ends.run(ends.first.request_bulk(ends.index, STORE, memoryview(words), 0, 5), timeouts=60)
    ends.run(ends.first.request_medium(ends.index, STORE, memoryview(words)[:8], 5))
    ends.run(ends.second.poll())
    assert [data for data in ends.received if isinstance(data, bytes)] == [words.tobytes(), words[:8].tobytes()]


@pytest.mark.parametrize("size", [0, 1, 20, 21, 60, 61, 4000])
@pytest.mark.parametrize(
    "settings", [{}, {"long_payload": True}, {"window": 4, "long_window": 32}, {"interrupts": True}], ids=str
)
@pytest.mark.parametrize("loses", [False, True])
def test_a_bulk_message_is_written_into_the_segment_a_cell_at_a_time(
    size: int, settings: dict[str, int], loses: bool
) -> None:
    ends, numbers = EndpointPair(Settings(**settings)), count(1)
    ends.pair.is_lost = lambda _: loses and next(numbers) % 7 == 3
    data = bytes(number % 251 for number in range(size))
    ends.run(ends.first.request_bulk(ends.index, STORE, data, 17, 5), timeouts=60)
    assert ends.received == [data, (data[-8:], 5)]
    assert ends.second.segment is not None
    assert bytes(ends.second.segment[17 : 17 + size]) == data
    assert not any(ends.second.segment[:17]), "nothing is written before it"
    assert not any(ends.second.segment[17 + size :]), "nothing is written after it"
    assert not ends.returned


@pytest.mark.parametrize(("long_payload", "kind", "cells"), [(False, REQUEST, 101), (True, BYTES, 92)])
def test_a_longer_payload_takes_fewer_cells(long_payload: bool, kind: int, cells: int) -> None:
    """Section 3.4.4: 44 bytes in place of 40, since cells after the first one need no handler's address."""
    ends, kinds = EndpointPair(Settings(long_payload=long_payload)), list[int]()
    ends.pair.is_lost = lambda frame: bool(kinds.append(kind_of(frame)))
    ends.run(ends.first.request_bulk(ends.index, STORE, bytes(4000), 0, 5))
    assert kinds.count(kind) >= cells - 1
    assert kinds.count(REQUEST) + kinds.count(BYTES) == cells


def test_the_first_cell_of_a_long_message_requests_a_larger_window_and_its_answer_grants_it() -> None:
    """Section 3.5: the larger window holds until the long message ends."""
    ends, windows = EndpointPair(Settings(window=2, long_window=16)), list[int]()
    connection = ends.pair.nodes[0].library._connection(1)

    def record_window(_: bytes) -> bool:
        windows.append(connection.window)
        return False

    ends.pair.is_lost = record_window
    ends.run(ends.first.request_bulk(ends.index, STORE, bytes(2000), 0, 5))
    assert (windows[0], max(windows), connection.window) == (2, 16, 2)
    windows.clear()
    ends.run(ends.first.request_bulk(ends.index, STORE, bytes(60), 0, 5))
    assert set(windows) == {2}, "a message that fits into the window requests none"


@pytest.mark.parametrize(
    ("misconfigure", "status"),
    [
        (lambda ends: setattr(ends.second, "tag", TAG + 1), Status.BAD_TAG),
        (lambda ends: setattr(ends.second, "tag", NONE), Status.BAD_TAG),
        (lambda ends: ends.second.free(), Status.BAD_ENDPOINT),
        (lambda ends: ends.second.set_handler(STORE, None), Status.BAD_HANDLER),
        (lambda ends: setattr(ends.second, "segment", None), Status.BAD_SEGMENT),
        (lambda ends: setattr(ends.second, "segment", bytearray(1999)), Status.BAD_SEGMENT),
    ],
    ids=["other tag", "no tag", "freed endpoint", "no handler", "no segment", "short segment"],
)
@pytest.mark.parametrize("loses", [False, True])
def test_a_message_that_is_not_accepted_is_returned_with_the_reason(misconfigure, status: Status, loses: bool) -> None:  # type: ignore[no-untyped-def]
    ends, numbers = EndpointPair(), count(1)
    ends.pair.is_lost = lambda _: loses and next(numbers) % 5 == 2
    misconfigure(ends)
    ends.run(ends.first.request_bulk(ends.index, STORE, bytes(2000), 0, 5), timeouts=60)
    assert [(message.status, message.handler, message.arguments) for message in ends.returned] == [
        (status, STORE, (5,))
    ]
    assert not ends.received
    assert ends.first.credits(ends.index) == Settings().window


def test_an_endpoint_with_the_tag_any_accepts_every_tag() -> None:
    ends = EndpointPair()
    ends.second.tag = ANY
    ends.run(ends.first.request(ends.first.map_any(ends.second.name, 99), SQUARE, 3))
    assert ends.received == [9]


def test_a_request_to_a_node_that_has_restarted_is_returned_as_unreachable_during_a_bulk_message() -> None:
    ends = EndpointPair(Settings(window=4))
    sending = ends.first.request_bulk(ends.index, STORE, bytes(4000), 0, 5)
    ends.pair.start(sending, rounds=6)
    ends.pair.restart(1)
    ends.run(sending)
    assert [message.status for message in ends.returned] == [Status.UNREACHABLE]
    assert ends.first.credits(ends.index) == 4


def test_an_abandoned_request_is_returned_once_and_a_late_reply_dropped() -> None:
    ends = EndpointPair()
    ends.pair.is_lost = lambda frame: kind_of(frame) == REPLY
    ends.run(ends.first.request(ends.index, SQUARE, 3))
    assert ends.first.abandon(ends.index) == 1
    assert ends.first.abandon(ends.index) == 0
    ends.pair.is_lost = lambda _: False
    ends.pair.settle(timeouts=8)
    assert [message.status for message in ends.returned] == [Status.ABANDONED]
    assert not ends.received


def test_a_requests_handler_may_send_one_reply_and_nothing_else() -> None:
    ends, errors = EndpointPair(), list[str]()

    def reply_twice(token: Token, word: int) -> None:
        for attempt in (
            lambda: ends.second.request(0, SQUARE, 1).send(None),
            lambda: ends.second.request_bulk(0, SQUARE, b"1", 0).send(None),
            lambda: ends.second.poll().send(None),
        ):
            with pytest.raises(RuleError) as caught:
                attempt()
            errors.append(str(caught.value))
        token.reply(SQUARED, word)
        with pytest.raises(RuleError, match="a handler may reply only once"):
            token.reply(SQUARED, word)
        tokens.append(token)

    def reply_to_a_reply(token: Token, _: int) -> None:
        with pytest.raises(RuleError, match="a reply's handler may send nothing"):
            token.reply(SQUARED, 1)

    tokens: list[Token] = []
    ends.second.map(0, ends.first.name, TAG)
    ends.second.set_handler(SQUARE, reply_twice)
    ends.first.set_handler(SQUARED, reply_to_a_reply)
    ends.run(ends.first.request(ends.index, SQUARE, 1))
    assert len(errors) == 3
    with pytest.raises(RuleError, match="the handler has ended"):
        tokens[0].reply(SQUARED, 1)


def test_a_handlers_exception_passes_through_the_poll_and_its_message_counts_as_handled() -> None:
    ends = EndpointPair()
    calls = []

    def fail_once(_: Token, word: int) -> None:
        calls.append(word)
        if word == 1:
            raise ZeroDivisionError

    ends.second.set_handler(SQUARE, fail_once)
    ends.run(ends.first.request(ends.index, SQUARE, 0))
    for word in (1, 2):
        with pytest.raises(StopIteration):
            ends.first.request(ends.index, SQUARE, word).send(None)
    with pytest.raises(ZeroDivisionError):
        ends.pair.settle()
    ends.pair.settle(timeouts=6)
    assert calls == [0, 1, 2]
    assert ends.first.credits(ends.index) == Settings().window


def test_a_returned_message_raises_if_there_is_no_error_handler() -> None:
    ends = EndpointPair()
    ends.first.error_handler = None
    with pytest.raises(ReturnedError, match="bad handler"):
        ends.run(ends.first.request(ends.index, 99))


def test_unhandled_messages_of_a_program_are_counted_by_endpoint() -> None:
    ends = EndpointPair()
    ends.run(ends.first.request(ends.index, SQUARE, 1))
    with pytest.raises(StopIteration):
        ends.first.request(ends.index, SQUARE, 2).send(None)
    for frame in ends.pair.nodes[0].outgoing:
        ends.pair.nodes[1].device.receive(0, frame)
    assert ends.pair.nodes[1].library.unhandled() == [(0, 1, 0)]


def test_a_node_whose_program_has_ended_repeats_answers_and_handles_no_new_request() -> None:
    ends = EndpointPair()
    ends.pair.is_lost = lambda frame: kind_of(frame) == REPLY
    ends.run(ends.first.request(ends.index, SQUARE, 5))
    assert not ends.received
    ends.pair.nodes[1].library.program_ended()
    ends.pair.is_lost = lambda _: False
    with pytest.raises(StopIteration):
        ends.first.request(ends.index, SQUARE, 6).send(None)
    ends.pair.settle(timeouts=8)
    assert ends.received == [25]


@pytest.mark.parametrize("data", [b"", b"123", b"\0\0\0\1", bytes(8), bytes(11)])
@pytest.mark.parametrize("form", range(4))
@pytest.mark.parametrize("word_count", [0, 7, 15])
def test_an_invalid_request_is_rejected_or_counted_and_changes_nothing(form: int, word_count: int, data: bytes) -> None:
    ends = EndpointPair()
    ends.run(ends.first.request(ends.index, SQUARE, 2))
    assert ends.pair.nodes[0].library.try_request(1, form << 30 | word_count << 26 | STORE, data)
    ends.pair.settle(timeouts=3)
    ends.run(ends.first.request(ends.index, SQUARE, 3))
    assert ends.received == [4, 9]


def test_invalid_arguments_are_rejected_and_nothing_is_sent() -> None:
    ends = EndpointPair()
    for program, error in (
        (ends.first.request(ends.index, 0), "handler must be 1 to 255, got 0"),
        (ends.first.request(ends.index, SQUARE, -1), "integers from 0 to"),
        (ends.first.request(5, SQUARE), "index 5 of the translation table is empty"),
        (ends.first.request_bulk(ends.index, SQUARE, b"1", -1), "1 bytes at offset -1"),
        (ends.first.request_bulk(ends.index, SQUARE, b"1", 0, 1, 2, 3, 4, 5), "5 words: a bulk message has 4 at most"),
    ):
        with pytest.raises((ValueError, LookupError), match=error):
            program.send(None)
    for name, error in ((EndpointName(3, 0), "node must be 0 to 2, got 3"), (EndpointName(0, 64), "got 64")):
        with pytest.raises(ValueError, match=error):
            ends.first.map_any(name, TAG)
    with pytest.raises(ValueError, match="must be writable"):
        ends.first.segment = memoryview(b"1")
    assert not ends.pair.nodes[0].outgoing
    assert unpack(bytes(48)) is None
    assert ETHERNET + HEADER == 19


@pytest.mark.parametrize("settings", [{"window": 8, "long_window": 8}, {"window": 8, "long_window": 33}], ids=str)
def test_a_larger_window_must_exceed_the_window_and_have_slots(settings: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"long_window = \d+: above window \(8\) and at most 32, or 0 \(none\)"):
        Settings(**settings)

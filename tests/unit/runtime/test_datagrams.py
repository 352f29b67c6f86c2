"""Messages as datagrams are reassembled in any order, and never when a fragment is lost."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.runtime.sockets.datagrams import HEADER, MAX, MAX_INCOMPLETE, MAX_MESSAGE, Assembly, Message, split


def datagrams(context: int, tag: int, number: int, content: bytes) -> list[memoryview]:
    return [
        memoryview(head + bytes(piece)) for head, piece in reversed(split(context, tag, number, memoryview(content)))
    ]


def filled(length: int) -> bytes:
    return (bytes(range(251)) * (length // 251 + 1))[:length]


@pytest.mark.parametrize("length", [0, 1, MAX])
def test_a_message_that_fits_is_one_datagram_of_what_udp_can_carry(length: int) -> None:
    (datagram,) = datagrams(1, 7, 1, filled(length))
    assert len(datagram) <= 65_507
    assert Assembly().take(0, datagram) == Message(1, 7, memoryview(filled(length)))


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(MAX + 1, 4 * MAX), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_longer_ones_are_whole_once_in_any_order(lengths: list[int], chance: Random) -> None:
    sent = [
        (number, piece)
        for number, length in enumerate(lengths)
        for piece in datagrams(0, number, number, filled(length))
    ]
    chance.shuffle(sent)
    assembly = Assembly()
    whole = [message for number, piece in sent if (message := assembly.take(number % 2, piece)) is not None]
    assert sorted((message.tag, len(message.content)) for message in whole) == list(enumerate(lengths))
    assert all(message.content == filled(len(message.content)) for message in whole)
    assert assembly.incomplete == 0


def test_a_message_with_a_lost_datagram_never_comes_and_is_counted() -> None:
    assembly = Assembly()
    pieces = datagrams(0, 7, 1, filled(3 * MAX))
    assert [assembly.take(0, piece) for piece in (pieces[0], pieces[2], pieces[2], pieces[0])] == [None] * 4
    assert assembly.incomplete == 1
    assert assembly.take(0, pieces[1]) is not None
    assert assembly.incomplete == 0


def test_of_many_incomplete_ones_the_oldest_is_given_up() -> None:
    assembly = Assembly()
    first, second = datagrams(0, 7, 0, filled(MAX + 1))
    assembly.take(0, first)
    for number in range(1, MAX_INCOMPLETE + 1):
        assembly.take(0, datagrams(0, 7, number, filled(MAX + 1))[0])
    assert assembly.given_up == 1
    assert assembly.take(0, second) is None
    assert assembly.incomplete == MAX_INCOMPLETE + 2


@pytest.mark.parametrize(
    "datagram",
    [
        b"", b"short", HEADER.pack(0, 0, 1, 5, 0), HEADER.pack(0, 0, 1, MAX_MESSAGE + 1, 0) + bytes(MAX),
        HEADER.pack(0, 0, 1, MAX + 1, 1) + bytes(MAX), HEADER.pack(0, 0, 1, 2 * MAX, 2 * MAX) + bytes(1),
        HEADER.pack(0, 0, 1, 0, 5),
    ],
)  # fmt: skip
def test_what_is_no_datagram_of_ours_is_refused_and_takes_no_memory(datagram: bytes) -> None:
    assembly = Assembly()
    with pytest.raises(ValueError, match=r"shorter than its header|no fragment"):
        assembly.take(0, memoryview(datagram))
    assert assembly.incomplete == 0

"""Messages as datagrams are reassembled in any order, and never when a fragment is lost."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.runtime.sockets.datagrams import (
    HEADER,
    MAX_FRAGMENT,
    MAX_INCOMPLETE,
    MAX_MESSAGE_SIZE,
    Assembly,
    Message,
    split,
)


def datagrams(context: int, tag: int, number: int, content: bytes) -> list[memoryview]:
    return [
        memoryview(header + bytes(fragment))
        for header, fragment in reversed(split(context, tag, number, memoryview(content)))
    ]


def content_of(length: int) -> bytes:
    return (bytes(range(251)) * (length // 251 + 1))[:length]


@pytest.mark.parametrize("length", [0, 1, MAX_FRAGMENT])
def test_a_short_message_is_one_datagram_within_the_limit_of_udp(length: int) -> None:
    (datagram,) = datagrams(1, 7, 1, content_of(length))
    assert len(datagram) <= 65_507
    assert Assembly().add(0, datagram) == Message(1, 7, memoryview(content_of(length)))


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.integers(MAX_FRAGMENT + 1, 4 * MAX_FRAGMENT), min_size=1, max_size=4),
    st.randoms(use_true_random=False),
)
def test_longer_messages_are_reassembled_once_in_any_order(lengths: list[int], rng: Random) -> None:
    numbered_fragments = [
        (number, fragment)
        for number, length in enumerate(lengths)
        for fragment in datagrams(0, number, number, content_of(length))
    ]
    rng.shuffle(numbered_fragments)
    assembly = Assembly()
    messages = [
        message
        for number, fragment in numbered_fragments
        if (message := assembly.add(number % 2, fragment)) is not None
    ]
    assert sorted((message.tag, len(message.content)) for message in messages) == list(enumerate(lengths))
    assert all(message.content == content_of(len(message.content)) for message in messages)
    assert assembly.incomplete == 0


def test_a_message_with_a_lost_datagram_is_not_delivered_and_is_counted() -> None:
    assembly = Assembly()
    fragments = datagrams(0, 7, 1, content_of(3 * MAX_FRAGMENT))
    assert [assembly.add(0, fragment) for fragment in (fragments[0], fragments[2], fragments[2], fragments[0])] == [
        None
    ] * 4
    assert assembly.incomplete == 1
    assert assembly.add(0, fragments[1]) is not None
    assert assembly.incomplete == 0


def test_the_oldest_incomplete_message_beyond_the_maximum_is_abandoned() -> None:
    assembly = Assembly()
    first, second = datagrams(0, 7, 0, content_of(MAX_FRAGMENT + 1))
    assembly.add(0, first)
    for number in range(1, MAX_INCOMPLETE + 1):
        assembly.add(0, datagrams(0, 7, number, content_of(MAX_FRAGMENT + 1))[0])
    assert assembly.abandoned == 1
    assert assembly.add(0, second) is None
    assert assembly.incomplete == MAX_INCOMPLETE + 2


@pytest.mark.parametrize(
    "datagram",
    [
        b"", b"short", HEADER.pack(0, 0, 1, 5, 0), HEADER.pack(0, 0, 1, MAX_MESSAGE_SIZE + 1, 0) + bytes(MAX_FRAGMENT),
        HEADER.pack(0, 0, 1, MAX_FRAGMENT + 1, 1) + bytes(MAX_FRAGMENT),
        HEADER.pack(0, 0, 1, 2 * MAX_FRAGMENT, 2 * MAX_FRAGMENT) + bytes(1), HEADER.pack(0, 0, 1, 0, 5),
    ],
)  # fmt: skip
def test_an_invalid_datagram_is_rejected_and_allocates_nothing(datagram: bytes) -> None:
    assembly = Assembly()
    with pytest.raises(ValueError, match=r"shorter than its header|no fragment"):
        assembly.add(0, memoryview(datagram))
    assert assembly.incomplete == 0

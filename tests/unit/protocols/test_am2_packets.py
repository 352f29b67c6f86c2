"""AM-II's packets as its transport builds them: equal to the codec's, in Myrinet's envelope."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.am2 import codec, page
from protocols.am2.transport import (
    MESSAGE_HEADER_SIZE,
    build_answer,
    build_message,
    frame_prefix,
    unpack_answer,
    unpack_body,
)
from protocols.core.malformed import MalformedError
from protocols.myrinet.envelope import add_envelope, remove_envelope

DESTINATION, SOURCE = b"\2\0\0\0\0\1", b"\2\0\0\0\0\2"
BYTE, SHORT, WORD = st.integers(0, 255), st.integers(0, 0xFFFF), st.integers(0, 0xFFFF_FFFF)
IDENTITY = st.tuples(SHORT, SHORT, WORD, WORD)
CHANNEL_FIELDS = st.tuples(BYTE, BYTE, SHORT, WORD)
ROUTE = st.binary(max_size=5).map(lambda raw: bytes(byte | 0x80 for byte in raw))


@given(
    IDENTITY, CHANNEL_FIELDS, ROUTE, st.tuples(BYTE, SHORT, SHORT, st.integers(0, (1 << 64) - 1), WORD, WORD, WORD),
    st.lists(WORD, max_size=16), st.integers(0, 2), st.booleans(), st.binary(max_size=50),
)  # fmt: skip
def test_a_message_built_from_a_page_entry_equals_the_codecs(
    identity: tuple[int, int, int, int],
    channel_fields: tuple[int, int, int, int],
    route: bytes,
    fields: tuple[int, int, int, int, int, int, int],
    arguments: list[int],
    form: int,
    is_reply: bool,
    data: bytes,
) -> None:
    handler, origin, endpoint, tag, message, offset, total = fields
    entries = memoryview(bytearray(page.SIZE))
    slot_offset, count = page.SLOT_OFFSETS[21], len(arguments)
    page.WRITE_ENTRY[count](
        entries, slot_offset, page.READY, 0, 3, len(data), 0, 0, form, is_reply, handler, count, origin, endpoint, tag,
        message, offset, total, *arguments,
    )  # fmt: skip
    body = bytes(entries[slot_offset + page.MESSAGE_OFFSET : slot_offset + page.ARGUMENTS_OFFSET + 4 * count]) + data
    frame = build_message(
        frame_prefix(DESTINATION, SOURCE, codec.KIND_MESSAGE, 0, *identity), *channel_fields, route, body
    )
    payload = b"".join(word.to_bytes(4, "big") for word in arguments) + data
    packed = codec.pack_message(
        DESTINATION, SOURCE, 0, *identity, *channel_fields, form, int(is_reply), handler, count, origin, endpoint, tag,
        message, offset, total, payload,
    )  # fmt: skip
    assert frame == add_envelope(packed, route)
    assert unpack_body(packed) == (*channel_fields, body)
    assert page.READ_ARGUMENTS[count](entries, slot_offset + page.ARGUMENTS_OFFSET) == tuple(arguments)
    assert len(body) == MESSAGE_HEADER_SIZE + 4 * count + len(data)


@given(IDENTITY, CHANNEL_FIELDS, st.integers(0, 7), ROUTE)
def test_a_built_answer_equals_the_codecs(
    identity: tuple[int, int, int, int], channel_fields: tuple[int, int, int, int], reason: int, route: bytes
) -> None:
    kind = codec.KIND_NACK if reason else codec.KIND_ACK
    frame = build_answer(frame_prefix(DESTINATION, SOURCE, kind, reason, *identity), *channel_fields, route)
    packed = codec.pack_answer(DESTINATION, SOURCE, kind, reason, *identity, *channel_fields)
    assert frame == add_envelope(packed, route)
    if not route:
        assert unpack_answer(remove_envelope(frame)) == unpack_answer(frame) == channel_fields


@given(st.integers(0, 8 * 60 - 1), st.booleans())
def test_a_flipped_bit_is_detected(bit: int, is_answer: bool) -> None:
    prefix = frame_prefix(DESTINATION, SOURCE, codec.KIND_ACK if is_answer else codec.KIND_MESSAGE, 0, 1, 2, 3, 4)
    frame = (
        build_answer(prefix, 1, 2, 3, 4, b"")
        if is_answer
        else build_message(prefix, 1, 2, 3, 4, b"", bytes(MESSAGE_HEADER_SIZE + 8))
    )
    damaged = bytearray(frame)
    position = bit // 8 % (len(frame) - 1)
    damaged[position] ^= 1 << bit % 8
    with pytest.raises(MalformedError):
        (unpack_answer if is_answer else unpack_body)(bytes(damaged))


def test_truncated_frames_are_malformed() -> None:
    prefix = frame_prefix(DESTINATION, SOURCE, codec.KIND_MESSAGE, 0, 1, 2, 3, 4)
    frame = build_message(prefix, 1, 2, 3, 4, b"", bytes(MESSAGE_HEADER_SIZE + 8))
    for end in range(30, len(frame) - 1):
        with pytest.raises(MalformedError):
            unpack_body(frame[:end])
    for end in range(30, codec.ANSWER_SIZE):
        with pytest.raises(MalformedError):
            unpack_answer(build_answer(prefix, 1, 2, 3, 4, b"")[:end])

"""EMP's frames byte by byte, and malformed frames."""

from __future__ import annotations

import struct
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.l2 import Ether
from scapy.packet import Padding

from protocols.core.malformed import MalformedError
from protocols.emp import codec
from protocols.emp.frames import EMP, EMPMessage
from testbed.fabric.direction import LinkDirection
from testbed.fates.headers import standard_fields
from testbed.fates.rules import RuleSet
from testbed.fates.stage import NO_IMPAIRMENT, FateOptions

A, B = bytes.fromhex("020000000001"), bytes.fromhex("020000000002")


def data_frame(number: int = 1, *, message: int = 7, payload: bytes = b"", kind: int = codec.TYPE_DATA) -> bytes:
    return codec.pack_frame(B, A, kind, 0, 3, 0x11, 0x22, message, number, codec.STATUS_OK, payload)


def first_frame(payload: bytes = b"") -> bytes:
    return codec.pack_message(
        B, A, codec.FLAGS_LAST, 3, 0x11, 0x22, 7, 0, codec.STATUS_OK, 4, 5, 0x66, len(payload), 6, payload
    )


def with_valid_check(frame: bytes, offset: int, value: bytes) -> bytes:
    """Return the frame with `value` at an offset, and a valid checksum."""
    changed = bytearray(frame)
    changed[offset : offset + len(value)] = value
    changed[38:42] = bytes(4)
    changed[38:42] = struct.pack("!I", crc32(changed))
    return bytes(changed)


def test_the_first_frame_of_a_message_byte_by_byte() -> None:
    check = crc32(
        bytes.fromhex(
            "020000000002 020000000001 88b5 01 01 01 03 00000011 00000022 00000007 00000000 0002 0000"
            "0004 0005 00000066 00000002 00000006 6869"
        )
    )
    assert first_frame(b"hi") == bytes.fromhex(
        "020000000002 020000000001 88b5 01 01 01 03 00000011 00000022 00000007 00000000 0002 0000"
        f"{check:08x} 0004 0005 00000066 00000002 00000006 6869"
    )


def test_an_acknowledgement_is_a_frame_header() -> None:
    frame = codec.pack_frame(A, B, codec.TYPE_ACK, codec.FLAGS_LAST, 3, 1, 2, 7, 2, codec.STATUS_RESTARTED)
    assert len(frame) == codec.FRAME_SIZE == 42
    assert Ether(frame).summary() == "Ether / EMP ACK message 7 frame 2"
    assert Ether(frame)[EMP].sprintf("%status% %flags%") == "RESTARTED LAST"
    assert codec.unpack_frame(frame)[2:-1] == (codec.TYPE_ACK, 1, 3, 1, 2, 7, 2, codec.STATUS_RESTARTED)


def test_padding_to_the_minimum_frame_size_is_neither_payload_nor_checked() -> None:
    frame = first_frame(b"x").ljust(60, b"\xaa")
    assert bytes(codec.unpack_message(frame)[-1]) == b"x"
    assert bytes(Ether(frame)[Padding]) == b"\xaa"
    assert bytes(Ether(frame)[EMPMessage].payload)[:1] == b"x"


def test_the_unpacked_payload_is_a_slice_of_the_frame() -> None:
    frame = data_frame(payload=b"payload")
    assert codec.unpack_frame(frame)[-1] == b"payload"
    view = codec.unpack_frame(memoryview(frame))[-1]  # of a view a view, without a copy
    assert isinstance(view, memoryview)
    assert (view, view.obj) == (b"payload", frame)


@given(st.binary(max_size=60), st.booleans(), st.data())
def test_a_flipped_bit_is_detected_anywhere(payload: bytes, is_first: bool, data: st.DataObject) -> None:
    frame = bytearray(first_frame(payload) if is_first else data_frame(payload=payload))
    bit = data.draw(st.integers(0, 8 * len(frame) - 1))
    frame[bit >> 3] ^= 0x80 >> (bit & 7)
    with pytest.raises(MalformedError):
        (codec.unpack_message if is_first else codec.unpack_frame)(frame)


@pytest.mark.parametrize("size", [0, 1, 1458, 8958])
def test_every_bit_of_the_headers_and_of_the_payloads_ends_is_checked(size: int) -> None:
    frame = data_frame(payload=bytes(size))
    for offset in [*range(42), *([42, len(frame) - 1] if size else [])]:
        for bit in range(8):
            corrupted = bytearray(frame)
            corrupted[offset] ^= 1 << bit
            with pytest.raises(MalformedError):
                codec.unpack_frame(corrupted)


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"", "short"),
        (data_frame()[:41], "short"),
        (data_frame(payload=b"1234")[:-1], "length"),
        (with_valid_check(data_frame(), 12, b"\x08\x00"), "ether_type"),
        (with_valid_check(data_frame(), 14, b"\x02"), "version"),
        (with_valid_check(data_frame(), 15, b"\x00"), "type"),
        (with_valid_check(data_frame(), 15, b"\x04"), "type"),
        (with_valid_check(data_frame(payload=bytes(20)), 15, b"\x01"), "type"),
        (with_valid_check(data_frame(), 34, b"\x00\x01"), "length"),
        (with_valid_check(data_frame(), 34, b"\xff\xff"), "length"),
        (with_valid_check(data_frame(), 36, b"\x00\x02"), "status"),
        (data_frame()[:41] + b"\x00", "check"),
    ],
)
def test_a_malformed_frame_raises_an_error_with_the_reason(frame: bytes, reason: str) -> None:
    with pytest.raises(MalformedError) as raised:
        codec.unpack_frame(frame)
    assert raised.value.reason == reason
    assert str(raised.value) == f"malformed frame: {reason}"


def test_the_type_selects_the_unpack_function() -> None:
    assert codec.type_of(first_frame()) == codec.TYPE_MESSAGE
    assert codec.type_of(memoryview(data_frame())) == codec.TYPE_DATA
    with pytest.raises(MalformedError, match="short"):
        codec.type_of(data_frame()[:15])


@given(st.binary(max_size=100))
def test_random_bytes_have_no_type_or_are_malformed(frame: bytes) -> None:
    with pytest.raises(MalformedError):
        (codec.unpack_message if codec.type_of(frame) == codec.TYPE_MESSAGE else codec.unpack_frame)(frame)


@pytest.mark.parametrize(
    ("rule", "dropped"),
    [
        ("drop emp.type == 3 and nth(2)", [3]),
        ("drop emp.type == 3 and nth(2, emp.message)", [4]),
        ("drop emp.tag == 0x66", [1]),
        ("drop emp.flags.last == 1", [1]),
        ("drop emp.frame > 1", [4]),
    ],
)
def test_rules_can_use_the_codecs_fields(rule: str, dropped: list[int]) -> None:
    fields = standard_fields()
    fields.register("emp", codec.ETHERTYPE, codec.FIELDS, codec.FLOW)
    rules = RuleSet(fields)
    rules.add(0, rule)
    wire = LinkDirection("n1:eth0--n2:eth0", "forward", NO_IMPAIRMENT, FateOptions(seed=1, rules=rules))
    ack = codec.TYPE_ACK
    frames = [
        data_frame(),
        first_frame(),
        data_frame(kind=ack),
        data_frame(kind=ack, message=8),
        data_frame(2, kind=ack),
    ]
    assert [number for number, frame in enumerate(frames) if wire.offer(number, frame).dropped] == dropped


def test_frame_types_are_separate_flows() -> None:
    fields = standard_fields()
    fields.register("emp", codec.ETHERTYPE, codec.FIELDS, codec.FLOW)
    assert fields.flow_fields() == {(0x88B5, b""): ("emp.type",)}

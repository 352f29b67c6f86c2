"""Descriptions of a protocol's frames, generated from its codec."""

from __future__ import annotations

from types import ModuleType

import pytest

from protocols.core.codegen import generate
from protocols.core.frame_kinds import Kind
from protocols.emp import codec as emp
from testbed.fates.headers import standard_fields
from testbed.observe.format.frame_format import FrameFormatter, formatters
from tests.unit.observe.emp_captures import A, B, ack, data, first_frame, mac_bytes
from tests.unit.protocols import synthetic_frames


def synthetic_formatter(**options: object) -> tuple[FrameFormatter, ModuleType]:
    """Return a formatter and a codec of the synthetic frames. options: attributes added to their module."""
    frames = ModuleType(synthetic_frames.__name__)
    vars(frames).update({**vars(synthetic_frames), **options})
    codec = ModuleType("synthetic_codec")
    exec(generate(frames, "the tests"), codec.__dict__)
    fields = standard_fields()
    fields.register("made", codec.ETHERTYPE, codec.FIELDS, codec.FLOW)
    return FrameFormatter("made", codec, fields), codec


def emp_formatter() -> FrameFormatter:
    formatter = formatters()[emp.ETHERTYPE].formatter_of(first_frame(9, b"", 0))
    assert formatter is not None
    return formatter


def test_every_registered_protocol_whose_codec_has_fields_is_described() -> None:
    assert {formatter.name for group in formatters().values() for formatter in group} >= {
        "am2",
        "emp",
        "mapper",
        "myrinet",
    }
    assert emp_formatter().kinds == emp.KINDS


def test_a_kind_is_listed_with_its_nonzero_fields_and_flags() -> None:
    describe = emp_formatter().format
    assert describe(first_frame(9, b"hello", 5)) == "EMP MESSAGE message 9 frame 0, node 0 to 1, tag 0x20, 5 of 5 bytes"
    last = emp.pack_frame(mac_bytes(B), mac_bytes(A), emp.TYPE_DATA, emp.FLAGS_LAST, 3, 1, 2, 9, 4, 0, b"more")
    assert describe(last) == "EMP DATA LAST message 9 frame 4, 4 bytes"
    assert describe(ack(9, 4)) == "EMP ACK message 9 frame 4"
    restarted_ack = emp.pack_frame(mac_bytes(A), mac_bytes(B), emp.TYPE_ACK, 0, 3, 1, 2, 9, 4, emp.STATUS_RESTARTED)
    assert describe(restarted_ack) == "EMP ACK message 9 frame 4, RESTARTED"


def test_invalid_frames_are_malformed_and_foreign_frames_have_no_description() -> None:
    describe, frame = emp_formatter().format, data(9, 4, b"more")
    assert describe(frame[:-1] + b"X") == "EMP, broken (check)"
    assert describe(frame[:15] + b"\x09" + frame[16:]) == "EMP, broken (type)"
    assert describe(first_frame(9, b"hello", 5)[:-3]) == "EMP, broken (length)"
    assert describe(first_frame(9, b"hello", 5)[:50]) == "EMP, broken (short)"
    assert describe(frame[:14] + b"\x07" + frame[15:]) == ""
    assert describe(frame[:30]) == ""


def test_a_protocol_without_a_description_is_described_by_all_its_fields() -> None:
    formatter, codec = synthetic_formatter()
    frame = codec.pack_order(bytes(6), bytes(6), 0x123, codec.FLAGS_LAST, 7, 0xABCD)
    assert formatter.format(frame) == "MADE credit 291, flags 2, kind ORDER, hash 7, raw 43981"
    call = codec.pack_call(bytes(6), bytes(6), 1, 0, 2, 3, 4, 5, 6)
    assert formatter.format(call).startswith("MADE credit 1, flags 0, kind CALL, hash 2, raw 3, address 4, call.id 5")


def test_bit_fields_flags_and_names_of_values_are_formatted_by_the_template() -> None:
    kind = Kind("data", "{kind} credit {credit:#x}[ {flags}][, raw {raw}] {{braces}}")
    formatter, codec = synthetic_formatter(KIND="kind", KINDS={9: kind})
    all_flags = codec.FLAGS_FIRST | codec.FLAGS_LAST
    assert formatter.format(codec.pack_order(bytes(6), bytes(6), 0x123, all_flags, 7, 5)) == (
        "ORDER credit 0x123 FIRST+LAST, raw 5 {braces}"
    )
    assert formatter.format(codec.pack_order(bytes(6), bytes(6), 0, 0, 7, 0)) == "ORDER credit 0x0 {braces}"
    assert formatter.format(codec.pack_reply(bytes(6), bytes(6), 0, 0, 7, 0, bytes(6), 1)).startswith("MADE ")


def test_a_short_frame_of_a_codec_without_decoder_is_described_as_far_as_possible() -> None:
    codec = ModuleType("handwritten")
    vars(codec).update(ETHERTYPE=0x9A9C, FIELDS={"kind": (0, 1), "number": (2, 4)}, FLOW=("kind",), KIND="kind")
    codec.KINDS = {1: Kind("data", "HAND number {number}, again {number:#x}, kind {kind}")}  # type: ignore[attr-defined]
    fields = standard_fields()
    fields.register("hand", codec.ETHERTYPE, codec.FIELDS, codec.FLOW)
    describe = FrameFormatter("hand", codec, fields).format
    frame = bytes(12) + b"\x9a\x9c" + b"\x01\x00\x00\x00\x00\x20"
    assert describe(frame) == "HAND number 32, again 0x20, kind 1"
    assert describe(frame[:-1]) == "HAND kind 1"
    assert describe(frame[:14]) == "HAND"


@pytest.mark.parametrize(
    "kind",
    [
        Kind("data", "{nothing}"),
        Kind("data", "x", message=("nothing",)),
        Kind("data", "x", within=("nothing",)),
        Kind("ack", "x", handles=(("what", "nothing"),)),
        Kind("data", "x", part="nothing"),
        Kind("data", "x", total="nothing"),
    ],
)
def test_a_kind_that_names_an_unknown_field_is_rejected(kind: Kind) -> None:
    with pytest.raises(TypeError, match="synthetic_frames: KINDS names 'nothing', which is not a field"):
        synthetic_formatter(KIND="kind", KINDS={9: kind})

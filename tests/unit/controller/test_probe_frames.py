"""Probe frames survive a round trip through their codec, and a flipped bit is detected without loss of the frame."""

from __future__ import annotations

import pytest

from testbed.controller.probing.probe_frames import ACCEPTED, COUNTED, MIN_SIZE, TRAIN, build, parse
from testbed.fates.field_changes import flip_bits

FRAME = build(0xDEAD_BEEF, 7, COUNTED, 123_456)


def accepts(program: bytes, frame: bytes) -> bool:
    """Interpret a socket filter of the classic BPF instructions that the probes' filter uses."""
    index, value = 0, 0
    while True:
        code, if_true, if_false, operand = (
            int.from_bytes(program[8 * index : 8 * index + 2], "little"),
            program[8 * index + 2],
            program[8 * index + 3],
            int.from_bytes(program[8 * index + 4 : 8 * index + 8], "little"),
        )
        index += 1
        if code == 0x28:
            value = int.from_bytes(frame[operand : operand + 2], "big")
        elif code == 0x20:
            value = int.from_bytes(frame[operand : operand + 4], "big")
        elif code == 0x15:
            index += if_true if value == operand else if_false
        else:
            assert code == 0x06
            return operand > 0


def test_a_probe_has_the_requested_length_and_identifies_itself() -> None:
    assert len(FRAME) == MIN_SIZE
    probe = parse(FRAME)
    assert probe is not None
    assert (probe.run, probe.path, probe.kind, probe.number, probe.is_intact) == (
        0xDEAD_BEEF,
        7,
        COUNTED,
        123_456,
        True,
    )
    train_frame = build(1, 0, TRAIN, 5, 1514)
    assert len(train_frame) == 1514
    parsed = parse(train_frame[:64])
    assert parsed is not None
    assert parsed.is_intact


def test_a_probe_has_addresses_that_no_bridge_forwards() -> None:
    assert FRAME[:6] == bytes.fromhex("0180c200000e")
    assert FRAME[6:12] == bytes(6)
    assert FRAME[12:14] == bytes.fromhex("88b6")


@pytest.mark.parametrize("bit", range(8 * MIN_SIZE))
def test_any_flipped_bit_is_detected_and_keeps_the_number(bit: int) -> None:
    broken = flip_bits(FRAME, (bit,))
    assert accepts(ACCEPTED, broken)
    probe = parse(broken)
    assert probe is not None
    assert (probe.run, probe.number, probe.is_intact) == (0xDEAD_BEEF, 123_456, False)


def test_a_frame_with_both_copies_corrupted_is_no_longer_recognized() -> None:
    assert parse(flip_bits(FRAME, (20 * 8, 40 * 8))) is None


def test_other_frames_are_neither_accepted_nor_parsed() -> None:
    for other_frame in (bytes(60), bytes.fromhex("ffffffffffff02000000000108060001") + bytes(44), b"\x01"):
        assert not accepts(ACCEPTED, other_frame.ljust(60, b"\0"))
        assert parse(other_frame) is None

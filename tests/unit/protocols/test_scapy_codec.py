"""Scapy as a codec agrees with the generated codec on every frame, malformed ones included."""

from __future__ import annotations

from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.core.malformed import MalformedError
from protocols.core.scapy_codec import scapy_codec
from tests.unit.protocols.frame_strategies import PER_STACK, drawn_frames
from tests.unit.protocols.test_codec import MODULES, pack

EVERY_STACK = pytest.mark.parametrize(
    ("frames", "codec", "by_scapy", "stack"),
    [
        pytest.param(frames, codec, scapy_codec(frames), stack, id=f"{frames.__name__}-{stack}")
        for frames, codec in MODULES
        for stack in frames.STACKS
    ],
)


def outcome(codec: ModuleType, function: str, frame: bytes) -> object:
    """Return a function's result, or the reason of its MalformedError."""
    try:
        return getattr(codec, function)(frame)
    except MalformedError as error:
        return error.reason


@EVERY_STACK
@given(data=st.data())
@PER_STACK
def test_both_pack_the_same_bytes(
    frames: ModuleType, codec: ModuleType, by_scapy: ModuleType, stack: str, data: st.DataObject
) -> None:
    frame_drawn = data.draw(drawn_frames(frames, stack))
    packed = pack(by_scapy, stack, *frame_drawn.arguments, frame_drawn.payload)
    assert packed == pack(codec, stack, *frame_drawn.arguments, frame_drawn.payload)
    if hasattr(frames, "PREFIX"):
        values = getattr(codec, f"unpack_{stack}_behind")(packed)
        assert getattr(by_scapy, f"unpack_{stack}_behind")(packed) == values
        assert getattr(by_scapy, f"pack_{stack}_behind")(packed[: codec.PREFIX_SIZE], *values) == packed
    if not frame_drawn.payload:
        assert packed == getattr(by_scapy, f"pack_{stack}")(*frame_drawn.arguments)


@EVERY_STACK
@given(data=st.data(), padding=st.binary(max_size=20), cut=st.integers(0, 80), flips=st.lists(st.integers(0, 799)))
@PER_STACK
def test_both_agree_on_complete_and_damaged_frames(
    frames: ModuleType,
    codec: ModuleType,
    by_scapy: ModuleType,
    stack: str,
    data: st.DataObject,
    padding: bytes,
    cut: int,
    flips: list[int],
) -> None:
    frame_drawn = data.draw(drawn_frames(frames, stack))
    frame = bytearray(pack(codec, stack, *frame_drawn.arguments, frame_drawn.payload) + padding)
    assert outcome(by_scapy, f"unpack_{stack}", bytes(frame)) == outcome(codec, f"unpack_{stack}", bytes(frame))
    for bit in flips:
        frame[(bit >> 3) % len(frame)] ^= 1 << (bit & 7)
    for broken in (bytes(frame), bytes(frame[: len(frame) - cut])):
        assert outcome(by_scapy, f"unpack_{stack}", broken) == outcome(codec, f"unpack_{stack}", broken)


@pytest.mark.parametrize(("frames", "codec"), MODULES, ids=lambda module: module.__name__)
@given(frame=st.binary(max_size=100))
@PER_STACK
def test_both_agree_on_random_bytes(frames: ModuleType, codec: ModuleType, frame: bytes) -> None:
    by_scapy = scapy_codec(frames)
    for stack in frames.STACKS:
        assert outcome(by_scapy, f"unpack_{stack}", frame) == outcome(codec, f"unpack_{stack}", frame)
    selectors = [name for name in vars(codec) if name.endswith("_of")]
    assert selectors == [name for name in vars(by_scapy) if name.endswith("_of")]
    for name in selectors:
        assert outcome(by_scapy, name, frame) == outcome(codec, name, frame)

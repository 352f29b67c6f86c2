"""The codec that uses Scapy agrees with the generated codec on every frame, including malformed ones."""

from __future__ import annotations

from types import ModuleType
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.core.firmware import Adapter, Agent
from protocols.core.malformed import MalformedError
from protocols.core.scapy_codec import by_scapy, scapy_codec
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


def result_or_reason(codec: ModuleType, function: str, frame: bytes) -> object:
    """Return a function's result, or the reason of its MalformedError."""
    try:
        return getattr(codec, function)(frame)
    except MalformedError as error:
        return error.reason


@EVERY_STACK
@given(data=st.data())
@PER_STACK
def test_both_codecs_pack_the_same_bytes(
    frames: ModuleType, codec: ModuleType, by_scapy: ModuleType, stack: str, data: st.DataObject
) -> None:
    drawn = data.draw(drawn_frames(frames, stack))
    packed = pack(by_scapy, stack, *drawn.arguments, drawn.payload)
    assert packed == pack(codec, stack, *drawn.arguments, drawn.payload)
    if hasattr(frames, "PREFIX"):
        values = getattr(codec, f"unpack_{stack}_behind")(packed)
        assert getattr(by_scapy, f"unpack_{stack}_behind")(packed) == values
        assert getattr(by_scapy, f"pack_{stack}_behind")(packed[: codec.PREFIX_SIZE], *values) == packed
    if not drawn.payload:
        assert packed == getattr(by_scapy, f"pack_{stack}")(*drawn.arguments)


@EVERY_STACK
@given(data=st.data(), padding=st.binary(max_size=20), cut=st.integers(0, 80), flips=st.lists(st.integers(0, 799)))
@PER_STACK
def test_both_codecs_agree_on_complete_and_corrupted_frames(
    frames: ModuleType,
    codec: ModuleType,
    by_scapy: ModuleType,
    stack: str,
    data: st.DataObject,
    padding: bytes,
    cut: int,
    flips: list[int],
) -> None:
    drawn = data.draw(drawn_frames(frames, stack))
    frame = bytearray(pack(codec, stack, *drawn.arguments, drawn.payload) + padding)
    assert result_or_reason(by_scapy, f"unpack_{stack}", bytes(frame)) == result_or_reason(
        codec, f"unpack_{stack}", bytes(frame)
    )
    for bit in flips:
        frame[(bit >> 3) % len(frame)] ^= 1 << (bit & 7)
    for malformed in (bytes(frame), bytes(frame[: len(frame) - cut])):
        assert result_or_reason(by_scapy, f"unpack_{stack}", malformed) == result_or_reason(
            codec, f"unpack_{stack}", malformed
        )


@pytest.mark.parametrize(("frames", "codec"), MODULES, ids=lambda module: module.__name__)
@given(frame=st.binary(max_size=100))
@PER_STACK
def test_both_codecs_agree_on_random_bytes(frames: ModuleType, codec: ModuleType, frame: bytes) -> None:
    by_scapy = scapy_codec(frames)
    for stack in frames.STACKS:
        assert result_or_reason(by_scapy, f"unpack_{stack}", frame) == result_or_reason(codec, f"unpack_{stack}", frame)
    selectors = [name for name in vars(codec) if name.endswith("_of")]
    assert selectors == [name for name in vars(by_scapy) if name.endswith("_of")]
    for name in selectors:
        assert result_or_reason(by_scapy, name, frame) == result_or_reason(codec, name, frame)


def test_a_nic_whose_frames_scapy_rebuilds_keeps_its_input_fifo() -> None:
    host = Mock()
    agent = by_scapy(lambda _adapter, _nic: Agent(Mock(), host, has_input_fifo=True))(Adapter(0, (b"\2" * 6,)), Mock())
    assert agent.host is host
    assert agent.has_input_fifo

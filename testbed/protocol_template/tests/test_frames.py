"""Scapy and the codec build the same bytes, and the codec is up to date with the Scapy layers."""

from __future__ import annotations

from pathlib import Path

import pytest
from postcard import codec, frames
from scapy.layers.l2 import Ether

from protocols.core.codegen import generate
from protocols.core.malformed import MalformedError

A, B = bytes.fromhex("020000000001"), bytes.fromhex("020000000002")
FRAME = codec.pack_frame(A, B, codec.KIND_CARD, codec.FLAGS_LAST, 3, 1, 2, 7, 42, b"hello")


def test_scapy_reads_what_the_codec_has_packed() -> None:
    card = Ether(FRAME)[frames.Postcard]
    assert (card.kind, card.number, card.tag, card.length) == (frames.CARD, 7, 42, 5)
    assert bytes(card.payload) == b"hello"


def test_the_codec_reads_what_scapy_has_built() -> None:
    built = Ether(dst=A, src=B) / frames.Postcard(
        kind="CARD", flags="LAST", context=3, sender=1, receiver=2, number=7, tag=42
    )
    assert bytes(built / b"hello") == FRAME


def test_a_changed_bit_is_noticed() -> None:
    changed = bytearray(FRAME)
    changed[-1] ^= 1
    with pytest.raises(MalformedError, match="check"):
        codec.unpack_frame(bytes(changed))


def test_the_codec_is_generated_from_the_layers() -> None:
    command = "python -m protocols.core.codegen postcard"
    assert Path(codec.__file__).read_text() == generate(frames, command), f"codec.py is out of date: run {command}"

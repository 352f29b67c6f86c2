"""Layers with only fixed fields are formatted without Scapy, with the same result."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.fields import BitField, ByteField, ConditionalField, FlagsField, ShortField, XShortField
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw, bind_layers, split_layers

from protocols.myrinet.envelope import add_envelope
from testbed.observe.format.fixed_layers import FixedLayers, UnfitError
from testbed.observe.format.layers import format_by_scapy, format_layers, frame_modules
from tests.unit.protocols.frame_strategies import PACKAGES, PER_STACK, drawn_frames, frames_of, with_envelope

STACKS = [(package, stack) for package in PACKAGES for stack in frames_of(package).STACKS]
FIXED = FixedLayers({module.__name__ for module in frame_modules().values()})
ROUTES = st.sampled_from([b"", b"\x81", b"\xbf\x80"])


@pytest.mark.parametrize(("package", "stack"), STACKS)
@PER_STACK
@given(data=st.data(), route=ROUTES, padding=st.sampled_from([b"", bytes(3), b"long padding" * 4]))
def test_complete_frames_are_formatted_as_by_scapy(
    package: str, stack: str, data: st.DataObject, route: bytes, padding: bytes
) -> None:
    drawn = data.draw(drawn_frames(frames_of(package), stack))
    raw = with_envelope(drawn.layers, drawn.raw + padding)
    if raw != drawn.raw + padding:  # in a Myrinet packet
        raw = add_envelope(drawn.raw + padding, route)
    assert FIXED.format(raw) == list(format_by_scapy(raw))


@pytest.mark.parametrize(("package", "stack"), STACKS)
@PER_STACK
@given(data=st.data(), cut=st.integers(0, 90), flips=st.lists(st.integers(0, 799), max_size=3))
def test_malformed_frames_are_formatted_as_by_scapy(
    package: str, stack: str, data: st.DataObject, cut: int, flips: list[int]
) -> None:
    drawn = data.draw(drawn_frames(frames_of(package), stack))
    frame = bytearray(with_envelope(drawn.layers, drawn.raw))
    for bit in flips:
        frame[12 + (bit >> 3) % (len(frame) - 12)] ^= 1 << (bit & 7)
    for raw in (bytes(frame), bytes(frame[: max(14, len(frame) - cut)])):
        assert list(format_layers(raw)) == list(format_by_scapy(raw))


@given(st.sampled_from([b"\x88\xb5", b"\x88\xb6", b"\x08\x00", b"\x00\x20"]), st.binary(max_size=90))
def test_arbitrary_bytes_are_formatted_as_by_scapy(ethertype: bytes, rest: bytes) -> None:
    raw = bytes(12) + ethertype + rest
    assert list(format_layers(raw)) == list(format_by_scapy(raw))


class Small(Packet):
    fields_desc = [  # noqa: RUF012
        BitField("high", 1, 3),
        FlagsField("low", 0, 5, ["ONE", "TWO"]),
        XShortField("key", 0x10),
        ShortField("size", 7),
    ]


class Conditional(Packet):
    fields_desc = [ByteField("kind", 0), ConditionalField(ByteField("more", 0), lambda packet: packet.kind)]  # noqa: RUF012


class Custom(Packet):
    fields_desc = [ByteField("kind", 0)]  # noqa: RUF012

    def extract_padding(self, s: bytes) -> tuple[bytes, bytes]:
        return s[:1], s[1:]


@pytest.mark.parametrize(("layer", "is_fixed"), [(Small, True), (Conditional, False), (Custom, False)])
def test_layers_with_custom_methods_are_formatted_by_scapy(layer: type[Packet], is_fixed: bool) -> None:
    fixed = FixedLayers({__name__})
    bind_layers(Ether, layer, type=0x9A9D)
    try:
        frame = bytes(Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02") / layer() / Raw(b"payload"))
        expected = list(format_by_scapy(frame))
        if is_fixed:
            assert FixedLayers({__name__}).format(frame) == expected
            assert expected[1] == "Small: high 1, low '', key 0x10, size 7"
        else:
            with pytest.raises(UnfitError):
                fixed.format(frame)
        with pytest.raises(UnfitError):
            FixedLayers(set()).format(frame)
    finally:
        split_layers(Ether, layer, type=0x9A9D)

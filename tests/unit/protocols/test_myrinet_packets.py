"""The Scapy layer of Myrinet's packets and the envelope agree on every frame, whatever its content."""

from __future__ import annotations

from itertools import dropwhile
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.fields import ByteField, IntField
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw, bind_layers, split_layers

from protocols.core.codegen import generate
from protocols.core.malformed import MalformedError
from protocols.myrinet import fields
from protocols.myrinet.envelope import add_envelope, crc8, deltas, remove_envelope, route_bytes, stripped
from protocols.myrinet.frames import Myrinet
from testbed.fates.header_fields import MAX_HOPS, locate
from testbed.fates.headers import standard_fields
from testbed.fields import register

ETHERNET_HEADER = bytes.fromhex("020000000002 020000000001 88b6")
ROUTES = st.lists(st.integers(-32, 31), max_size=MAX_HOPS).map(tuple)
TYPES = st.integers(0, 0x7FFF).map(lambda number: number.to_bytes(2, "big"))


@given(ROUTES, TYPES, st.binary(max_size=40))
def test_scapy_builds_and_parses_the_envelope(route: tuple[int, ...], kind: bytes, rest: bytes) -> None:
    frame = add_envelope(ETHERNET_HEADER + kind + rest, route_bytes(route))
    packet = Ether(frame)
    number, crc = int.from_bytes(kind, "big"), frame[-1]
    assert (packet[Myrinet].source_route, packet[Myrinet].type, packet[Myrinet].crc8) == (
        route_bytes(route),
        number,
        crc,
    )
    assert bytes(packet) == frame
    built = Ether(frame[:14]) / Myrinet(source_route=route_bytes(route), type=number)
    assert bytes(built / Raw(rest) if rest else built) == frame
    assert stripped(frame) == (ETHERNET_HEADER + kind + rest, route, True)


@given(ROUTES, TYPES, st.binary(max_size=40), st.integers(0, 1 << 20))
def test_a_flipped_bit_is_detected_by_the_envelope_and_by_scapy(
    route: tuple[int, ...], kind: bytes, rest: bytes, bit: int
) -> None:
    frame = bytearray(add_envelope(ETHERNET_HEADER + kind + rest, route_bytes(route)))
    bit %= 8 * (len(frame) - 14)
    frame[14 + (bit >> 3)] ^= 1 << (bit & 7)
    assert not stripped(bytes(frame))[2]
    packet = Ether(bytes(frame))
    if Myrinet not in packet:  # the flipped bit makes most bytes a route, and leaves no header
        assert len(list(dropwhile(lambda byte: byte & 0x80, frame[14:]))) < 3
        return
    layer = packet[Myrinet]
    assert ", wrong: it would be 0x" in layer.fieldtype["crc8"].i2repr(layer, layer.crc8)


@given(st.binary(max_size=90))
def test_envelope_and_scapy_find_the_same_route_in_any_bytes(rest: bytes) -> None:
    raw, route, _ = stripped(ETHERNET_HEADER + rest)
    packet = Ether(ETHERNET_HEADER + rest)
    if Myrinet in packet:
        assert deltas(packet[Myrinet].source_route) == route
        assert raw.startswith(ETHERNET_HEADER)
    try:
        assert remove_envelope(ETHERNET_HEADER + rest) == raw
    except MalformedError:
        assert crc8(rest) or len(rest) < 3 or rest[0] & 0x80


class ExternalLayer(Packet):
    """Layer of an external protocol."""

    fields_desc = [ByteField("kind", 0), IntField("number", 0)]  # noqa: RUF012


def test_a_packages_packet_type_has_a_codec_fields_and_flows_next_to_the_builtin_ones() -> None:
    frames = ModuleType(__name__)
    vars(frames).update(STACKS={"frame": (Ether, Myrinet, ExternalLayer)}, FLOW=("kind",))
    codec = ModuleType("mine")
    bind_layers(Myrinet, ExternalLayer, type=0x0007)
    try:
        exec(generate(frames, "the tests"), codec.__dict__)
        frame = codec.pack_frame(ETHERNET_HEADER[:6], ETHERNET_HEADER[6:12], 3, 77)
        assert add_envelope(frame, b"\x81") == bytes(
            Ether(ETHERNET_HEADER) / Myrinet(source_route=b"\x81") / ExternalLayer(kind=3, number=77)
        )
    finally:
        split_layers(Myrinet, ExternalLayer, type=0x0007)
    assert codec.unpack_frame(frame) == (ETHERNET_HEADER[:6], ETHERNET_HEADER[6:12], 3, 77, b"")
    assert codec.BEGINS == b"\0\7"
    with pytest.raises(MalformedError, match="type"):
        codec.unpack_frame(frame[:15] + b"\6" + frame[16:])
    registered = standard_fields()
    register(registered, "mine", codec)
    register(registered, "myrinet", fields)
    routed_frame = add_envelope(frame, b"\x81\x82")
    assert registered.reader("mine.number")(routed_frame, locate(routed_frame)) == 77
    assert registered.flow_readers()[codec.ETHERTYPE](routed_frame, locate(routed_frame)) == (7, 3)
    assert "crc8" not in " ".join(registered.names())


def test_layers_that_do_not_identify_their_frames_get_no_codec() -> None:
    frames = ModuleType(__name__)
    vars(frames).update(STACKS={"one": (Ether, Myrinet, ExternalLayer), "two": (Ether, ExternalLayer)}, FLOW=())
    bind_layers(Myrinet, ExternalLayer, type=0x0007)
    bind_layers(Ether, ExternalLayer, type=0x88B6)
    try:
        with pytest.raises(TypeError, match="all stacks must have equal values in the layers between"):
            generate(frames, "the tests")
    finally:
        split_layers(Myrinet, ExternalLayer, type=0x0007)
        split_layers(Ether, ExternalLayer, type=0x88B6)

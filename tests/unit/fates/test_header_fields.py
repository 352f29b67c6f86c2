"""Header fields: read at their offsets, and registered by protocols as plain data."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.fates.header_fields import Fields, UnknownFieldError, locate
from testbed.fates.headers import standard_fields
from tests.unit.fates.wire_frames import A, B, arp, ethernet, ipv4, ipv6, tagged, tcp, udp


def value(frame: bytes, name: str, fields: Fields | None = None) -> int:
    return (fields or standard_fields()).reader(name)(frame, locate(frame))


@pytest.mark.parametrize(
    ("frame", "name", "expected"),
    [
        (udp(), "eth.dst", B),
        (udp(), "eth.src", A),
        (udp(), "eth.type", 0x0800),
        (udp(), "ip.ttl", 64),
        (udp(), "ip.len", 28),
        (udp(), "ip.id", 0x1234),
        (udp(), "ip.flags.df", 0),
        (udp(offset=0x4000), "ip.flags.df", 1),
        (udp(offset=0x2000), "ip.flags.mf", 1),
        (udp(offset=0x1ABC), "ip.frag", 0x1ABC),
        (udp(), "ip.src", 0x0A000001),
        (udp(), "udp.sport", 40_000),
        (udp(options=bytes(12)), "udp.dport", 5001),
        (udp(), "tcp.dport", -1),
        (tcp(flags=0x12), "tcp.flags", 0x12),
        (tcp(flags=0x12), "tcp.flags.ack", 1),
        (tcp(), "tcp.window", 0x1000),
        (tagged(udp(), 0xABC, 5), "vlan.id", 0xABC),
        (tagged(udp(), 0xABC, 5), "vlan.prio", 5),
        (tagged(udp(), 0xABC, 5), "vlan.type", 0x0800),
        (tagged(udp(), 0xABC, 5), "udp.dport", 5001),
        (tagged(tagged(udp(), 1), 2), "udp.dport", 5001),
        (tagged(tagged(tagged(udp(), 1), 2), 3), "udp.dport", -1),
        (udp(), "vlan.id", -1),
        (ipv6(b"\0\x01\0\x02", 17), "udp.dport", 2),
        (ipv6(b"", 58), "ipv6.hlim", 64),
        (ipv6(b"", 58), "ipv6.dst", 0xFD00 << 112 | 2),
        (ipv6(b"\x80\0", 58), "icmpv6.type", 128),
        (arp(2), "arp.op", 2),
        (arp(), "arp.pdst", 0x0A000002),
        (ethernet(b""), "frame.len", 14),
        (b"", "frame.len", 0),
        (b"", "eth.type", -1),
        (ipv4(b"\x13", 17), "udp.sport", -1),
        (ethernet(b"\x46" + bytes(30), ethertype=0x0800), "ip.proto", 0),
        (ethernet(b"\x44" + udp()[15:], ethertype=0x0800), "udp.dport", -1),
        (ethernet(b"\x44" + udp()[15:], ethertype=0x0800), "ip.proto", 17),
        (ethernet(b"\x65" + bytes(30), ethertype=0x0800), "udp.dport", -1),
    ],
)
def test_a_field_is_read_at_its_offset_or_is_absent(frame: bytes, name: str, expected: int) -> None:
    assert value(frame, name) == expected


@given(st.binary(max_size=80), st.sampled_from([b"", udp()[:12], udp()[:20], tagged(udp(), 5)[:18], ipv6(b"", 6)[:30]]))
def test_any_bytes_have_fields_within_their_width_or_none(rest: bytes, head: bytes) -> None:
    frame, fields = head + rest, standard_fields()
    located = locate(frame)
    for name in fields.names():
        assert -1 <= fields.reader(name)(frame, located) <= fields[name].max_value


def test_a_protocol_registers_its_fields_as_plain_data() -> None:
    fields = standard_fields()
    fields.register(
        "emp",
        0x88B5,
        {"type": (0, 1), "id": (2, 4, 0x00FFFFF0), "credit": (6, 2, 0, [("type", 3)])},
        flow=["type"],
    )
    frame = ethernet(bytes([3, 0, 0xFF, 1, 2, 0x3F, 0, 9]))
    assert value(frame, "emp.type", fields) == 3
    assert value(frame, "emp.id", fields) == 0x01023
    assert value(frame, "emp.credit", fields) == 9
    assert value(tagged(frame, 5), "emp.credit", fields) == 9
    assert value(frame.replace(b"\x03\0\xff", b"\x04\0\xff"), "emp.credit", fields) == -1
    assert value(ethernet(b"\x03", ethertype=0x88B6), "emp.type", fields) == -1
    assert fields.flow_fields() == {(0x88B5, b""): ("emp.type",)}
    assert fields["emp.id"].max_value == 0xFFFFF


@pytest.mark.parametrize(
    ("protocol", "ethertype", "table", "flow", "expected"),
    [
        ("ip", 0x88B5, {}, [], "already"),
        ("emp", 0x0800, {}, [], "ip has the number 0x0800, too: neither has BEGINS"),
        ("emp", 0x05DC, {}, [], "not an EtherType"),
        ("e mp", 0x88B5, {}, [], "must have letters, digits"),
        ("emp", 0x88B5, {"a b": (0, 1)}, [], "must have letters, digits"),
        ("emp", 0x88B5, {"type": (0,)}, [], "the width 1 to 16 bytes"),
        ("emp", 0x88B5, {"type": (-1, 2)}, [], "the offset must be 0 or more"),
        ("emp", 0x88B5, {"type": (0, 1, 0x100)}, [], "the mask within the width"),
        ("emp", 0x88B5, {"type": ("0", 1)}, [], "offset, width, mask"),
        ("emp", 0x88B5, {"type": (0, 1, 0, [], 5)}, [], "offset, width, mask"),
        ("emp", 0x88B5, {"type": (0, 1, 0, [("kind", 3)])}, [], "which is not a field"),
        ("emp", 0x88B5, {"type": (0, 1, 0, [3])}, [], "pairs of a field"),
        ("emp", 0x88B5, {"type": (0, 1)}, ["kind"], "not one of its fields"),
    ],
)
def test_a_failed_registration_adds_no_fields(
    protocol: str, ethertype: int, table: dict[str, tuple[object, ...]], flow: list[str], expected: str
) -> None:
    fields = standard_fields()
    before = fields.names(), fields.headers()
    with pytest.raises(ValueError, match=expected):
        fields.register(protocol, ethertype, table, flow)
    assert (fields.names(), fields.headers()) == before


def test_an_unknown_field_is_rejected_with_the_nearest() -> None:
    with pytest.raises(UnknownFieldError, match=r"'ip\.scr' — did you mean 'ip\.src'"):
        standard_fields().reader("ip.scr")

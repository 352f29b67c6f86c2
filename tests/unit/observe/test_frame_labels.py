"""Summaries of frames in one line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import ICMPv6EchoRequest, ICMPv6ND_NS, IPv6
from scapy.layers.l2 import ARP, Dot1Q, Ether
from scapy.packet import Packet

from protocols.emp import codec as emp
from testbed.observe.format.frame_labels import label

ETHER = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
A, B = bytes.fromhex("020000000001"), bytes.fromhex("020000000002")


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        (ETHER / ARP(psrc="10.0.0.1", pdst="10.0.0.2"), "ARP who has 10.0.0.2? tell 10.0.0.1"),
        (ETHER / ARP(op=2, psrc="10.0.0.1", hwsrc="02:00:00:00:00:01"), "ARP 10.0.0.1 is at 02:00:00:00:00:01"),
        (
            ETHER / IP(src="10.0.0.1", dst="10.0.0.2") / ICMP(id=7, seq=3),
            "10.0.0.1 > 10.0.0.2 ICMP echo request 7 seq 3",
        ),
        (
            ETHER / IP(src="10.0.0.1", dst="10.0.0.2") / TCP(sport=1024, dport=80, flags="SA", seq=5, ack=6),
            "10.0.0.1 > 10.0.0.2 TCP 1024 > 80 [SA] seq 5 ack 6",
        ),
        (
            ETHER / Dot1Q(vlan=9) / IP(src="10.0.0.1", dst="10.0.0.2") / UDP(sport=5, dport=6),
            "VLAN 9, 10.0.0.1 > 10.0.0.2 UDP 5 > 6",
        ),
        (
            ETHER / IPv6(src="fd00::1", dst="fd00::2") / ICMPv6EchoRequest(seq=1),
            "fd00::1 > fd00::2 ICMPv6 echo request 0 seq 1",
        ),
        (
            ETHER / IP(src="10.0.0.1", dst="10.0.0.2", frag=9) / b"xyz",
            "10.0.0.1 > 10.0.0.2 protocol 0, a later fragment or broken",
        ),
        (
            Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02", type=0x1234),
            "02:00:00:00:00:01 > 02:00:00:00:00:02 EtherType 0x1234",
        ),
    ],
)
def test_a_frame_is_described_by_its_type(frame: Packet, expected: str) -> None:
    raw = bytes(frame)
    assert label(raw) == f"{expected}, {len(raw)} bytes"


def test_a_broken_frame_is_labelled_as_far_as_possible() -> None:
    frame = bytes(ETHER / IP(src="10.0.0.1", dst="10.0.0.2") / TCP(sport=1024, dport=80))
    assert label(frame[:42]) == "10.0.0.1 > 10.0.0.2 TCP, cut short, 42 bytes"
    wrong_version = frame[:14] + b"\x55" + frame[15:]
    assert label(wrong_version) == f"{A.hex(':')} > {B.hex(':')} EtherType 0x0800 with IP version 5, 54 bytes"
    assert label(frame[:14]) == "cut short, 14 bytes"


def test_neighbour_discovery_is_labelled_with_its_target() -> None:
    frame = bytes(ETHER / IPv6(src="fd00::1", dst="ff02::1:ff00:2") / ICMPv6ND_NS(tgt="fd00::2"))
    assert label(frame).startswith("fd00::1 > ff02::1:ff00:2 ICMPv6 neighbour solicitation of fd00::2, ")


def test_frames_of_emp_are_labelled_with_type_and_message() -> None:
    first = emp.pack_message(B, A, emp.FLAGS_LAST, 3, 1, 2, 9, 0, 0, 0, 1, 0x20, 5, 9, b"hello")
    data = emp.pack_frame(B, A, emp.TYPE_DATA, 0, 3, 1, 2, 9, 4, 0, b"more")
    ack = emp.pack_frame(A, B, emp.TYPE_ACK, 0, 3, 1, 2, 9, 4, emp.STATUS_RESTARTED)
    addresses = "02:00:00:00:00:01 > 02:00:00:00:00:02"
    assert label(first).startswith(
        f"{addresses} EMP MESSAGE LAST message 9 frame 0, node 0 to 1, tag 0x20, 5 of 5 bytes"
    )
    assert label(data).startswith(f"{addresses} EMP DATA message 9 frame 4, 4 bytes")
    assert "EMP ACK message 9 frame 4, RESTARTED" in label(ack)
    assert "EMP, broken (check)" in label(data[:-1] + b"X")
    assert "EtherType 0x88b5" in label(data[:14] + b"\x77" + data[15:])


@given(st.binary(max_size=80), st.sampled_from([b"\x08\x00", b"\x86\xdd", b"\x08\x06", b"\x88\xb5", b"\x81\x00"]))
def test_any_frame_has_a_summary_of_one_line(rest: bytes, ethertype: bytes) -> None:
    for frame in (rest, A + B + ethertype + rest):
        assert label(frame).isprintable()

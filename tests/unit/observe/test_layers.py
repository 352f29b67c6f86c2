"""Frames formatted with all layers and fields."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import IP, TCP
from scapy.layers.l2 import Ether

from testbed.observe.decoding.capture_reader import Frame, Interface
from testbed.observe.decoding.frame_output import FrameDocuments
from testbed.observe.format.layers import format_layers
from tests.unit.observe.emp_captures import A, B, data, first_frame, mac_bytes

ETHERTYPES = [b"\x08\x00", b"\x86\xdd", b"\x08\x06", b"\x88\xb5", b"\x88\xb6", b"\x81\x00", b"\x00\x26", b"\x88\xcc"]


def test_each_layer_is_a_line_with_its_fields_and_unexplained_bytes_are_shown() -> None:
    frame = first_frame(9, bytes(range(40)), 40)
    ethernet, emp, message, payload = format_layers(frame)
    assert ethernet == f"Ethernet: dst {B}, src {A}, type 0x88b5"
    assert emp.startswith("EMP: version EMP, type MESSAGE, flags '', unit 3, sender 0x1, ")
    assert message == "EMP message: source 0, destination 1, tag 0x20, total 40, oldest 9"
    assert payload == f"Raw: 40 bytes, {bytes(range(32)).hex(' ')} ..."


def test_layers_above_ip_are_shown() -> None:
    lines = list(format_layers(bytes(Ether(src=A, dst=B) / IP(src="10.0.0.1") / TCP(dport=80, flags="SA"))))
    assert [line.partition(":")[0] for line in lines] == ["Ethernet", "IP", "TCP"]
    assert "dport http" in lines[2] or "dport 80" in lines[2]


@given(st.binary(max_size=90), st.sampled_from(ETHERTYPES))
def test_any_frames_layers_and_fields_can_be_formatted(rest: bytes, ethertype: bytes) -> None:
    facts = FrameDocuments({})
    for frame in (rest, mac_bytes(A) + mac_bytes(B) + ethertype + rest, data(9, 1, b"x")[: len(rest)] + rest):
        for line in format_layers(frame):
            assert line.isprintable()
        frame_facts = facts.of(Frame(5, Interface("n1:eth0"), "inbound", frame, len(frame)))
        assert frame_facts["bytes"] == len(frame)

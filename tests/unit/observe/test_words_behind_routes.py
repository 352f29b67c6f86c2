"""Summaries of frames with a source route before their header, and of protocols that share an EtherType."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import pytest

from protocols.am2 import codec as am2
from protocols.core.frame_kinds import Kind
from protocols.emp import codec as emp
from protocols.myrinet import fields as myrinet
from protocols.myrinet.envelope import add_envelope
from protocols.myrinet.mapper import codec as mapper
from testbed.fates.header_fields import ETHERNET_HEADER
from testbed.fates.headers import standard_fields
from testbed.fields import register
from testbed.observe.format.frame_format import FrameFormatter, make_formatters

MACS = bytes.fromhex("020000000002"), bytes.fromhex("020000000001")
FRAME = emp.pack_frame(*MACS, emp.TYPE_DATA, 0, 3, 1, 2, 77, 5, emp.STATUS_OK, b"abc")
ACK = am2.pack_answer(*MACS, am2.KIND_ACK, am2.REASON_NONE, 1, 2, 3, 4, 5, 6, 7, 8)
HINT = mapper.pack_frame(*MACS, mapper.KIND_HINT, 2, 2, 7, 9, 0, 0, 0, 0)
ACK_TEXT, HINT_TEXT = "AM-II ACK channel 5 sequence 7", "mapping HINT 9 of node 2"


def emp_formatter(routed: bool) -> FrameFormatter:
    """Return a formatter of EMP whose frames have a source route if `routed`."""
    module = ModuleType("routed")
    vars(module).update({**vars(emp), "ROUTED": routed})
    fields = standard_fields()
    fields.register("emp", emp.ETHERTYPE, emp.FIELDS, emp.FLOW, routed=routed)
    return FrameFormatter("emp", module, fields)


@pytest.mark.parametrize("route", [b"", b"\x81", b"\x81\xbf\x80"])
def test_the_description_of_a_frame_does_not_depend_on_its_remaining_route(route: bytes) -> None:
    formatter = emp_formatter(routed=True)
    frame = FRAME[:ETHERNET_HEADER] + route + FRAME[ETHERNET_HEADER:]
    assert formatter.format(frame) == emp_formatter(routed=False).format(FRAME) != ""
    stripped, _, _ = formatter.strip(frame)
    assert stripped == FRAME
    assert formatter.kind_of(stripped) == emp.TYPE_DATA
    assert not formatter.defect(stripped)
    assert formatter.read("message")(stripped) == 77
    assert "broken (check)" in formatter.format(frame[:-1] + b"x")


def describe(frame: bytes, extra_codecs: Mapping[str, object] | None = None) -> str:
    """Format a Myrinet frame by the protocol that claims its packet type, if any."""
    codecs = {"am2": am2, "mapper": mapper, "myrinet": myrinet, **(extra_codecs or {})}
    fields = standard_fields()
    for name, codec in codecs.items():
        register(fields, name, codec)
    formatter = make_formatters(codecs, fields)[myrinet.ETHERTYPE].formatter_of(frame)
    assert formatter is not None
    return formatter.format(frame)


def test_protocols_that_share_an_ethertype_are_distinguished() -> None:
    assert describe(add_envelope(ACK, b"")) == ACK_TEXT
    assert describe(add_envelope(HINT, b"")) == HINT_TEXT
    assert describe(add_envelope(ACK[:14] + b"\0\7" + b"what", b"")) == "MYRINET type 7"


def test_a_partial_route_and_a_wrong_crc_are_reported() -> None:
    frame = add_envelope(ACK, b"\x81\xbf\x80")
    assert describe(frame) == f"{ACK_TEXT}, route +1 -1 +0"
    assert describe(frame[:-1] + bytes([frame[-1] ^ 1])) == f"{ACK_TEXT}, route +1 -1 +0, wrong CRC-8"
    damaged_frame = bytearray(add_envelope(HINT, b"\x81"))
    damaged_frame[30] ^= 1
    assert describe(bytes(damaged_frame)) == "MAPPER, broken (check), route +1, wrong CRC-8"


def test_a_truncated_frame_is_described_by_its_protocol() -> None:
    assert describe(ACK[:14] + b"\x81" + ACK[14:30] + b"\xff") == "AM2, broken (short), route +1, wrong CRC-8"


@pytest.mark.parametrize("rest", [b"", b"\x81", b"\0", b"\0\7what?", bytes(46)])
def test_a_frame_with_a_wrong_crc_has_no_protocol_unless_its_packet_type_is_registered(
    rest: bytes,
) -> None:
    wrong_frame = ACK[:14] + rest
    assert describe(wrong_frame if rest != bytes(46) else wrong_frame + b"\1") == ""


def test_a_packages_packet_type_is_described_by_its_package() -> None:
    module = ModuleType("mine")
    kinds = {1: Kind("control", "MINE number {number}")}
    vars(module).update(ETHERTYPE=myrinet.ETHERTYPE, BEGINS=b"\0\7", ROUTED=True, KIND="kind", KINDS=kinds)
    vars(module).update(FIELDS={"kind": (2, 1), "number": (3, 1)}, FLOW=("kind",))
    frame = add_envelope(ACK[:14] + b"\0\7\1\x2a", b"\x81")
    assert describe(frame, {"mine": module}) == "MINE number 42, route +1"
    assert describe(add_envelope(ACK, b""), {"mine": module}) == ACK_TEXT


OUTSIDE_FRAMES = """
from scapy.fields import ByteField, ShortField
from scapy.layers.l2 import Ether
from scapy.packet import Packet, bind_layers
from protocols.core.frame_kinds import Kind
from protocols.myrinet.frames import Myrinet

class Outside(Packet):
    fields_desc = [ByteField("kind", 1), ShortField("number", 0)]

bind_layers(Myrinet, Outside, type=0x0007)
STACKS = {"frame": (Ether, Myrinet, Outside)}
FLOW = ("kind",)
KIND = "kind"
KINDS = {1: Kind("data", "OUTSIDE {number}", message=("number",))}
"""
PROGRAM = """
import importlib, json, pathlib, sys
from protocols.core.codegen import generate
frames = importlib.import_module("outside.frames")
pathlib.Path(frames.__file__).with_name("codec.py").write_text(generate(frames, "the tests"))
from protocols.myrinet.envelope import add_envelope
from testbed.fields import known_fields
from testbed.observe.dissector.lua import generate_dissector
from testbed.observe.format.layers import format_layers
from testbed.observe.format.frame_labels import label
from testbed.fates.rules import Rule
codec = importlib.import_module("outside.codec")
frame = add_envelope(codec.pack_frame(bytes(6), bytes(6), 1, 42), bytes([0x81]))
Rule.parse("drop outside.number == 42", known_fields())
text, lacking = generate_dissector()
formatted = [label(frame), *format_layers(frame), 'register_above("Myrinet", function(values)' in text, *lacking]
print(json.dumps([formatted, sorted(map(str, known_fields().flow_fields()))]))
"""


def test_an_external_packet_type_is_described_like_a_builtin_one(tmp_path: Path) -> None:
    package, metadata = tmp_path / "outside", tmp_path / "outside-1.dist-info"
    package.mkdir()
    metadata.mkdir()
    (package / "__init__.py").touch()
    (package / "frames.py").write_text(OUTSIDE_FRAMES)
    entries = "[testbed.fields]\noutside = outside.codec\n[testbed.frames]\noutside = outside.frames\n"
    (metadata / "entry_points.txt").write_text(entries)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    completed = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=60
    )
    assert completed.returncode == 0, completed.stderr
    document, flows = json.loads(completed.stdout)
    assert document == [
        "00:00:00:00:00:00 > 00:00:00:00:00:00 OUTSIDE 42, route +1, 21 bytes",
        "Ethernet: dst 00:00:00:00:00:00, src 00:00:00:00:00:00, type 0x88b6",
        document[2],
        "Outside: kind 1, number 42",
        True,
    ]
    assert document[2].startswith("Myrinet: source_route +1, type 0x7, crc8 0x")
    assert str((0x88B6, b"\0\7")) in flows

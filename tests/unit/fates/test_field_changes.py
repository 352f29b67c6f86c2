"""Rules that change fields: values are set, checksums are corrected or kept, and the log replays the change.

Scapy is the reference for checksums from IPv4 to TCP, and each protocol's codec for its own frames.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import ICMPv6EchoRequest, IPv6
from scapy.layers.l2 import ARP, Dot1Q, Ether
from scapy.packet import Packet, Raw

import protocols.am2.codec as am2
import protocols.emp.codec as emp
import protocols.via.codec as via
from protocols.core.malformed import MalformedError
from protocols.myrinet.envelope import add_envelope, remove_envelope
from testbed.fates.checksums import internet_checksum
from testbed.fates.field_changes import ChangeError, mend_checks
from testbed.fates.headers import standard_fields
from testbed.fates.records import DROP, Fate, Record, Replay, corrupt, set_fields
from testbed.fates.rules import FrameView, RuleSet
from testbed.fates.tokens import RuleError
from testbed.fields import known_fields
from testbed.spec.layout import Impairment
from tests.unit.fates.wire_frames import direction, run_schedule, tagged, udp

N1, N2 = bytes.fromhex("020000000001"), bytes.fromhex("020000000002")
EMP_MESSAGE = emp.pack_message(N2, N1, 1, 3, 5, 6, 17, 0, 0, 0, 1, 0x99, 4, 2, b"data")
EMP_ACK = emp.pack_frame(N2, N1, emp.TYPE_ACK, 0, 3, 5, 6, 17, 0, 0)
AM2_PACKET = am2.pack_message(N2, N1, 0, 0, 1, 3, 4, 7, 0, 11, 12, 1, 0, 9, 1, 2, 3, 0x77, 21, 0, 4, b"data")
VIA_SEND = via.pack_frame(N2, N1, via.TYPE_SEND, 3, 1, 1, 4, 5, 6, 7, 8, 9, 4, 0, 0x55, b"data")
ROUTE = b"\x81\xbf"


class EmpFrame(NamedTuple):
    """Fields of an EMP frame without a message header."""

    destination: bytes
    source: bytes
    type: int
    flags: int
    unit: int
    sender: int
    receiver: int
    message: int
    frame: int
    status: int
    payload: memoryview


class EmpMessage(NamedTuple):
    """Fields of the first frame of an EMP message."""

    destination_mac: bytes
    source_mac: bytes
    flags: int
    unit: int
    sender: int
    receiver: int
    message: int
    frame: int
    status: int
    source: int
    destination: int
    tag: int
    total: int
    oldest: int
    payload: memoryview


def emp_frame(raw: bytes) -> EmpFrame:
    return EmpFrame(*emp.unpack_frame(raw))


def emp_message(raw: bytes) -> EmpMessage:
    return EmpMessage(*emp.unpack_message(raw))


def deliver(
    rule: object, frames: list[bytes], impairment: Impairment | None = None
) -> tuple[list[bytes], list[Record]]:
    """Return the frames that arrive under a rule, and the log."""
    log: list[Record] = []
    rules = RuleSet(known_fields())
    rules.add(0, rule)  # type: ignore[arg-type]
    wire = direction(impairment or Impairment(), rules=rules, log=log.append)
    return [frame for _, frame in run_schedule(wire, list(enumerate(frames)))], log


def delivered_frame(rule: object, frame: bytes) -> bytes:
    (changed,), _ = deliver(rule, [frame])
    return changed


# A protocol's own check


def test_a_field_that_is_set_makes_a_valid_frame_with_another_content() -> None:
    before, after = map(emp_message, (EMP_MESSAGE, delivered_frame("set emp.tag = 7", EMP_MESSAGE)))
    assert after == before._replace(tag=7)
    assert before.tag == 0x99


def test_a_field_set_without_correcting_the_check_makes_a_frame_that_a_receiver_discards() -> None:
    changed = delivered_frame("set emp.tag = 7 keep-check", EMP_MESSAGE)
    with pytest.raises(MalformedError, match="check"):
        emp.unpack_message(changed)
    assert [offset for offset, (old, new) in enumerate(zip(EMP_MESSAGE, changed, strict=True)) if old != new] == [49]


def test_the_check_of_the_frame_that_a_type_announces_is_corrected() -> None:
    """An ACK has no message header, so that its check covers the common header only."""
    assert emp_frame(delivered_frame("set emp.frame = 3", EMP_ACK)).frame == 3
    ack = delivered_frame("set emp.type = ACK, emp.tag = 3 emp.type == MESSAGE", EMP_MESSAGE)
    assert emp_frame(ack).type == emp.TYPE_ACK
    assert ack[46:50] == bytes((0, 0, 0, 3)), "the tag is set at its offset before the type changed"


def test_flags_and_enumerated_values_are_set_by_name_without_changing_others() -> None:
    ack = emp.pack_frame(N2, N1, emp.TYPE_ACK, 0xF0, 3, 5, 6, 17, 0, 0)
    changed = emp_frame(delivered_frame("set emp.flags.last = 1, emp.status = RESTARTED", ack))
    assert (changed.flags, changed.status) == (0xF1, emp.STATUS_RESTARTED)


def test_a_check_after_the_payload_is_located_by_the_length_field() -> None:
    filled = VIA_SEND + bytes(6)
    changed = delivered_frame("set via.immediate = 7", filled)
    assert changed == via.pack_frame(N2, N1, via.TYPE_SEND, 3, 1, 1, 4, 5, 6, 7, 8, 9, 4, 0, 7, b"data") + bytes(6)
    uncorrected = delivered_frame("set via.immediate = 7 keep-check", filled)
    with pytest.raises(MalformedError, match="check"):
        via.unpack_frame(uncorrected)
    assert uncorrected[-10:] == filled[-10:]


@pytest.mark.parametrize("route", [b"", ROUTE])
def test_on_a_source_routed_link_the_crc_of_the_packet_is_corrected_too(route: bytes) -> None:
    changed = delivered_frame("set am2.tag = 0x1234", add_envelope(AM2_PACKET, route))
    packet = remove_envelope(add_envelope(changed[:14] + changed[14 + len(route) : -1], b""))
    assert changed == add_envelope(packet, route), "the CRC-8 at the end is correct"
    assert am2.unpack_message(packet)
    assert packet[52:60] == (0x1234).to_bytes(8, "big")
    uncorrected = delivered_frame("set am2.tag = 0x1234 keep-check", add_envelope(AM2_PACKET, route))
    assert uncorrected[-5:] == add_envelope(AM2_PACKET, route)[-5:]


def test_the_checks_of_a_tagged_frame_are_corrected_as_without_a_tag() -> None:
    changed = delivered_frame("set emp.tag = 7", tagged(EMP_MESSAGE, 5))
    assert changed == tagged(delivered_frame("set emp.tag = 7", EMP_MESSAGE), 5)


def test_a_malformed_frame_keeps_its_length() -> None:
    for size in range(14, len(EMP_MESSAGE)):
        cut = EMP_MESSAGE[:size]
        assert [len(frame) for frame in deliver("set eth.dst = 02:00:00:00:00:09", [cut])[0]] == [size]
    lengthened = delivered_frame("set emp.length = 65535", EMP_MESSAGE)
    with pytest.raises(MalformedError, match="length"):
        emp.unpack_message(lengthened)


# IP and above


PACKETS: dict[str, Callable[[bytes], Packet]] = {
    "udp": lambda data: IP(src="10.0.0.1", dst="10.0.0.2") / UDP(sport=7, dport=8) / Raw(data),
    "tcp": lambda data: IP(src="10.0.0.1", dst="10.0.0.2") / TCP(sport=7, dport=8) / Raw(data),
    "icmp": lambda data: IP(src="10.0.0.1", dst="10.0.0.2") / ICMP() / Raw(data),
    "udp over ipv6": lambda data: IPv6(src="fd00::1", dst="fd00::2") / UDP(sport=7, dport=8) / Raw(data),
    "tcp over ipv6": lambda data: IPv6(src="fd00::1", dst="fd00::2") / TCP(sport=7, dport=8) / Raw(data),
    "icmpv6": lambda data: IPv6(src="fd00::1", dst="fd00::2") / ICMPv6EchoRequest(data=data),
    "options": lambda data: IP(src="10.0.0.1", dst="10.0.0.2", options=b"\1" * 4) / UDP(sport=7, dport=8) / Raw(data),
    "tagged": lambda data: Dot1Q(vlan=3) / IP(src="10.0.0.1", dst="10.0.0.2") / UDP(sport=7, dport=8) / Raw(data),
}


def with_scapy_checksums(frame: bytes) -> bytes:
    """Return the frame with all checksums computed by Scapy."""
    packet = Ether(frame)
    layer: Packet = packet
    while layer:
        for name in ("chksum", "cksum"):
            if name in layer.fields:
                delattr(layer, name)
        layer = layer.payload
    return bytes(packet)


@pytest.mark.parametrize("kind", PACKETS)
@settings(max_examples=60)
@given(data=st.binary(max_size=61), value=st.integers(0, 0xFFFF), padding=st.integers(0, 9))
def test_checksums_from_ip_to_tcp_equal_scapys(kind: str, data: bytes, value: int, padding: int) -> None:
    frame = bytes(Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02") / PACKETS[kind](data))
    rules = {
        "icmp": f"set icmp.seq = {value}, ip.ttl = {value & 255}",
        "icmpv6": f"set ipv6.hlim = {value & 255}, ipv6.dst = fd00::{value:x}",
        "udp over ipv6": f"set udp.sport = {value}, ipv6.src = fd00::{value:x}",
        "tcp over ipv6": f"set tcp.seq = {value}, ipv6.src = fd00::{value:x}",
        "tcp": f"set tcp.window = {value}, ip.src = 10.9.{value >> 8}.{value & 255}",
    }
    rule = rules.get(kind, f"set udp.dport = {value}, ip.dst = 10.9.{value >> 8}.{value & 255}")
    changed = delivered_frame(rule, frame + bytes(padding))
    assert changed[: len(frame)] == with_scapy_checksums(changed[: len(frame)])
    assert changed[len(frame) :] == bytes(padding)


def test_an_all_ones_sum_and_a_missing_sum_are_distinguished() -> None:
    """RFC 1071: the checksum of zeros is all ones, and that of a sum of all ones is zero."""
    assert internet_checksum(bytes(6)) == 0xFFFF
    assert internet_checksum(b"\xff\xff\0\0") == internet_checksum(b"\xff\xfe\0\x01") == 0
    assert internet_checksum(b"\x12") == 0xFFFF - 0x1200


def test_an_absent_udp_checksum_stays_absent_and_that_of_a_fragment_is_unchanged() -> None:
    without_checksum = udp(40_000, 53, b"data")
    assert without_checksum[40:42] == b"\0\0"
    assert delivered_frame("set udp.dport = 99", without_checksum)[40:42] == b"\0\0"
    first = bytes(Ether() / IP(flags="MF") / UDP(chksum=0x1234) / Raw(b"data"))
    assert delivered_frame("set udp.dport = 99", first)[40:42] == b"\x12\x34"


def test_fields_of_protocols_without_a_check_can_be_set() -> None:
    frame = bytes(Ether() / ARP(op=1))
    changed = Ether(delivered_frame("set arp.op = 2, arp.psrc = 10.0.0.9", frame))
    assert (changed[ARP].op, changed[ARP].psrc) == (2, "10.0.0.9")


# Corruption


def test_corruption_within_a_field_stays_within_it_and_corrects_the_check_on_request() -> None:
    delivered, log = deliver("corrupt 2 in emp.message mend-check", [EMP_MESSAGE] * 50)
    messages = {emp_message(frame).message for frame in delivered}
    assert all((message ^ 17).bit_count() == 2 for message in messages)
    assert len(messages) > 20, "the hash draws different bits for each frame"
    assert all(emp_message(frame)._replace(message=17) == emp_message(EMP_MESSAGE) for frame in delivered)
    assert all(26 * 8 <= position < 30 * 8 for record in log for position in record.fate.positions)


def test_corruption_keeps_the_check_by_default() -> None:
    for rule in ("corrupt in emp.message", "corrupt in emp.message keep-check", "corrupt 3"):
        with pytest.raises(MalformedError):
            emp.unpack_message(delivered_frame(rule, EMP_MESSAGE))
    changed = delivered_frame("corrupt 8 in emp.flags mend-check", EMP_MESSAGE)
    assert emp_message(changed).flags == 1 ^ 0xFF


def test_corruption_by_chance_skips_frames_changed_by_a_rule() -> None:
    delivered, log = deliver("set emp.tag = 7", [EMP_MESSAGE] * 20, Impairment(corrupt=1.0))
    assert {emp_message(frame).tag for frame in delivered} == {7}
    assert {record.cause for record in log} == {"rule"}


# Matching, and rejected changes


def test_a_rule_that_sets_a_field_matches_and_counts_the_frames_that_have_it() -> None:
    frames = [EMP_ACK, EMP_MESSAGE, EMP_ACK, EMP_MESSAGE, udp()]
    delivered, log = deliver("set emp.tag = 7 nth(2)", frames)
    assert [old == new for old, new in zip(frames, delivered, strict=True)] == [True, True, True, False, True]
    assert len(log) == 1


def test_a_rule_in_python_sets_the_fields_that_a_frame_has() -> None:
    def fault(view: FrameView) -> Fate:
        return set_fields({"emp.frame": 9, "emp.tag": 7}) if view.n == 1 else DROP

    delivered, log = deliver(fault, [EMP_MESSAGE, EMP_ACK, udp()])
    message = emp_message(delivered[0])
    assert (message.frame, message.tag) == (9, 7)
    assert emp_frame(delivered[1]).frame == 9
    assert delivered[2] == udp()
    assert [record.fate.sets for record in log] == [(("emp.frame", 9), ("emp.tag", 7)), (("emp.frame", 9),)]


@pytest.mark.parametrize(
    ("rule", "marked", "words"),
    [
        ("set emp.tga = 7", "emp.tga", "no field is called 'emp.tga' — did you mean 'emp.tag'?"),
        ("set emp = 7", "emp", "emp is a header: name a field of it"),
        ("set emp.tag = 4294967296", "4294967296", "emp.tag: at most 4,294,967,295 (0xffffffff)"),
        ("set vlan.id = 4096", "4096", "vlan.id: at most 4,095"),
        ("set emp.type = ACKK", "ACKK", "one of MESSAGE, DATA, ACK — did you mean 'ACK'?"),
        ("set ip.src = 10.0.0.0/8", "10.0.0.0/8", "ip.src is set to one address"),
        ("set eth.dst = 7", "7", "eth.dst is a hardware address"),
        ("set frame.len = 9", "frame.len", "it cannot be changed"),
        ("set emp.check = 9", "emp.check", "it can be changed with keep-check only"),
        ("set udp.chksum = 9", "udp.chksum", "it can be changed with keep-check only"),
        ("corrupt in emp.check mend-check", "emp.check", "it can be changed with keep-check only"),
        ("corrupt 9 in emp.flags", "emp.flags", "9 bits of emp.flags cannot be flipped: it has 8"),
        ("set arp.op = 2 mend-check", "mend-check", "arp has no check to recompute"),
        ("set emp.tag = 7 keep-chek", "keep-chek", "expected mend-check or keep-check — did you mean 'keep-check'?"),
        ("set emp.tag == 7", "==", "found '==', expected '='"),
        ("set emp.tag = 7, emp.tag = 8", "emp.tag", "emp.tag is set twice"),
    ],
)
def test_an_impossible_change_is_rejected_with_its_column(rule: str, marked: str, words: str) -> None:
    with pytest.raises(RuleError) as caught:
        deliver(rule, [])
    assert words in str(caught.value)
    assert rule[caught.value.column - 1 :].startswith(marked)


def test_changes_in_logs_and_fates_are_validated() -> None:
    _, log = deliver("set emp.tag = 7", [EMP_MESSAGE])
    wrong_records = [Record.from_line(log[0].to_line().replace("emp.tag", name)) for name in ("emp.tga", "emp.check")]
    for record, message in zip(wrong_records, ("did you mean 'emp.tag'", "keep-check only"), strict=True):
        with pytest.raises(ChangeError, match=message):
            deliver(Replay([record]), [])
    for fate in (set_fields({"emp.flags": 256}), set_fields({"emp.flags": -1}), corrupt(9, "emp.flags")):
        with pytest.raises(ChangeError, match=r"emp\.flags"):
            deliver(lambda _, fate=fate: fate, [EMP_MESSAGE])
    with pytest.raises(ValueError, match="at least one field to set"):
        set_fields({})


# The log


@pytest.mark.parametrize(
    "rule",
    [
        "set emp.tag = 7, emp.flags.last = 0 every(3)",
        "set emp.tag = 7 keep-check",
        "corrupt 3 in emp.tag mend-check every(2)",
        "corrupt 2 mend-check",
    ],
)
def test_the_log_replays_the_changed_bytes_without_the_rule(rule: str) -> None:
    frames = [EMP_MESSAGE, EMP_ACK] * 30
    delivered, log = deliver(rule, frames, Impairment(corrupt=0.3, duplicate=0.2))
    assert delivered != frames
    replayed, replay_log = deliver(Replay(Record.from_line(record.to_line()) for record in log), frames)
    assert replayed == delivered
    assert sum(bool(record.fate.sets) for record in replay_log) == sum(bool(record.fate.sets) for record in log)


def test_the_log_describes_the_changes_in_words() -> None:
    _, (record,) = deliver("set emp.tag = 0x1234", [EMP_MESSAGE])
    assert record.describe().startswith("emp.tag set to 0x1234 and its checks mended by rule 'set emp.tag = 0x1234'")
    assert '"fate": {"sets": [["emp.tag", 4660]], "mend": true}' in record.to_line()


@given(random=st.binary(max_size=90))
def test_correcting_the_checks_of_random_bytes_neither_fails_nor_changes_their_length(random: bytes) -> None:
    for kind in (b"\x88\xb5", b"\x88\xb6\0\4", b"\x88\xb6\0\5", b"\x88\xb6\x81", b"\x08\0\x45", b"\x86\xdd\x60"):
        frame = N2 + N1 + kind + random
        assert len(mend_checks(known_fields(), frame)) == len(frame)


def test_a_protocol_without_a_function_for_its_check_is_rejected() -> None:
    fields = standard_fields()
    with pytest.raises(ValueError, match="its check 'sum' must be one of its fields"):
        fields.register("mine", 0x9999, {"sum": (0, 2)}, check="sum")
    fields.register("mine", 0x9999, {"sum": (0, 2), "kind": (2, 1)}, check="sum", mended=lambda frame, _: frame)
    assert fields.copy().checks()["mine.sum"] == "mine"

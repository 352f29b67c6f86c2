"""Fields and flows of frames with a source route, of which each switch removes a byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.fabric.direction import LinkDirection
from testbed.fates.flows import Classifier, Flows, flow_of
from testbed.fates.header_fields import MAX_HOPS, Fields, locate
from testbed.fates.headers import standard_fields
from testbed.fates.rules import RuleSet
from testbed.fates.stage import NO_IMPAIRMENT, FateOptions

ETHERTYPE = 0x88B7
MACS = bytes.fromhex("020000000002020000000001")
HEAD = MACS + ETHERTYPE.to_bytes(2, "big")

routes = st.lists(st.integers(0x80, 0xFF), max_size=MAX_HOPS).map(bytes)


def routed_fields() -> Fields:
    fields = standard_fields()
    offsets = {"type": (0, 2), "channel": (2, 1, 0x0F), "credit": (4, 2, 0, [("type", 5)])}
    fields.register("wormhole", ETHERTYPE, offsets, flow=["channel", "type"], routed=True)
    return fields


FIELDS = routed_fields()


@given(routes)
def test_a_field_is_found_behind_a_route_of_any_length(route: bytes) -> None:
    frame = HEAD + route + bytes.fromhex("0005 37 00 0102")
    for name, expected in (("type", 5), ("channel", 7), ("credit", 0x0102)):
        assert FIELDS.reader(f"wormhole.{name}")(frame, locate(frame)) == expected
    other_frame = HEAD + route + bytes.fromhex("0004 37 00 0102")
    assert FIELDS.reader("wormhole.credit")(other_frame, locate(other_frame)) == -1
    assert FIELDS.reader("eth.src")(frame, locate(frame)) == 0x020000000001


@given(routes, st.integers(0, 3))
def test_a_frame_that_ends_within_its_header_or_its_route_has_no_field(route: bytes, header_bytes: int) -> None:
    frame = HEAD + route + bytes.fromhex("0004 37")[:header_bytes]
    assert FIELDS.reader("wormhole.type")(frame, locate(frame)) == (4 if header_bytes >= 2 else -1)
    assert FIELDS.reader("wormhole.channel")(frame, locate(frame)) == (7 if header_bytes == 3 else -1)


@given(st.lists(st.tuples(routes, st.binary(max_size=6).map(lambda rest: bytes(byte & 0x7F for byte in rest)))))
def test_the_flow_of_a_frame_does_not_depend_on_its_remaining_route(frames: list[tuple[bytes, bytes]]) -> None:
    flows, readers = Flows(1, Classifier(FIELDS)), FIELDS.flow_readers()
    for route, rest in frames:
        unrouted = flow_of(HEAD + rest, readers)
        number, _ = flows.count(HEAD + rest)
        before = number.n
        number, located = flows.count(HEAD + route + rest)
        assert (number.flow, number.n) == (unrouted, before + 1)
        assert located == locate(HEAD)


def test_a_rule_drops_the_second_frame_of_a_type_on_a_link_in_the_middle() -> None:
    rules = RuleSet(FIELDS)
    wire = LinkDirection("s1:1--s2:1", "forward", NO_IMPAIRMENT, FateOptions(seed=1, rules=rules))
    rules.add(0, "drop wormhole.type == 4 and nth(2)")
    outcomes = [
        wire.offer(now, HEAD + route + kind + bytes(20)).value
        for now, (route, kind) in enumerate(
            [(b"\x82\x83", b"\0\4"), (b"\x82", b"\0\5"), (b"", b"\0\4"), (b"\x80", b"\0\4")]
        )
    ]
    assert outcomes == ["accepted", "accepted", "rule", "accepted"]


@pytest.mark.parametrize("routed", [True, False])
def test_only_source_routed_protocols_are_searched_behind_a_route(routed: bool) -> None:
    fields = standard_fields()
    fields.register("mine", ETHERTYPE, {"type": (0, 1)}, flow=["type"], routed=routed)
    frame = HEAD + b"\x81\x04"
    assert fields.reader("mine.type")(frame, locate(frame)) == (4 if routed else 0x81)
    assert flow_of(frame, fields.flow_readers()).key == ((4,) if routed else (0x81,))

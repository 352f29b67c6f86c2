"""Protocols that share an EtherType, distinguished by the first bytes of their headers."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.fabric.direction import LinkDirection
from testbed.fates.flows import Classifier, Flows, flow_of
from testbed.fates.header_fields import Fields, locate
from testbed.fates.headers import standard_fields
from testbed.fates.rules import Rule, RuleSet
from testbed.fates.stage import NO_IMPAIRMENT, FateOptions
from testbed.fates.tokens import RuleError

ETHERTYPE = 0x88B7
HEAD = bytes.fromhex("020000000002020000000001") + ETHERTYPE.to_bytes(2, "big")
KINDS = {"kind": {1: "DATA", 2: "ACK"}}


def shared_fields(routed: bool = True, common: tuple[str, ...] = ()) -> Fields:
    """Return the fields of two protocols with packet types of their own, and of one for all packet types."""
    fields = standard_fields()
    offsets = {"kind": (2, 1), "channel": (3, 1)}
    flow = ["kind", "channel"]
    fields.register("mine", ETHERTYPE, offsets, flow, routed=routed, begins=b"\0\4", names=KINDS)
    fields.register("other", ETHERTYPE, {"kind": (2, 1)}, ["kind"], routed=routed, begins=b"\0\5")
    fields.register("all", ETHERTYPE, {"type": (0, 2)}, common, routed=routed)
    return fields


@pytest.mark.parametrize("route", [b"", b"\x81", b"\xbf\x80\x81"])
def test_a_header_is_found_only_at_the_offset_that_its_protocol_defines(route: bytes) -> None:
    fields = shared_fields()
    headers = {}
    for begins in (b"\0\4", b"\0\5", b"\0\6", b"\0"):
        frame = HEAD + route + begins + b"\2\7"
        located = locate(frame)
        names = ("mine", "other", "all")
        headers[begins] = [name for name in names if fields.presence(name)(frame, located) >= 0]
        values = [fields.reader(f"{name}.kind")(frame, located) for name in ("mine", "other")]
        assert values == [2 if name in headers[begins] else -1 for name in ("mine", "other")]
        if begins != b"\0":
            assert fields.reader("all.type")(frame, located) == begins[1]
    assert headers == {b"\0\4": ["mine", "all"], b"\0\5": ["other", "all"], b"\0\6": ["all"], b"\0": ["all"]}


@pytest.mark.parametrize(("common", "unclaimed"), [((), ()), (("type",), (6,))])
def test_flows_are_distinguished_by_the_headers_begin_and_then_by_their_protocols_key(
    common: tuple[str, ...], unclaimed: tuple[int, ...]
) -> None:
    readers = shared_fields(common=common).flow_readers()
    keys = [flow_of(HEAD + b"\x81" + begins + b"\2\7", readers).key for begins in (b"\0\4", b"\0\5", b"\0\6")]
    assert keys == [(4, 2, 7), (5, 2), unclaimed]
    assert flow_of(HEAD + b"\x81\0\4", readers).key == (4, 0, 0)  # the frame is truncated


@given(
    st.booleans(),
    st.sampled_from([(), ("type",)]),
    st.lists(
        st.tuples(
            st.lists(st.integers(0x80, 0xFF), max_size=3).map(bytes),
            st.sampled_from([b"\0\4", b"\0\5", b"\0\6", b"\0", b""]),
            st.binary(max_size=3).map(lambda rest: bytes(byte & 3 for byte in rest)),
        )
    ),
)
def test_cached_and_uncached_flow_lookups_agree(
    routed: bool, common: tuple[str, ...], frames: list[tuple[bytes, bytes, bytes]]
) -> None:
    fields = shared_fields(routed, common)
    flows, readers = Flows(1, Classifier(fields)), fields.flow_readers()
    for route, begins, rest in frames:
        frame = HEAD + route + begins + rest
        for _ in range(2):  # the second lookup is cached
            number, located = flows.count(frame)
            assert (number.flow, located) == (flow_of(frame, readers), locate(frame))


def test_a_rule_may_use_names_of_values_and_matches_only_that_protocol() -> None:
    rules = RuleSet(shared_fields())
    wire = LinkDirection("l", "forward", NO_IMPAIRMENT, FateOptions(seed=1, rules=rules))
    rules.add(0, "drop mine.kind == ACK and nth(2)")
    frames = [b"\0\4\2", b"\0\5\2", b"\0\4\1", b"\0\4\2"]
    outcomes = [wire.offer(now, HEAD + b"\x81" + frame + bytes(20)).value for now, frame in enumerate(frames)]
    assert outcomes == ["accepted", "accepted", "accepted", "rule"]


def test_an_unknown_name_of_a_value_is_an_error_with_the_known_names() -> None:
    fields = shared_fields()
    assert Rule.parse("drop mine.kind in (ACK, 1)", fields) is not None
    with pytest.raises(RuleError, match=re.escape("a number (mine.kind), or one of DATA, ACK — did you mean 'ACK'?")):
        Rule.parse("drop mine.kind == akc", fields)
    with pytest.raises(RuleError, match=re.escape("expected a number (mine.channel)\n")):
        Rule.parse("drop mine.channel == ACK", fields)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"begins": b"\0\4"}, "it: mine has the number 0x88b7, too: both begin with 0x0004"),
        ({}, "it: all has the number 0x88b7, too: neither has BEGINS"),
        (
            {"begins": b"\4"},
            "it: mine has the number 0x88b7, too: their BEGINS must have equal lengths, got 1 and 2 bytes",
        ),
        ({"begins": b"\0\7", "routed": False}, "one follows a source route, the other does not"),
    ],
)
def test_indistinguishable_protocols_are_rejected(options: dict[str, object], reason: str) -> None:
    fields = shared_fields()
    with pytest.raises(ValueError, match=re.escape(reason)):
        fields.register("it", ETHERTYPE, {"a": (2, 1)}, **{"routed": True, **options})
    assert "it" not in fields.headers()
    fields.register("it", ETHERTYPE, {"a": (2, 1)}, ["a"], routed=True, begins=b"\0\7")
    assert flow_of(HEAD + b"\0\7\3", fields.flow_readers()).key == (7, 3)

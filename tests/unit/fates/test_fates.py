"""A fate depends only on seed, link, direction, flow and number."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import defaultdict
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.fabric.direction import LinkDirection
from testbed.fates import fate_hash
from testbed.fates.flows import Classifier, Flow, Flows, flow_of
from testbed.fates.header_fields import locate
from testbed.fates.headers import standard_fields
from testbed.fates.records import Fate, Record
from testbed.fates.rules import RuleSet
from testbed.fates.stage import FateOptions, restarts
from testbed.spec.layout import Impairment
from tests.unit.fates.wire_frames import (
    LINK,
    MICROSECOND,
    MILLISECOND,
    A,
    B,
    C,
    direction,
    ethernet,
    fates_of,
    ipv4,
    ipv6,
    numbered,
    ports,
    run_schedule,
    tagged,
    tcp,
    udp,
)

CHANCES = Impairment(
    delay=MILLISECOND,
    jitter=100 * MICROSECOND,
    distribution="normal",
    loss=0.2,
    corrupt=0.2,
    duplicate=0.2,
    reorder=0.2,
)
KINDS = [
    udp(destination=53),
    udp(destination=5001),
    udp(destination=5001, macs=(C, B)),
    tcp(destination=5001),
    ethernet(b"0123"),
    ethernet(b"0123", ethertype=0x88B6),
]


def by_flow(log: list[Record]) -> dict[Flow, set[tuple[int, str, Fate]]]:
    fates: dict[Flow, set[tuple[int, str, Fate]]] = defaultdict(set)
    for record in log:
        fates[record.flow].add((record.n, record.cause, record.fate))
    return fates


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from(KINDS), min_size=30, max_size=80),
    st.randoms(use_true_random=False),
    st.lists(st.integers(0, 3 * MILLISECOND), min_size=80, max_size=80),
    st.integers(0, 2**63 - 1),
)
def test_the_fates_of_a_flow_do_not_depend_on_timing_or_other_flows(
    frames: list[bytes], shuffle: object, gaps: list[int], seed: int
) -> None:
    regular = [(index * MILLISECOND, frame) for index, frame in enumerate(frames)]
    _, expected = fates_of(CHANCES, regular, seed=seed)
    shuffled = list(frames)
    shuffle.shuffle(shuffled)  # type: ignore[attr-defined]
    now, irregular = 0, []
    for gap, frame in zip(gaps, shuffled, strict=False):
        now += gap
        irregular.append((now, frame))
    _, delayed_log = fates_of(replace(CHANCES, rate=10**7, queue=3000), irregular, seed=seed)
    assert by_flow(delayed_log) == by_flow(expected)
    one_flow = [(index, frame) for index, frame in enumerate(frames) if frame is KINDS[0]]
    _, one_flow_log = fates_of(CHANCES, one_flow, seed=seed)
    flow = flow_of(KINDS[0], {})
    assert by_flow(one_flow_log)[flow] == by_flow(expected)[flow]


def test_the_fates_of_a_direction_do_not_depend_on_other_directions() -> None:
    schedule = [(index, frame) for index, frame in enumerate(KINDS * 40)]
    rules = RuleSet(standard_fields())
    log: list[Record] = []
    wires = [
        LinkDirection(link, way_name, CHANCES, FateOptions(seed=5, rules=rules, log=log.append))
        for link in (LINK, "n2:eth0--s1:2", "n10:eth0--s1:10")
        for way_name in ("forward", "backward")
    ]
    for now, frame in schedule:
        for wire in wires:
            wire.offer(now, frame)
    _, alone_log = fates_of(CHANCES, schedule, seed=5)
    assert [record for record in log if (record.link, record.direction) == (LINK, "forward")] == alone_log
    fates_by_direction = {(record.link, record.direction): set() for record in log}
    for record in log:
        fates_by_direction[record.link, record.direction].add((record.flow, record.n, record.cause))
    assert len(fates_by_direction) == 6
    assert len({frozenset(fates) for fates in fates_by_direction.values()}) == 6


def test_fates_do_not_depend_on_content_so_that_a_retransmission_has_another_fate() -> None:
    equal_frames = [(index, numbered(1)) for index in range(200)]
    different = [(index, numbered(index, 60 + index)) for index in range(200)]
    losses = Impairment(loss=0.3)
    _, equal_log = fates_of(losses, equal_frames)
    _, second = fates_of(losses, different)
    assert equal_log == second
    assert 20 < len(equal_log) < 100


def test_fates_depend_on_the_seed() -> None:
    schedule = [(index, numbered(1)) for index in range(200)]
    assert fates_of(CHANCES, schedule, seed=1)[1] != fates_of(CHANCES, schedule, seed=2)[1]


ROOT = Path(__file__).parents[3]

SCRIPT = """
from tests.unit.fates.test_fates import CHANCES, KINDS
from tests.unit.fates.wire_frames import fates_of
delivered, log = fates_of(CHANCES, [(1000 * place, frame) for place, frame in enumerate(KINDS * 20)], seed=9)
for record in log:
    print(record.to_line())
for due, frame in delivered:
    print(due, frame.hex())
"""


def test_fates_do_not_depend_on_the_process_or_pythons_hash_seed() -> None:
    outputs = set()
    for hash_seed in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", SCRIPT]
        outputs.add(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)
    assert len(outputs) == 1
    assert len(outputs.pop().splitlines()) > 100


def test_losses_are_computed_by_the_documented_hash() -> None:
    schedule = [(index, tcp(destination=5001)) for index in range(500)]
    _, log = fates_of(Impairment(loss=0.05), schedule, seed=1)
    key = fate_hash.flow_key(fate_hash.direction_key(1, LINK, "forward"), 0x0800, B, A, (6, 5001))
    start, limit = fate_hash.absorb(key, fate_hash.LOSS), fate_hash.threshold(0.05)
    assert [record.n for record in log] == [n for n in range(1, 501) if fate_hash.draw(start, n) >> 11 < limit]


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        (ethernet(b"x"), Flow(0x88B5, B, A)),
        (ethernet(b"x", source=C), Flow(0x88B5, B, C)),
        (tcp(40_000, 5001), Flow(0x0800, B, A, (6, 5001))),
        (tcp(5001, 40_000), Flow(0x0800, B, A, (6, 5001))),
        (udp(40_000, 53), Flow(0x0800, B, A, (17, 53))),
        (udp(40_000, 53, options=bytes(8)), Flow(0x0800, B, A, (17, 53))),
        (udp(40_000, 53, offset=0x2000), Flow(0x0800, B, A, (17, 53))),
        (udp(40_000, 53, offset=0x0001), Flow(0x0800, B, A, (17, 0))),
        (ipv4(b"\x08\0abcd", 1), Flow(0x0800, B, A, (1, 0))),
        (ipv4(b"", 17), Flow(0x0800, B, A, (17, 0))),
        (ipv6(ports(40_000, 53), 17), Flow(0x86DD, B, A, (17, 53))),
        (ipv6(ports(40_000, 53), 44), Flow(0x86DD, B, A, (44, 0))),
        (tagged(udp(40_000, 53), 7), Flow(0x0800, B, A, (17, 53))),
        (tagged(tagged(udp(40_000, 53), 7), 8, tag=0x88A8), Flow(0x0800, B, A, (17, 53))),
        (ethernet(bytes(46), ethertype=46), Flow(0, B, A)),
        (ethernet(b"", ethertype=0x0800), Flow(0x0800, B, A, (0, 0))),
        (b"\x02\0\0\0\0\x02\x02", Flow(0, B, 0x020000000000)),
        (b"", Flow(0, 0, 0)),
    ],
)
def test_a_flow_is_the_ethertype_the_macs_and_the_protocols_key(frame: bytes, expected: Flow) -> None:
    assert flow_of(frame, {}) == expected
    # The second frame is found by the cached lookup.
    _, log = fates_of(Impairment(loss=1.0), [(0, frame), (1, frame)])
    assert [(record.flow, record.n) for record in log] == [(expected, 1), (expected, 2)]


@given(st.lists(st.sampled_from([bytes(60), *KINDS]).flatmap(
    lambda frame: st.tuples(st.just(frame), st.integers(0, 59), st.integers(0, 255))), max_size=40))  # fmt: skip
def test_cached_and_uncached_flow_lookups_agree(edits: list[tuple[bytes, int, int]]) -> None:
    frames = []
    for frame, place, value in edits:
        frame_bytes = bytearray(frame)
        frame_bytes[min(place, len(frame) - 1)] = value
        frames.append(bytes(frame_bytes[: value or None]))
    _, log = fates_of(Impairment(loss=1.0), [(0, frame) for frame in frames * 2])
    assert [record.flow for record in log] == [flow_of(frame, {}) for frame in frames * 2]


def test_a_protocol_declares_its_flow_key_fields() -> None:
    fields = standard_fields()
    fields.register("emp", 0x88B5, {"type": (0, 1), "id": (2, 2, 0, [("type", 3)])}, flow=["type", "id"])
    frames = [ethernet(bytes([kind, 0, 0, 9])) for kind in (3, 4, 3)]
    _, log = fates_of(Impairment(loss=1.0), [(0, frame) for frame in frames], fields=fields)
    assert [(record.flow.key, record.n) for record in log] == [((3, 9), 1), ((4, 0), 1), ((3, 9), 2)]


def test_counting_restarts_when_the_fate_parameters_are_set() -> None:
    log: list[Record] = []
    wire = direction(Impairment(loss=1.0), log=log.append)
    run_schedule(wire, [(0, numbered(1)), (0, numbered(2))])
    wire.change(1, Impairment(loss=1.0, delay=MILLISECOND, rate=10**9, queue=10**6))
    run_schedule(wire, [(1, numbered(3))])
    wire.change(2, Impairment(loss=0.999999999))
    run_schedule(wire, [(2, numbered(4))])
    assert [(record.epoch, record.n) for record in log] == [(0, 1), (0, 2), (0, 3), (1, 1)]
    assert not restarts(Impairment(loss=0.1), Impairment(loss=0.1, delay=5, rate=10**9))
    assert restarts(Impairment(loss=0.1), Impairment(loss=0.1, gemodel=(0.1, 0.3, 1.0, 0.0)))


def test_a_record_survives_writing_and_reading() -> None:
    _, log = fates_of(CHANCES, [(index, frame) for index, frame in enumerate(KINDS * 20)])
    assert {record.cause for record in log} == {"loss", "corrupt", "duplicate", "reorder"}
    assert [Record.from_line(record.to_line()) for record in log] == log
    for broken in ("", "{}", "[]", "null", log[0].to_line().replace('"n"', '"m"'), '{"flow": 3}'):
        with pytest.raises(ValueError, match="not a record"):
            Record.from_line(broken)


def test_cached_and_uncached_reads_of_a_flow_key_agree() -> None:
    """Only bytes of the flow key within its masks distinguish flows; a truncated field counts as 0."""
    fields = standard_fields()
    fields.register("tiny", 0x88B5, {"kind": (1, 1), "way": (2, 2, 0x0FF0)}, ("kind", "way"))
    readers = fields.flow_readers()
    flows = Flows(1, Classifier(fields))
    rng = random.Random("cached and uncached")
    for _ in range(2000):
        ethertype = bytes.fromhex(rng.choice(("88b5", "8100000788b5", "88b6")))
        rest = bytes(rng.choice((0, 1, 0x10, 0xFF)) for _ in range(rng.randrange(8)))
        frame = bytes.fromhex("020000000002020000000001") + ethertype + rest
        number, located = flows.count(frame)
        assert (number.flow, located) == (flow_of(frame, readers), locate(frame))
        assert flows.count(frame)[0] is flows.count(frame)[0]


@settings(max_examples=60)
@given(st.lists(st.sampled_from(KINDS), max_size=120), st.integers(0, 2**63 - 1))
def test_the_fast_path_of_losses_equals_the_general_path(frames: list[bytes], seed: int) -> None:
    schedule = list(enumerate(frames))
    _, fast_log = fates_of(Impairment(loss=0.3), schedule, seed=seed)
    assert fates_of(Impairment(loss=0.3, duplicate=1e-18), schedule, seed=seed)[1] == fast_log
    # The first frame of a flow is drawn without a cached start of its stream, later ones with it.
    expected = []
    counts: dict[Flow, int] = defaultdict(int)
    for frame in frames:
        flow = flow_of(frame, {})
        counts[flow] += 1
        key = fate_hash.flow_key(fate_hash.direction_key(seed, LINK, "forward"), *flow)
        if fate_hash.draw(fate_hash.absorb(key, fate_hash.LOSS), counts[flow]) >> 11 < fate_hash.threshold(0.3):
            expected.append((flow, counts[flow]))
    assert [(record.flow, record.n) for record in fast_log] == expected


def test_a_flow_does_not_depend_on_preceding_headers() -> None:
    """VLAN tags and IP options shift the headers, so that offsets are located in each frame."""
    fields = standard_fields()
    fields.register("far", 0x88B5, {"kind": (30, 1)}, ("kind",))
    readers = fields.flow_readers()
    flows = Flows(1, Classifier(fields))
    macs, tag = bytes.fromhex("020000000002020000000001"), bytes.fromhex("81000007")
    ports = bytes.fromhex("0fa0c350")
    untagged = bytes.fromhex("0800") + b"\x45" + bytes(8) + b"\x11" + bytes(10) + ports + bytes(20)
    options = bytes.fromhex("0800") + b"\x46" + bytes(8) + b"\x11" + bytes(14) + ports + bytes(20)
    own_headers = [bytes.fromhex("88b5") + bytes(30) + bytes([kind]) for kind in (1, 2)]
    counts: dict[Flow, int] = defaultdict(int)
    for _ in range(3):
        for headers in (
            untagged,
            tag + untagged,
            options,
            tag + options,
            *own_headers,
            tag + own_headers[0],
            tag + own_headers[1],
        ):
            number, located = flows.count(macs + headers)
            counts[number.flow] += 1
            assert (number.flow, located) == (flow_of(macs + headers, readers), locate(macs + headers))
            assert number.n == counts[number.flow]
    assert sorted(counts.values()) == [6, 6, 12]


def test_a_flow_does_not_depend_on_its_first_frame() -> None:
    """Frames with and without a tag, and with different bits outside the key, are one flow in any order."""
    fields = standard_fields()
    fields.register("near", 0x88B5, {"kind": (1, 1, 0x0F)}, ("kind",))
    readers = fields.flow_readers()
    pairs = [bytes.fromhex(text) for text in ("020000000002020000000001", "020000000001020000000002")]
    rests = [bytes.fromhex(text) for text in ("8100000788b50003", "88b50003", "88b50193", "88b5")]
    for order in permutations(rests):
        classifier = Classifier(fields)
        cached_flows = {
            (pair, flow_of(pair + headers, readers)): classifier.find(pair + headers)[0]
            for pair in pairs
            for headers in order
        }
        assert len({id(known_flow) for known_flow in cached_flows.values()}) == len(cached_flows) == 4
        for pair in pairs:
            for headers in order:
                flow = flow_of(pair + headers, readers)
                assert classifier.find(pair + headers) == (cached_flows[pair, flow], locate(pair + headers))
                assert cached_flows[pair, flow].flow == flow


def test_directions_that_share_a_classifier_count_and_draw_separately() -> None:
    classifier = Classifier(standard_fields())
    schedule = [(now, KINDS[now % len(KINDS)]) for now in range(200)]
    separate = [fates_of(Impairment(loss=0.3), schedule, link=link)[1] for link in ("a--b", "b--c")]
    shared_logs: list[list[Record]] = [[], []]
    wires = [
        direction(Impairment(loss=0.3), link=link, log=log.append, classifier=classifier)
        for link, log in zip(("a--b", "b--c"), shared_logs, strict=True)
    ]
    for now, frame in schedule:
        for wire in wires:
            wire.offer(now, frame)
    assert shared_logs == separate
    assert separate[0] != separate[1]


def test_flows_outlive_their_cache_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("testbed.fates.flows.MAX_CACHED", 2)
    _, log = fates_of(Impairment(loss=1.0), list(enumerate(KINDS * 3)))
    assert [record.n for record in log] == [n for n in (1, 2, 3) for _ in KINDS]

"""GSO frames on a link direction: when they stay unsegmented, and how they are counted."""

from __future__ import annotations

import pytest

from testbed.fates.headers import standard_fields
from testbed.fates.records import Record
from testbed.fates.rules import RuleSet
from testbed.spec.layout import Impairment
from tests.unit.fates.wire_frames import LINK, MILLISECOND, direction, number_of, numbered, run_schedule, tcp

GSO_FRAME = tcp(data=bytes(4000))
SEGMENT = tcp(data=bytes(100))


def offer_and_count(as_gso: bool, *, rules: bool) -> tuple[list[tuple[int, int]], dict[str, int], list[Record]]:
    """Offer three segments, singly or as a GSO frame, and a fourth; then three more, of which a rule drops the second."""
    log: list[Record] = []
    rule_set = RuleSet(standard_fields()) if rules else None
    wire = direction(Impairment(delay=MILLISECOND), rules=rule_set, log=log.append)
    outcomes = []
    if as_gso:
        wire.offer_gso(0, GSO_FRAME, 3)
    else:
        for _ in range(3):
            wire.offer(0, SEGMENT)
    outcomes.append((0, wire.in_flight))
    wire.offer(5, SEGMENT)
    while wire.deadline is not None:
        now = wire.deadline
        for _, frame in wire.poll(now):
            if frame is GSO_FRAME:
                wire.count_gso(3, 3 * len(SEGMENT) - len(GSO_FRAME))
        outcomes.append((now, wire.in_flight))
    if rule_set is not None:
        rule_set.add(10, "drop nth(2)")
        for _ in range(3):
            wire.offer(2 * MILLISECOND, SEGMENT)
        wire.poll(3 * MILLISECOND)
    return outcomes, wire.counters.by_name(), log


@pytest.mark.parametrize("rules", [False, True])
def test_a_gso_frame_counts_as_its_segments(rules: bool) -> None:
    assert offer_and_count(True, rules=rules) == offer_and_count(False, rules=rules)


def test_segments_of_a_gso_frame_are_numbered_in_their_flow() -> None:
    _, _, log = offer_and_count(True, rules=True)
    assert [record.n for record in log] == [6]


def test_a_gso_frame_arrives_unsegmented_after_the_delay_and_in_order() -> None:
    wire = direction(Impairment(delay=MILLISECOND))
    wire.offer(0, numbered(1))
    wire.offer_gso(10, GSO_FRAME, 3)
    wire.offer(20, numbered(2))
    first, gso_frame, last = run_schedule(wire, [])
    assert gso_frame == (MILLISECOND + 10, GSO_FRAME)
    assert [number_of(frame) for _, frame in (first, last)] == [1, 2]


@pytest.mark.parametrize("impairment", [Impairment(), Impairment(delay=MILLISECOND)], ids=["unimpaired", "delay"])
def test_gso_frames_stay_unsegmented_if_all_segments_have_equal_fates(impairment: Impairment) -> None:
    assert direction(impairment).carries_gso
    assert direction(impairment, rules=RuleSet(standard_fields())).carries_gso


@pytest.mark.parametrize(
    "impairment",
    [
        {"loss": 0.01}, {"corrupt": 0.01}, {"duplicate": 0.01}, {"delay": 1, "reorder": 0.01},
        {"gemodel": (0.1, 0.1, 1.0, 0.0)}, {"loss_pattern": "1-2"}, {"rate": 10**9}, {"rate": 10**9, "overhead": 24},
        {"delay": 2, "jitter": 1, "distribution": "uniform"}, {"rate_trace": "trace"}, {"rules": ("drop udp",)},
    ],
    ids=lambda keys: " ".join(keys),
)  # fmt: skip
def test_gso_frames_are_segmented_if_each_segment_has_a_fate(impairment: dict[str, object]) -> None:
    wire = direction(Impairment(**impairment), files={"trace": "1\n2\n"})  # type: ignore[arg-type]
    assert not wire.carries_gso
    wire.change(0, Impairment(delay=MILLISECOND))
    assert wire.carries_gso
    wire.change(0, Impairment(**impairment), files={"trace": "1\n2\n"})  # type: ignore[arg-type]
    assert not wire.carries_gso


def test_a_rule_of_the_link_forces_segmentation_until_it_is_lifted() -> None:
    rules = RuleSet(standard_fields())
    wire = direction(Impairment(delay=MILLISECOND), rules=rules)
    rules.add(0, 'drop link == "other"')
    assert wire.carries_gso
    rule = rules.add(0, f'drop link == "{LINK}" and nth(3)')
    assert not wire.carries_gso
    rule.lift()
    assert wire.carries_gso

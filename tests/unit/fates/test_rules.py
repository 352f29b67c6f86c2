"""Rules in force: precedence, counting of frames, lifting, and the report of idle rules."""

from __future__ import annotations

import pytest

from testbed.fabric.direction import LinkDirection
from testbed.fates.fate_counters import Outcome
from testbed.fates.headers import standard_fields
from testbed.fates.records import DROP, DUPLICATE, PASS, Fate, Record, corrupt, delay
from testbed.fates.rules import FrameView, Rule, RuleSet
from testbed.fates.stage import NO_IMPAIRMENT, FateOptions
from testbed.fates.tokens import RuleError
from testbed.spec.layout import Impairment
from tests.unit.fates.wire_frames import (
    LINK,
    MILLISECOND,
    SECOND,
    C,
    direction,
    ethernet,
    number_of,
    numbered,
    run_schedule,
    tcp,
    udp,
)


@pytest.fixture
def rules() -> RuleSet:
    return RuleSet(standard_fields())


def dropped_numbers(rules: RuleSet, frames: list[bytes], impairment: Impairment | None = None) -> list[int]:
    """Return the numbers, from 1, of the frames that a rule drops."""
    wire = direction(impairment or Impairment(), rules=rules)
    return [number for number, frame in enumerate(frames, 1) if wire.offer(number, frame) is Outcome.RULE]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("drop nth(3)", [3]),
        ("drop every(3)", [3, 6, 9]),
        ("drop first(2)", [1, 2]),
        ("drop between(2, 4)", [2, 3, 4]),
        ("drop every(2) and first(5)", [2, 4]),
        ("drop udp and nth(2)", [4]),
        ("drop nth(2) and udp", [4]),
        ("drop udp", [2, 4, 6, 8, 10]),
    ],
)
def test_a_count_counts_the_frames_that_the_rest_of_the_rule_matches(
    rules: RuleSet, text: str, expected: list[int]
) -> None:
    rules.add(0, text)
    assert dropped_numbers(rules, [tcp(), udp()] * 5) == expected


def test_separate_counts_for_each_value_of_a_field_or_each_flow(rules: RuleSet) -> None:
    frames = [udp(destination=port) for port in (53, 54, 53, 53, 54, 55)]
    with rules.add(0, "drop nth(2, udp.dport)"):
        assert dropped_numbers(rules, frames) == [3, 5]
    with rules.add(0, "drop first(1, flow)"):
        assert dropped_numbers(rules, [*frames, tcp(destination=53)]) == [1, 2, 6, 7]


def test_one_rule_drops_the_second_acknowledgement_of_every_message() -> None:
    fields = standard_fields()
    fields.register("emp", 0x88B5, {"type": (0, 1), "message": (1, 2)}, flow=["type"])
    rules = RuleSet(fields)
    rules.add(0, "drop emp.type == 2 and nth(2, emp.message)")
    frames = [ethernet(bytes([kind, 0, message])) for kind, message in [(2, 7), (1, 7), (2, 8), (2, 7), (2, 7), (2, 8)]]
    assert dropped_numbers(rules, frames) == [4, 6]


def test_each_direction_of_each_link_counts_separately(rules: RuleSet) -> None:
    rules.add(0, "drop nth(2)")
    wires = [
        LinkDirection(link, way_name, NO_IMPAIRMENT, FateOptions(seed=1, rules=rules))
        for link in (LINK, "n2:eth0--s1:2")
        for way_name in ("forward", "backward")
    ]
    outcomes = [[wire.offer(0, numbered(1)).dropped for _ in range(3)] for wire in wires]
    assert outcomes == [[False, True, False]] * 4


def test_a_rule_of_one_link_and_direction_does_not_affect_others(rules: RuleSet) -> None:
    fault = rules.add(0, f"drop link == {LINK} and direction == backward")
    forward, backward = (
        LinkDirection(LINK, way_name, NO_IMPAIRMENT, FateOptions(seed=1, rules=rules))
        for way_name in ("forward", "backward")
    )
    on_other_link = LinkDirection("n2:eth0--s1:2", "backward", NO_IMPAIRMENT, FateOptions(seed=1, rules=rules))
    assert [wire.offer(0, numbered(1)) for wire in (forward, backward, on_other_link)] == [
        Outcome.ACCEPTED, Outcome.RULE, Outcome.ACCEPTED,
    ]  # fmt: skip
    assert (fault.matched, fault.decided) == (1, 1)


def test_the_first_rule_that_does_not_pass_decides(rules: RuleSet) -> None:
    rules.add(0, lambda _: PASS)
    rules.add(0, "duplicate udp")
    rules.add(0, "drop")
    wire = direction(Impairment(), rules=rules)
    delivered = run_schedule(wire, [(0, udp()), (0, tcp()), (0, udp())])
    assert [frame for _, frame in delivered] == [udp()] * 4
    assert (wire.counters.rule, wire.counters.duplicated) == (1, 2)


def test_an_injected_rule_comes_before_those_of_the_description(rules: RuleSet) -> None:
    wire = direction(Impairment(rules=("drop udp", "drop tcp.dport == 99")), rules=rules)
    with rules.add(0, "duplicate"):
        assert wire.offer(0, udp()) is Outcome.ACCEPTED
    assert wire.offer(0, udp()) is Outcome.RULE
    assert wire.fates.idle_rules() == ["the rule 'drop tcp.dport == 99' has never matched a frame"]


def test_a_rule_holds_from_when_it_is_added_until_it_is_lifted(rules: RuleSet) -> None:
    wire = direction(Impairment(), rules=rules)
    assert wire.offer(0, numbered(1)) is Outcome.ACCEPTED
    with rules.add(1, "drop") as fault:
        assert wire.offer(1, numbered(2)) is Outcome.RULE
        assert len(rules) == 1
    assert wire.offer(2, numbered(3)) is Outcome.ACCEPTED
    fault.lift()
    assert (len(rules), fault.decided) == (0, 1)


def test_adding_or_lifting_a_rule_does_not_reset_other_counts(rules: RuleSet) -> None:
    rules.add(0, "drop nth(3)")
    wire = direction(Impairment(), rules=rules)
    assert not wire.offer(0, numbered(1)).dropped
    with rules.add(0, "duplicate tcp"):
        assert not wire.offer(0, numbered(2)).dropped
    assert wire.offer(0, numbered(3)) is Outcome.RULE


def test_a_time_window_counts_from_when_the_rule_was_added(rules: RuleSet) -> None:
    rules.add(5 * SECOND, "drop between(1s, 2s)")
    wire = direction(Impairment(), rules=rules)
    times = [5 * SECOND, 6 * SECOND - 1, 6 * SECOND, 7 * SECOND - 1, 7 * SECOND]
    assert [wire.offer(now, numbered(1)).dropped for now in times] == [False, False, True, True, False]


def test_a_delayed_frame_is_overtaken_and_delays_no_other(rules: RuleSet) -> None:
    rules.add(0, "delay 1ms nth(1)")
    wire = direction(Impairment(delay=10), rules=rules)
    delivered = run_schedule(wire, [(index, numbered(index)) for index in range(3)])
    assert [(due, number_of(frame)) for due, frame in delivered] == [(11, 1), (12, 2), (MILLISECOND + 10, 0)]
    assert wire.counters.delayed == 1


def test_a_rule_that_corrupts_flips_exactly_its_bits_beside_random_corruption(rules: RuleSet) -> None:
    rules.add(0, "corrupt 5")
    log: list[Record] = []
    wire = direction(Impairment(corrupt=1.0), rules=rules, log=log.append)
    sent = bytes(64)
    delivered = run_schedule(wire, [(index, sent) for index in range(50)])
    assert all(int.from_bytes(frame, "big").bit_count() == 5 for _, frame in delivered)
    assert {record.cause for record in log} == {"rule"}
    assert len({frame for _, frame in delivered}) == 50


def test_frames_that_a_rule_passes_or_delays_can_still_be_lost(rules: RuleSet) -> None:
    rules.add(0, "delay 1ms")
    wire = direction(Impairment(loss=1.0), rules=rules)
    assert wire.offer(0, numbered(1)) is Outcome.LOSS


def test_a_rule_in_python_sees_fields_flow_and_number(rules: RuleSet) -> None:
    views: list[tuple[object, ...]] = []

    def fault(view: FrameView) -> Fate:
        views.append((view["udp.dport"], view["tcp.dport"], view.n, view.flow.key, view.link, view.elapsed))
        return DROP if view["udp.dport"] == 53 and view.n == 2 else PASS

    handle = rules.add(10, fault)
    wire = direction(Impairment(), rules=rules)
    frames = [udp(destination=53), tcp(), udp(destination=53)]
    outcomes = [wire.offer(10 + index, frame) for index, frame in enumerate(frames)]
    assert outcomes == [Outcome.ACCEPTED, Outcome.ACCEPTED, Outcome.RULE]
    assert views == [
        (53, None, 1, (17, 53), LINK, 0),
        (None, 5001, 1, (6, 5001), LINK, 1),
        (53, None, 2, (17, 53), LINK, 2),
    ]
    assert handle.text == "fault"
    rules.add(20, lambda view: PASS if view["udp.dprt"] else DROP)
    with pytest.raises(LookupError, match=r"did you mean 'udp\.dport'"):
        wire.offer(20, udp())


def test_a_rule_can_be_constructed_from_a_fate_and_a_condition(rules: RuleSet) -> None:
    parsed = Rule.parse("drop udp", rules.fields)
    rules.add(0, Rule(DUPLICATE, parsed.when, text="twice"))
    assert len(run_schedule(direction(Impairment(), rules=rules), [(0, udp()), (0, tcp())])) == 3


def test_rules_that_never_decided_are_reported_at_the_end(rules: RuleSet) -> None:
    rules.add(0, "drop tcp.dport == 5001 and nth(3)")
    with rules.add(0, "drop arp"):
        pass
    rules.add(0, "duplicate udp")
    run_schedule(direction(Impairment(), rules=rules), [(0, tcp()), (0, tcp()), (0, udp())])
    assert rules.idle_rules() == [
        "the rule 'drop tcp.dport == 5001 and nth(3)' has matched 2 frames, but its counts have selected none",
        "the rule 'drop arp' has never matched a frame",
    ]


def test_equal_rules_that_never_matched_are_reported_once(rules: RuleSet) -> None:
    for _ in range(1000):
        rules.add(0, "drop arp").lift()
    assert rules.idle_rules() == ["the rule 'drop arp' has never matched a frame"]


def test_an_invalid_rule_adds_nothing(rules: RuleSet) -> None:
    with pytest.raises(RuleError):
        rules.add(0, "drop udp and")
    assert (len(rules), rules.idle_rules()) == (0, [])


def test_an_unknown_link_is_rejected_with_the_nearest_link() -> None:
    with pytest.raises(RuleError, match="did you mean 'n1:eth0--s1:1'"):
        RuleSet(standard_fields(), [LINK]).add(0, "drop link == n1:eth0--s1:2")


@pytest.mark.parametrize(
    "make_fate", [lambda: delay(0), lambda: corrupt(0), lambda: Fate(delay=-1), lambda: Fate(flips=-1)]
)
def test_an_impossible_fate_is_rejected(make_fate: object) -> None:
    with pytest.raises(ValueError, match=r"(delay|bits|flips) must be"):
        make_fate()  # type: ignore[operator]


def test_a_rules_fate_is_logged_with_its_text(rules: RuleSet) -> None:
    log: list[Record] = []
    rules.add(0, "drop eth.src == 02:00:00:00:00:03")
    wire = direction(Impairment(), rules=rules, log=log.append)
    run_schedule(wire, [(0, numbered(1)), (0, numbered(2, source=C)), (0, numbered(3, source=C))])
    assert [(record.n, record.cause, record.fate, record.detail) for record in log] == [
        (number, "rule", DROP, "drop eth.src == 02:00:00:00:00:03") for number in (1, 2)
    ]


@pytest.mark.parametrize("impairment", [Impairment(), Impairment(delay=MILLISECOND, rate=10**9), Impairment(loss=1e-9)])
def test_frames_are_counted_before_the_first_rule_is_added_and_after_the_last_is_removed(
    rules: RuleSet, impairment: Impairment
) -> None:
    log: list[Record] = []
    wire = direction(impairment, rules=rules, log=log.append)
    for now in range(5):
        wire.offer(now, udp())
    with rules.add(5, "drop nth(2)"):
        for now in range(5, 10):
            wire.offer(now, udp())
    for now in range(10, 13):
        wire.offer(now, udp())
    rules.add(13, "drop nth(1)")
    assert wire.offer(13, udp()) is Outcome.RULE
    assert [record.n for record in log] == [7, 14]
    assert wire.counters.offered == 14

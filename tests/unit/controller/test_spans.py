"""Findings about a span, from the counters at its ends and the events between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from testbed.cluster.faults.injections import BOTH, Injection
from testbed.cluster.records.state import State
from testbed.controller.verdict import spans
from testbed.controller.verdict.counter_snapshots import CounterSnapshot
from testbed.controller.verdict.thresholds import TABLE
from testbed.controller.verdict.verdicts import Finding, Grade
from testbed.kernel.loss_classifier import Counters
from testbed.kernel.processes import Identity
from testbed.spec.model import Description
from testbed.spec.resolver import resolve

MILLISECOND = 1_000_000
SECOND = 1_000_000_000
LAYOUT = resolve(Description.star(2))
LINK = LAYOUT.links[0].name
LOSSY = Injection(1, "loss", tuple((LINK, direction) for direction in BOTH), {"loss": 0.05, "delay": MILLISECOND})
OWNER = Identity.parse("b:1:2:3")
STATE = State(
    "c", "test", "up", True, OWNER, LAYOUT, {}, {}, 0, injected=(LOSSY,), datapaths={LINK: "relay"}
)  # fmt: skip
COUNTERS = {
    "offered": 0, "delivered": 0, "loss": 0, "gemodel": 0, "loss_pattern": 0, "rule": 0, "queue": 0,
}  # fmt: skip
EMULATOR_COUNTERS = {"overrun": 0, "oversized": 0, "unsent": 0, "finished": 0, "down": 0}


def direction(
    lateness: Mapping[int, int] | None = None, emulator: Mapping[str, int] | None = None, **counters: int
) -> Any:
    buckets = [0] * 48
    for digits, count in (lateness or {}).items():
        buckets[digits] = count
    return {
        "counters": {**COUNTERS, **counters},
        "lateness": {"buckets": buckets},
        "emulator": {**EMULATOR_COUNTERS, **(emulator or {})},
        "rules": {},
    }


def snapshot_at(clock: int, forward: Any, begun: int = 1, **extra: Any) -> CounterSnapshot:
    links = {LINK: {"forward": forward, "backward": direction()}}
    relay = {"pid": 7, "begun": begun, "links": links, "idle_rules": []}
    return replace(CounterSnapshot(clock, relay), **extra)


BEFORE = snapshot_at(1_000, direction())


def grade_of(findings: list[Finding], name: str, direction: str = "forward") -> Grade:
    (matching,) = [finding for finding in findings if finding.what == name and finding.direction in (direction, "")]
    return matching.grade


def relay_findings(before: CounterSnapshot, after: CounterSnapshot, *events: Mapping[str, Any]) -> list[Finding]:
    return spans.relay_findings(STATE, before, after, events, TABLE)


def event(name: str, clock: int, **facts: Any) -> dict[str, Any]:
    return {"time": clock, "clock": clock, "event": name, **facts}


def test_a_span_without_losses_or_lateness_is_trusted() -> None:
    findings = relay_findings(BEFORE, snapshot_at(2_000, direction({15: 1_000})))
    assert {finding.grade for finding in findings} == {Grade.TRUSTED}
    assert grade_of(findings, "relay lateness p99") is Grade.TRUSTED


@pytest.mark.parametrize("cause", ["overrun", "oversized", "unsent"])
def test_a_frame_lost_in_the_relay_invalidates_and_only_in_its_span(cause: str) -> None:
    after = snapshot_at(2_000, direction(emulator={cause: 1}))
    assert grade_of(relay_findings(BEFORE, after), "relay lost") is Grade.INVALID
    assert grade_of(relay_findings(replace(after, clock=1_500), after), "relay lost") is Grade.TRUSTED


def test_frames_for_an_end_that_is_down_degrade_and_gso_segments_do_not() -> None:
    findings = relay_findings(BEFORE, snapshot_at(2_000, direction(emulator={"finished": 3, "down": 2})))
    assert grade_of(findings, "relay finished") is Grade.TRUSTED
    assert grade_of(findings, "relay at a down end") is Grade.DEGRADED


CUT = event("inject", 1_300, number=2, what="down: n1", links=[LINK], down=[LINK])
HEALED = event("heal", 1_400, number=2, what="down: n1", links=[LINK])


@pytest.mark.parametrize("events", [[CUT], [CUT, HEALED], [{**CUT, "clock": 500}, HEALED]])
def test_an_end_taken_down_by_an_event_of_the_span_does_not_degrade(events: list[dict[str, Any]]) -> None:
    findings = relay_findings(BEFORE, snapshot_at(2_000, direction(emulator={"down": 2})), *events)
    (lost,) = [finding for finding in findings if "down" in finding.what]
    assert (lost.what, lost.measured, lost.grade) == ("relay at an end taken down", 2, Grade.TRUSTED)


@pytest.mark.parametrize(
    "events",
    [
        [{**CUT, "clock": 500}, {**HEALED, "clock": 600}],
        [{**CUT, "down": []}],
        [{**CUT, "down": ["another link"]}, HEALED],
    ],
    ids=["before the span", "impaired", "another link"],
)
def test_an_end_that_no_event_took_down_still_degrades(events: list[dict[str, Any]]) -> None:
    findings = relay_findings(BEFORE, snapshot_at(2_000, direction(emulator={"down": 2})), *events)
    assert grade_of(findings, "relay at a down end") is Grade.DEGRADED


def test_a_link_still_down_was_taken_down() -> None:
    state = replace(STATE, injected=(Injection(2, "down: n1", down=(LINK,)),))
    assert spans.links_taken_down(state, [], 0) == {LINK}
    assert spans.links_taken_down(STATE, [], 0) == set()


def test_lateness_counts_only_within_the_span() -> None:
    before = snapshot_at(1_000, direction({24: 5_000}))  # about 10 ms
    assert (
        grade_of(relay_findings(before, snapshot_at(2_000, direction({24: 5_000, 15: 500}))), "relay lateness p99")
        is Grade.TRUSTED
    )
    assert (
        grade_of(relay_findings(before, snapshot_at(2_000, direction({24: 5_500}))), "relay lateness p99")
        is Grade.DEGRADED
    )
    assert (
        grade_of(relay_findings(before, snapshot_at(2_000, direction({24: 5_000, 27: 500}))), "relay lateness p99")
        is Grade.INVALID
    )
    assert (
        grade_of(relay_findings(before, snapshot_at(2_000, direction({24: 5_050}))), "relay lateness p99")
        is Grade.UNDECIDED
    )


def test_a_relay_without_enough_processor_time_is_reported_with_its_ceiling() -> None:
    before = snapshot_at(0, direction(), ran={7: 0, 8: 0})
    late = snapshot_at(2 * SECOND, direction({24: 5_000}, offered=120_000), ran={7: SECOND, 8: SECOND // 2})
    reasons = {
        finding.what: finding.reason for finding in relay_findings(before, late) if finding.direction == "forward"
    }
    assert reasons["relay lateness p99"] == (
        "the relay forwarded 60,000 frames/s of all links, and a processor forwards 80,000 at most here"
    )
    assert reasons["relay lost"] == "", "no frame is lost"
    in_time = snapshot_at(2 * SECOND, direction({15: 5_000}, offered=120_000), ran={7: SECOND, 8: SECOND // 2})
    assert {finding.reason for finding in relay_findings(before, in_time)} == {""}
    idle = snapshot_at(2 * SECOND, direction({24: 5_000}, offered=120_000), ran={7: SECOND // 100, 8: 0})
    assert {finding.reason for finding in relay_findings(before, idle)} == {""}
    replaced = snapshot_at(2 * SECOND, direction({24: 5_000}, offered=120_000), ran={9: SECOND})
    assert {finding.reason for finding in relay_findings(before, replaced)} == {""}


def test_a_relay_that_died_and_was_restarted_invalidates_its_span() -> None:
    died = [
        event("relay died", 1_100, pid=7),
        event("relay restarted", 1_200, pid=8, gap=[1_100, 1_200], lost=3, also_lost="what it held"),
    ]
    after = snapshot_at(2_000, direction(), begun=1_200)
    findings = relay_findings(BEFORE, after, *died)
    assert grade_of(findings, "relay gap") is Grade.INVALID
    (gap,) = [finding for finding in findings if finding.what == "relay gap"]
    assert gap.measured == 100
    assert "3 frames" in gap.reason
    later = snapshot_at(1_500, direction(), begun=1_200)
    assert grade_of(relay_findings(later, after, *died), "relay gap") is Grade.TRUSTED


def test_a_missing_or_different_relay_invalidates() -> None:
    assert grade_of(relay_findings(BEFORE, CounterSnapshot(2_000)), "relay gap") is Grade.INVALID
    assert grade_of(relay_findings(BEFORE, snapshot_at(2_000, direction(), begun=9)), "relay gap") is Grade.INVALID


def test_a_link_that_the_relay_does_not_know_invalidates() -> None:
    document = {"pid": 7, "begun": 1, "links": {}, "idle_rules": []}
    assert Grade.INVALID in {finding.grade for finding in relay_findings(BEFORE, CounterSnapshot(2_000, document))}


def test_without_counters_of_the_begin_losses_reported_before_are_not_counted_again() -> None:
    events = event("relay behind", 500, link=LINK, direction="forward", late=0, lost=4)
    after = snapshot_at(2_000, direction(emulator={"overrun": 4}))
    assert grade_of(relay_findings(CounterSnapshot(1_000), after, events), "relay lost") is Grade.TRUSTED
    after = snapshot_at(2_000, direction(emulator={"overrun": 5}))
    assert grade_of(relay_findings(CounterSnapshot(1_000), after, events), "relay lost") is Grade.INVALID


def test_losses_are_compared_with_the_configured_ones() -> None:
    def losses(*, changed: bool = False, **counters: int) -> Grade:
        after = snapshot_at(2_000, direction(**counters))
        findings = spans.counted_losses(STATE, BEFORE, after, TABLE, changed=changed)
        return grade_of(findings, "loss")

    assert losses(offered=30_000, loss=1_480) is Grade.TRUSTED
    assert losses(offered=30_000, loss=6_000) is Grade.INVALID
    assert losses(offered=30_000, loss=6_000, changed=True) is Grade.UNDECIDED
    assert losses(offered=300, loss=14) is Grade.UNDECIDED


def test_a_classifier_without_room_degrades() -> None:
    snapshot = replace(BEFORE, classifiers={(LINK, "forward"): Counters(offered=10, untold=2)})
    assert grade_of(spans.classifier_findings(BEFORE, snapshot, TABLE), "classifier inexact") is Grade.DEGRADED
    assert grade_of(spans.classifier_findings(snapshot, snapshot, TABLE), "classifier inexact") is Grade.TRUSTED


def test_frames_lost_while_a_link_switched_datapaths_degrade() -> None:
    replugged = event("replugged", 1_500, link=LINK, before="direct", after="relay", lost=2, early=0)
    (finding,) = spans.replug_findings([replugged], 1_000, TABLE)
    assert finding.grade is Grade.DEGRADED
    assert spans.replug_findings([replugged], 1_600, TABLE) == []


def test_the_machine_reports_its_losses_and_delays() -> None:
    after = replace(
        BEFORE, clock=SECOND, backlog={0: 1}, ticks=100, stolen=60, waited={7: SECOND * 7 // 10}, loads={9: SECOND // 2}
    )
    before = replace(BEFORE, clock=0, waited={7: 0})
    findings = {finding.what: finding for finding in spans.machine_findings(before, after, TABLE)}
    assert findings["softnet drops"].grade is Grade.INVALID
    assert findings["steal"].grade is Grade.INVALID
    assert findings["relay waiting"].grade is Grade.INVALID
    assert findings["load"].measured == 0.5
    assert findings["load"].grade is Grade.TRUSTED


def test_two_clock_ticks_are_too_few_for_a_share() -> None:
    after = replace(BEFORE, clock=12 * MILLISECOND, ticks=2, stolen=2, backlog={0: 1}, waited={7: 9 * MILLISECOND})
    findings = spans.machine_findings(replace(BEFORE, clock=0, waited={7: 0}), after, TABLE)
    grades = {finding.what: finding.grade for finding in findings}
    assert grades == {
        "softnet drops": Grade.INVALID, "steal": Grade.UNDECIDED, "relay waiting": Grade.UNDECIDED,
    }  # fmt: skip


def test_losses_of_the_relay_count_although_the_link_is_healed() -> None:
    def behind_event(clock: int, lost: int, link: str) -> dict[str, Any]:
        return event("relay behind", clock, link=link, direction="forward", late=1, lost=lost)

    healed = replace(STATE, datapaths={}, injected=())
    events = [
        behind_event(500, 9, LINK),
        behind_event(1_500, 2, LINK),
        behind_event(1_600, 3, LINK),
        behind_event(1_700, 0, "n2--s1"),
    ]
    findings = spans.relay_findings(healed, BEFORE, replace(BEFORE, clock=2_000, relay=None), events, TABLE)
    (finding,) = findings
    assert (finding.what, finding.measured, finding.grade) == ("relay lost", 5, Grade.INVALID)


def test_a_quantile_of_log2_buckets_lies_within_its_bucket() -> None:
    counts = [0] * 48
    counts[10], counts[20] = 990, 10
    assert 512 <= spans.bucket_quantile(counts, 0.5) <= 1024
    assert spans.bucket_quantile(counts, 0.99) == 1024
    assert 2**19 <= spans.bucket_quantile(counts, 0.999) <= 2**20
    assert spans.bucket_quantile([0] * 48, 0.5) == 0


def test_injections_healed_within_the_span_are_reported() -> None:
    events = [
        event("inject", 900, what="old"),
        event("inject", 1_100, what="loss 5%"),
        event("heal", 1_200, what="loss 5%"),
    ]
    assert spans.describe_changes(events, 1_000) == ["inject: loss 5%", "heal: loss 5%"]


# Agents of shared NICs


def agent_counters(pid: int = 5, **counted: int) -> dict[str, int]:
    return {"pid": pid, "dropped": 0, "unsent": 0, "overflowed": 0, **counted}


def agent_findings(before: Mapping[str, Any], after: Mapping[str, Any], *events: Mapping[str, Any]) -> list[Finding]:
    return spans.agent_findings(
        CounterSnapshot(1_000, agents=before), CounterSnapshot(5_000, agents=after), events, TABLE
    )


def test_agents_are_not_mentioned_without_shared_nics() -> None:
    assert agent_findings({}, {}) == []
    ended = {"clock": 2_000, "event": "NICs shared no more"}
    assert agent_findings({"n1": agent_counters()}, {}, ended) == []


def test_agents_without_restarts_or_losses_are_trusted() -> None:
    findings = agent_findings({"n1": agent_counters(dropped=3)}, {"n1": agent_counters(dropped=3)})
    assert {finding.what: finding.grade for finding in findings} == {
        "NIC agent gap": Grade.TRUSTED,
        "NIC lost": Grade.TRUSTED,
    }


def test_an_agent_that_was_restarted_in_the_span_is_a_gap_from_its_death_to_its_restart() -> None:
    restarted = {"clock": 2_000, "event": "NIC agent restarted", "node": "n1", "gap": [1_500, 1_900]}
    before = {**restarted, "clock": 500, "gap": [100, 400]}
    gap, lost = agent_findings({"n1": agent_counters(5, dropped=9)}, {"n1": agent_counters(6)}, before, restarted)
    assert (gap.what, gap.measured, gap.grade) == ("NIC agent gap", 400, Grade.INVALID)
    assert "n1: the agent died" in gap.reason
    assert (lost.what, lost.measured) == ("NIC lost", 0)  # its successor counts from zero


def test_a_restart_without_an_event_is_a_gap_as_long_as_the_span() -> None:
    gap, _ = agent_findings({"n1": agent_counters(5)}, {"n1": agent_counters(6)})
    assert (gap.measured, gap.grade) == (4_000, Grade.INVALID)
    assert "n1: the agent died" in gap.reason


@pytest.mark.parametrize("after", [{}, {"n1": None}])
def test_an_agent_that_does_not_answer_is_a_gap(after: Mapping[str, Any]) -> None:
    (gap,) = agent_findings({"n1": agent_counters()}, after)
    assert gap.grade is Grade.INVALID
    assert "a required agent does not answer" in gap.reason


def test_frames_lost_by_an_agent_invalidate() -> None:
    _, lost = agent_findings({"n1": agent_counters(unsent=1)}, {"n1": agent_counters(unsent=3, overflowed=1)})
    assert (lost.measured, lost.grade) == (3, Grade.INVALID)
    assert lost.reason == "n1: 2 unsent, 1 overflowed"


def test_a_rule_that_has_decided_on_one_direction_has_no_note() -> None:
    decided = {**direction(), "rules": {"1.0": {"text": "drop atm.vci == 33", "decided": 2}}}
    idle = {**direction(), "rules": {"1.1": {"text": "drop atm.vci == 33", "decided": 0}}}
    links = {LINK: {"forward": decided, "backward": idle}}
    notes = [f"the rule {text!r} has never matched a frame" for text in ("drop atm.vci == 33", "drop atm.vci == 3")]
    relay_report = {"pid": 7, "begun": 1, "links": links, "idle_rules": notes}
    assert spans.idle_rules(CounterSnapshot(1_000, relay_report)) == notes[1:]

"""A fate log replays fates on the same frames of the same flows."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.fabric.direction import LinkDirection
from testbed.fates.flows import Flow
from testbed.fates.headers import standard_fields
from testbed.fates.records import PASS, Fate, Record, Replay, without_chance
from testbed.fates.rules import RuleSet
from testbed.fates.stage import NO_IMPAIRMENT, FateOptions, restarts
from testbed.spec.layout import Impairment
from tests.unit.fates.wire_frames import (
    LINK,
    MICROSECOND,
    MILLISECOND,
    direction,
    fates_of,
    number_of,
    numbered,
    run_schedule,
    tcp,
    udp,
)

CHANCES = Impairment(
    delay=MILLISECOND,
    jitter=10 * MICROSECOND,
    distribution="pareto",
    rate=10**8,
    queue=5000,
    loss=0.1,
    gemodel=(0.05, 0.4, 0.9, 0.02),
    loss_pattern="4 every 17",
    corrupt=0.1,
    corrupt_bits=3,
    duplicate=0.1,
    reorder=0.1,
    rules=("delay 500us every(7)", "corrupt 2 udp and every(5)"),
)
FRAMES = [udp(destination=53, data=b"a" * 40), udp(destination=99), tcp(), numbered(3)]


def merged_fates(log: list[Record]) -> dict[tuple[int, Flow, int], Fate]:
    """Return each frame's complete fate, merged from all records about it."""
    fates: dict[tuple[int, Flow, int], Fate] = defaultdict(lambda: PASS)
    for record in log:
        fates[record.epoch, record.flow, record.n] |= record.fate
    return dict(fates)


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, 300 * MICROSECOND), st.sampled_from(FRAMES)), min_size=1, max_size=120),
    st.integers(0, 2**63 - 1),
)
def test_a_replay_delivers_the_same_frames_at_the_same_times(frames: list[tuple[int, bytes]], seed: int) -> None:
    now, schedule = 0, []
    for gap, frame in frames:
        now += gap
        schedule.append((now, frame))
    delivered, log = fates_of(CHANCES, schedule, seed=seed)
    lines = [record.to_line() for record in log]
    rules = RuleSet(standard_fields())
    replay = Replay(Record.from_line(line) for line in lines)
    rules.add(0, replay)
    delivered_again, replayed = fates_of(without_chance(CHANCES), schedule, seed=seed, rules=rules)
    assert delivered_again == delivered
    assert merged_fates(replayed) == merged_fates(log)
    assert replay.applied == len(replay) == len(merged_fates(log))


def test_a_replay_does_not_depend_on_seed_and_times() -> None:
    impairment = Impairment(delay=MILLISECOND, loss=0.2, duplicate=0.2, corrupt=0.2)
    schedule = [(index * 1000, frame) for index, frame in enumerate(FRAMES * 30)]
    delivered, log = fates_of(impairment, schedule, seed=1)
    rules = RuleSet(standard_fields())
    rules.add(0, Replay(log))
    later_schedule = [(3 * now + 7, frame) for now, frame in schedule]
    delivered_again, _ = fates_of(without_chance(impairment), later_schedule, seed=2, rules=rules)
    assert [frame for _, frame in delivered_again] == [frame for _, frame in delivered]


def test_a_thinned_log_replays_the_remaining_records() -> None:
    schedule = [(index, numbered(index)) for index in range(100)]
    _, log = fates_of(Impairment(loss=0.2), schedule)
    thinned = log[::2]
    rules = RuleSet(standard_fields())
    rules.add(0, Replay(thinned))
    delivered_again, _ = fates_of(Impairment(), schedule, rules=rules)
    assert set(range(100)) - {number_of(frame) for _, frame in delivered_again} == {record.n - 1 for record in thinned}


def test_a_replay_affects_no_other_link_or_direction() -> None:
    _, log = fates_of(Impairment(loss=1.0), [(0, numbered(0))])
    rules = RuleSet(standard_fields())
    rules.add(0, Replay(log))
    assert (
        not LinkDirection(LINK, "backward", NO_IMPAIRMENT, FateOptions(seed=1, rules=rules))
        .offer(0, numbered(0))
        .dropped
    )
    assert (
        not LinkDirection("a--b", "forward", NO_IMPAIRMENT, FateOptions(seed=1, rules=rules))
        .offer(0, numbered(0))
        .dropped
    )
    assert direction(Impairment(), rules=rules).offer(0, numbered(0)).dropped


def test_a_run_with_losses_set_during_the_run_is_replayed() -> None:
    impairments = [Impairment(), Impairment(loss=0.3), Impairment(loss=0.3, delay=5), Impairment(corrupt=0.5)]

    def run(rules: RuleSet, replaying: bool) -> tuple[list[tuple[int, bytes]], list[Record]]:
        log: list[Record] = []
        wire = direction(Impairment(), rules=rules, log=log.append)
        deliveries, before = [], Impairment()
        for index, step in enumerate(impairments):
            now = index * MILLISECOND
            if replaying:
                wire.change(now, without_chance(step), restart=restarts(before, step))
            else:
                wire.change(now, step)
            before = step
            deliveries += run_schedule(wire, [(now + number, numbered(number)) for number in range(30)])
        return deliveries, log

    delivered, log = run(RuleSet(standard_fields()), replaying=False)
    rules = RuleSet(standard_fields())
    rules.add(0, Replay(log))
    delivered_again, _ = run(rules, replaying=True)
    assert delivered_again == delivered
    assert {record.epoch for record in log} == {1, 2}

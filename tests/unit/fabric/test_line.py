"""Link directions: rate, queue, delay, order, and changes with frames in flight."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.errors import DescriptionError
from testbed.fabric.direction import LinkDirection
from testbed.fabric.wire_time import MIN_QUEUE, default_queue, wire_size
from testbed.fates.fate_counters import Outcome
from testbed.fates.headers import standard_fields
from testbed.fates.rules import RuleSet
from testbed.fates.stage import FateOptions
from testbed.spec.layout import Impairment
from tests.unit.fates.wire_frames import (
    LINK,
    MICROSECOND,
    MILLISECOND,
    SECOND,
    deliveries_of,
    direction,
    number_of,
    numbered,
    run_schedule,
)

EQUIVALENT_OPTIONS = [{}, {"minimum_frame": 1}, {"rules": ("drop arp",)}, {"loss": 1e-15}]
"""Options that do not change the fates of these frames, but select other paths through the model."""


def burst(count: int, size: int = 1500, now: int = 0) -> list[tuple[int, bytes]]:
    return [(now, numbered(number, size)) for number in range(count)]


@pytest.mark.parametrize("rate", [10**6, 10**9, 1_280_000_000, 3 * 10**9, 10**11])
@pytest.mark.parametrize("size", [18, 64, 1500, 9000])
def test_the_rate_is_exact_for_small_and_large_frames(rate: int, size: int) -> None:
    count = 1000
    delivered = deliveries_of(Impairment(rate=rate, queue=10**8), burst(count, size))
    # Frame k ends after the bits of k frames, rounded down: rounding errors do not accumulate.
    assert [due for due, _ in delivered] == [number * size * 8 * SECOND // rate for number in range(1, count + 1)]


def test_an_idle_link_delays_a_frame_by_its_transmission_time() -> None:
    # 50 bytes at 1000 bytes/s take 50 ms: a rate is no token bucket.
    assert deliveries_of(Impairment(rate=8000), [(7, numbered(1, 50))]) == [(7 + 50 * MILLISECOND, numbered(1, 50))]


@pytest.mark.parametrize("options", EQUIVALENT_OPTIONS)
def test_a_fraction_of_a_nanosecond_is_carried_within_a_burst_and_not_beyond_it(options: dict[str, object]) -> None:
    # 64 bytes at 3 Gbit/s take 170 2/3 ns.
    impairment = Impairment(rate=3 * 10**9, **options)  # type: ignore[arg-type]
    schedule = [(time, numbered(0)) for time in (0, 0, 0, 0, 10_000, 20_000, 20_000)]
    assert [due for due, _ in deliveries_of(impairment, schedule)] == [170, 341, 512, 682, 10_170, 20_170, 20_341]


def test_the_delay_starts_after_the_last_bit() -> None:
    delivered = deliveries_of(Impairment(rate=10**9, delay=MILLISECOND), burst(3, 1250))
    assert [due for due, _ in delivered] == [MILLISECOND + number * 10 * MICROSECOND for number in (1, 2, 3)]


@pytest.mark.parametrize(
    ("impairment", "size", "expected"),
    [
        (Impairment(), 60, 60),
        (Impairment(minimum_frame=60, overhead=24), 42, 84),  # an Ethernet frame of the smallest size
        (Impairment(minimum_frame=60, overhead=24), 1514, 1538),
        (Impairment(overhead=-14), 60, 46),
        (Impairment(overhead=-14), 10, 0),
        (Impairment(cell_size=48, cell_overhead=5, overhead=8), 40, 53),  # one ATM cell with AAL5's trailer
        (Impairment(cell_size=48, cell_overhead=5, overhead=8), 41, 106),
        (Impairment(cell_size=48, cell_overhead=5, overhead=8), 1500, 32 * 53),
    ],
)
def test_a_frame_takes_its_overhead_and_an_integer_number_of_cells_of_the_rate(
    impairment: Impairment, size: int, expected: int
) -> None:
    assert wire_size(impairment, size) == expected
    shaped = Impairment(
        rate=8 * 10**6,
        minimum_frame=impairment.minimum_frame,
        overhead=impairment.overhead,
        cell_size=impairment.cell_size,
        cell_overhead=impairment.cell_overhead,
    )
    assert [due for due, _ in deliveries_of(shaped, [(0, bytes(size))] * 2)] == [expected * 1000, 2 * expected * 1000]


@pytest.mark.parametrize("options", EQUIVALENT_OPTIONS)
def test_a_full_queue_drops_the_newest_and_counts_them(options: dict[str, object]) -> None:
    # One frame is being sent, two wait in 3200 bytes; a third does not fit, a small one does.
    wire = direction(Impairment(rate=10**6, queue=3200, **options))  # type: ignore[arg-type]
    outcomes = [wire.offer(0, frame) for _, frame in burst(5)]
    assert outcomes == [Outcome.ACCEPTED] * 3 + [Outcome.QUEUE] * 2
    assert wire.queued(0) == (3000, 2)
    assert wire.offer(0, numbered(9, 201)) is Outcome.QUEUE
    assert wire.queued(12 * MILLISECOND) == (1500, 1)  # the first bit of the second frame is on the wire
    assert wire.offer(12 * MILLISECOND, numbered(5)) is Outcome.ACCEPTED
    assert [number_of(frame) for _, frame in run_schedule(wire, [])] == [0, 1, 2, 5]
    assert wire.counters.queue == wire.counters.dropped == 3
    assert Outcome.QUEUE.dropped
    assert not Outcome.ACCEPTED.dropped


def test_a_queue_in_frames_counts_frames_of_any_size() -> None:
    wire = direction(Impairment(rate=10**6, queue_frames=2))
    assert [wire.offer(0, numbered(n, size)).dropped for n, size in enumerate((9000, 9000, 20, 20))] == [
        False, False, False, True,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("rate", "delay", "expected"),
    [
        (10**9, 0, MIN_QUEUE),
        (10**9, 10 * MILLISECOND, 2_500_000),  # 1 Gbit/s for 20 ms
        (10**10, 50 * MILLISECOND, 125_000_000),
        (10**6, 10 * MILLISECOND, MIN_QUEUE),
        (0, SECOND, MIN_QUEUE),
    ],
)
def test_the_queue_follows_from_the_bandwidth_delay_product(rate: int, delay: int, expected: int) -> None:
    assert default_queue(rate, delay) == expected
    assert direction(Impairment(rate=rate, delay=delay)).queue == (expected, 0)


def test_frames_in_flight_are_not_limited() -> None:
    # 100,000 frames/s for 200 ms are 20,000 frames in flight: a limit of 1000 would drop most.
    schedule = [(index * 10 * MICROSECOND, numbered(index)) for index in range(20_000)]
    delivered = deliveries_of(Impairment(delay=200 * MILLISECOND, rate=10**9), schedule)
    assert len(delivered) == len(schedule)


def test_a_change_applies_to_later_frames_and_keeps_order() -> None:
    wire = direction(Impairment(rate=10**6, delay=10 * MILLISECOND))
    outcomes = [wire.offer(0, frame) for _, frame in burst(3, 125)]
    assert not any(outcome.dropped for outcome in outcomes)
    wire.change(1, Impairment(rate=10**9, delay=MILLISECOND))
    wire.offer(1, numbered(3, 125))
    # Three frames of 1 ms keep their schedule; the fourth is sent at the new rate, but does not overtake.
    assert [(due, number_of(frame)) for due, frame in run_schedule(wire, [])] == [
        (11 * MILLISECOND, 0), (12 * MILLISECOND, 1), (13 * MILLISECOND, 2), (13 * MILLISECOND, 3),
    ]  # fmt: skip
    wire.change(20 * MILLISECOND, Impairment())
    assert run_schedule(wire, [(20 * MILLISECOND, numbered(4))]) == [(20 * MILLISECOND, numbered(4))]


def test_the_deadline_is_that_of_the_earliest_due_frame() -> None:
    wire = direction(Impairment(delay=100, rules=("delay 1us nth(2)",)))
    assert wire.deadline is None
    deadlines = []
    for number in range(3):
        wire.offer(number, numbered(number))
        deadlines.append(wire.deadline)
    assert wire.poll(99) == []
    assert [number_of(frame) for _, frame in wire.poll(105)] == [0, 2]
    assert [*deadlines, wire.deadline] == [100, 100, 100, 1101]  # only the delayed frame is left
    wire.change(110, Impairment(delay=50))
    wire.offer(110, numbered(3))
    assert wire.deadline == 160
    wire.change(120, Impairment(delay=20, reorder=1.0))
    wire.offer(120, numbered(4))
    assert wire.deadline == 120
    assert [number_of(frame) for _, frame in run_schedule(wire, [])] == [4, 3, 1]


def test_a_contradictory_change_is_rejected_and_has_no_effect() -> None:
    wire = direction(Impairment(delay=5, loss=0.5, rules=("drop arp",)))
    with pytest.raises(DescriptionError):
        wire.change(1, Impairment(reorder=0.5))
    with pytest.raises(ValueError, match="no field"):
        wire.change(1, Impairment(rules=("drop tpc.dport == 3",)))
    assert wire.impairment == Impairment(delay=5, loss=0.5, rules=("drop arp",))
    assert wire.fates.idle_rules() == ["the rule 'drop arp' has never matched a frame"]


@pytest.mark.parametrize(
    ("impairment", "key", "expected"),
    [
        (Impairment(reorder=0.1), "reorder", "a delay as well"),
        (Impairment(jitter=5), "jitter", "a delay as well"),
        (Impairment(delay=5, distribution="normal"), "distribution", "a jitter as well"),
        (Impairment(delay=5, jitter=1, distribution="table"), "distribution", "a jitter_file"),
        (Impairment(distribution="trace"), "distribution", "a jitter_file"),
        (Impairment(delay=5, jitter=1, distribution="trace", jitter_file="f"), "jitter", "no jitter"),
        (Impairment(rate=1, rate_trace="f"), "rate_trace", "one of them"),
        (Impairment(rate=1, queue=9000, queue_frames=3), "queue_frames", "one of them"),
        (Impairment(rate=1, queue=-1), "queue", "0 or more"),
        (Impairment(corrupt_bits=3), "corrupt_bits", "corrupt"),
        (Impairment(cell_overhead=5), "cell_overhead", "a cell_size"),
        (Impairment(loss=1.5), "loss", "a probability"),
        (Impairment(gemodel=(0.1, 0.2)), "gemodel", "four probabilities"),
    ],
)
def test_contradictory_impairments_are_rejected(impairment: Impairment, key: str, expected: str) -> None:
    with pytest.raises(DescriptionError) as caught:
        direction(impairment)
    assert [problem.path for problem in caught.value.problems] == [key]
    assert expected in caught.value.problems[0].expected
    assert LINK in str(caught.value)


PARTS = st.fixed_dictionaries(
    {
        "delay": st.sampled_from([1, MILLISECOND]),
        "jitter": st.sampled_from([0, 1000, 2 * MILLISECOND]),
        "distribution": st.sampled_from(["uniform", "normal", "pareto"]),
        "rate": st.sampled_from([0, 10**7, 10**9]),
        "queue": st.sampled_from([0, 2000]),
        "loss": st.sampled_from([0.0, 0.3, 1.0]),
        "corrupt": st.sampled_from([0.0, 0.3]),
        "duplicate": st.sampled_from([0.0, 0.3, 1.0]),
        "reorder": st.sampled_from([0.0, 0.3]),
        "gemodel": st.sampled_from([(), (0.1, 0.3, 0.9, 0.1)]),
        "loss_pattern": st.sampled_from(["", "2 every 5"]),
        "overhead": st.sampled_from([0, 24, -14]),
        "rules": st.sampled_from(
            [(), ("drop every(4)", "delay 1ms every(3)", "duplicate every(5)", "corrupt 3 nth(2)")]
        ),
    }
)


def impaired(parts: dict[str, object]) -> Impairment:
    if not parts["jitter"]:
        parts = {**parts, "distribution": ""}
    return Impairment(**parts)  # type: ignore[arg-type]


@given(
    PARTS.map(impaired),
    PARTS.map(impaired),
    st.lists(st.tuples(st.integers(0, 200 * MICROSECOND), st.sampled_from([20, 64, 1500])), max_size=60),
    st.integers(0, 2**32),
)
def test_every_frame_is_delivered_or_counted_as_dropped(
    first: Impairment, second: Impairment, frames: list[tuple[int, int]], seed: int
) -> None:
    wire = LinkDirection(LINK, "backward", first, FateOptions(seed=seed))
    now, delivered_count, dues = 0, 0, []
    for index, (gap, size) in enumerate(frames):
        now += gap
        if index == len(frames) // 2:
            wire.change(now, second)
        wire.offer(now, numbered(index, size))
        counters = wire.counters
        assert counters.offered == index + 1
        assert counters.offered + counters.duplicated == counters.delivered + counters.dropped + wire.in_flight
        if index % 3 == 0:
            delivered = wire.poll(now)
            assert all(due <= now for due, _ in delivered)
            dues += [due for due, _ in delivered]
            delivered_count += len(delivered)
    while wire.deadline is not None:
        time = max(now, wire.deadline)
        delivered = wire.poll(time)
        assert all(due <= time for due, _ in delivered)
        dues += [due for due, _ in delivered]
        delivered_count += len(delivered)
    counters = wire.counters
    assert wire.in_flight == 0
    assert wire.queued(10 * SECOND) == (0, 0)
    assert delivered_count == counters.delivered
    assert counters.offered + counters.duplicated == counters.delivered + counters.dropped
    assert dues == sorted(dues)
    assert (
        sum(counters.by_name()[name] for name in ("rule", "loss", "gemodel", "loss_pattern", "queue"))
        == counters.dropped
    )


@settings(max_examples=60)
@given(
    st.sampled_from([0, 10**6, 10**8, 3 * 10**9, 7]),
    st.integers(0, MILLISECOND),
    st.lists(st.tuples(st.just(0) | st.integers(0, 2 * MILLISECOND), st.integers(18, 1500)), max_size=40),
)
def test_the_fast_path_of_rate_and_delay_equals_the_general_path(
    rate: int, delay: int, frames: list[tuple[int, int]]
) -> None:
    impairment = Impairment(rate=rate, delay=delay, queue=4000)
    now, schedule = 0, []
    for index, (gap, size) in enumerate(frames):
        now += gap
        schedule.append((now, numbered(index, size)))
    fast_path = deliveries_of(impairment, schedule)
    assert deliveries_of(impairment, schedule, rules=RuleSet(standard_fields())) == fast_path
    assert deliveries_of(Impairment(rate=rate, delay=delay, queue=4000, minimum_frame=1), schedule) == fast_path


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0, 0, 0, 0, 100, 3_000]),
            st.sampled_from([64, 500, 1500, 1500, 1500, 1500, 10**9, 10**10, 3_333_333_333]),
        ),
        max_size=80,
    )
)
def test_a_queue_accepts_frames_that_fit_beside_the_waiting_ones(steps: list[tuple[int, int]]) -> None:
    """The bound holds across changes of the rate: a frame occupies the queue until its first bit is sent."""
    limit, rate, free_at, now = 4_000, 10**10, Fraction(0), 0
    wire = direction(Impairment(rate=rate, queue=limit))
    queued: list[tuple[Fraction, int]] = []
    for pause, size_or_rate in steps:
        now += pause
        if size_or_rate > 10**6:
            # A changed rate starts at a whole nanosecond.
            free_at = free_at if size_or_rate == rate else Fraction(int(free_at))
            rate = size_or_rate
            wire.change(now, Impairment(rate=rate, queue=limit))
            continue
        queued = [(begin, size) for begin, size in queued if int(begin) > now]
        fits = int(free_at) <= now or sum(size for _, size in queued) + size_or_rate <= limit
        assert (wire.offer(now, bytes(size_or_rate)) is Outcome.ACCEPTED) == fits
        if fits:
            begin = free_at if int(free_at) > now else Fraction(now)
            free_at = begin + Fraction(size_or_rate * 8 * 10**9, rate)
            queued.append((begin, size_or_rate))

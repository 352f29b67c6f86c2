"""Statistical assertions on modelled links: a correct link passes, one off by a fifth is detected, and a sample too small
for that is rejected."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator

import pytest

from testbed.controller.assertions.sample_quantiles import (
    assert_delay,
    assert_jitter,
    assert_rate,
    block_rates,
    min_samples,
)
from testbed.controller.assertions.sequential import (
    SequentialTest,
    delay_test,
    duplicates_test,
    jitter_test,
    loss_test,
    order_test,
    rate_test,
    reachability_test,
    until_sure,
)
from testbed.controller.assertions.shares import (
    SampleTooSmallError,
    assert_duplicates,
    assert_loss,
    assert_order,
    assert_reachable,
    assert_unreachable,
    out_of_order,
    overtakes,
    required_frames,
)
from testbed.spec.layout import Impairment
from tests.unit.fates.wire_frames import MICROSECOND, MILLISECOND, deliveries_of, number_of, numbered

FRAMES = 5200
GAP = 5 * MILLISECOND  # long enough that frames do not queue
SIZE = 1000
REPETITIONS = 30


def scaled_impairment(factor: float) -> Impairment:
    """Impairment whose values are all `factor` times the requested ones."""
    return Impairment(
        loss=0.3 * factor,
        duplicate=0.2 * factor,
        delay=round(5 * MILLISECOND * factor),
        jitter=round(MILLISECOND * factor),
        reorder=0,
    )


def arrivals_over(impairment: Impairment, seed: int) -> list[tuple[int, int]]:
    """Return time and number of each frame that arrives over an impaired link."""
    schedule = [(number * GAP, numbered(number)) for number in range(FRAMES)]
    return [(time, number_of(frame)) for time, frame in deliveries_of(impairment, schedule, seed=seed)]


def delays(arrivals: list[tuple[int, int]]) -> list[int]:
    return [time - number * GAP for time, number in arrivals]


CHECKS: dict[str, Callable[[list[tuple[int, int]]], object]] = {
    "loss": lambda arrivals: assert_loss("30%", FRAMES - len({number for _, number in arrivals}), FRAMES),
    "duplicates": lambda arrivals: assert_duplicates(
        "20%",
        len(arrivals) - len({number for _, number in arrivals}),
        len({number for _, number in arrivals}),
        off=0.25,
    ),
    "delay": lambda arrivals: assert_delay("5ms", delays(arrivals)),
    "jitter": lambda arrivals: assert_jitter("1ms", delays(arrivals), delay="5ms"),
    "loss, one by one": lambda arrivals: until_sure(loss_test(0.3), missing_flags(arrivals)),
    "duplicates, one by one": lambda arrivals: until_sure(duplicates_test(0.2), duplicate_flags(arrivals)),
    "delay, one by one": lambda arrivals: until_sure(delay_test("5ms"), delays(arrivals)),
    "jitter, one by one": lambda arrivals: until_sure(jitter_test("1ms", delay="5ms"), delays(arrivals)),
}


def missing_flags(arrivals: list[tuple[int, int]]) -> Iterator[bool]:
    arrived = {number for _, number in arrivals}
    return (number not in arrived for number in range(FRAMES))


def duplicate_flags(arrivals: list[tuple[int, int]]) -> Iterator[bool]:
    numbers = [number for _, number in arrivals]
    return (numbers.count(number) > 1 for number in dict.fromkeys(numbers))


@pytest.mark.parametrize("check", CHECKS)
def test_a_correct_link_passes(check: str) -> None:
    for seed in range(5):
        CHECKS[check](arrivals_over(scaled_impairment(1), seed))


@pytest.mark.parametrize("factor", [0.8, 1.2])
@pytest.mark.parametrize("check", [name for name in CHECKS if "duplicates" not in name])
def test_a_link_off_by_a_fifth_is_detected(check: str, factor: float) -> None:
    for seed in range(5):
        arrivals = arrivals_over(scaled_impairment(factor), seed)
        if "jitter" in check:  # around the configured delay
            arrivals = [(time - round(5 * MILLISECOND * (factor - 1)), number) for time, number in arrivals]
        with pytest.raises(AssertionError, match="expected"):
            CHECKS[check](arrivals)


def shaped_arrivals(rate: float, count: int, rng: random.Random) -> list[tuple[int, int]]:
    """Return arrivals of frames that queue at a rate, bit/s, each recorded a little late."""
    return [(round(number * SIZE * 8e9 / rate + rng.uniform(0, 50 * MICROSECOND)), SIZE) for number in range(count)]


@pytest.mark.parametrize("one_by_one", [False, True])
def test_a_rate_off_by_a_fifth_is_detected_in_spite_of_late_timestamps(one_by_one: bool) -> None:
    chance = random.Random(1)
    for _ in range(REPETITIONS):
        for factor in (1, 0.8, 1.2):
            arrivals = shaped_arrivals(1e7 * factor, 700, chance)
            check: Callable[[], object] = (
                (lambda sample=arrivals: until_sure(rate_test("10mbit", frames=10), sample))
                if one_by_one
                else (lambda sample=arrivals: assert_rate("10mbit", sample))
            )
            if factor == 1:
                check()
            else:
                with pytest.raises(AssertionError, match="the median rate is"):
                    check()


def test_a_median_delay_is_assessed_correctly_for_any_distribution() -> None:
    chance = random.Random(7)
    shapes: list[tuple[Callable[[], float], float]] = [
        (lambda: 600 + chance.expovariate(math.log(2) / 400), 1000),  # a long tail above
        (lambda: chance.choice((990.0, 1000.0, 1000.0, 1010.0)), 1000),
        (lambda: chance.gauss(1000, 60), 1000),
    ]
    for draw, median in shapes:
        for _ in range(REPETITIONS):
            samples = [draw() for _ in range(6000)]
            assert_delay(round(median), samples)
            for factor in (0.79, 1.21):
                with pytest.raises(AssertionError):
                    assert_delay(round(median), [sample * factor for sample in samples])


def test_a_sequential_test_stops_early_on_uniform_samples_and_late_on_wide_ones() -> None:
    assert until_sure(delay_test("5ms"), iter([5 * MILLISECOND] * 100)) < 35
    with pytest.raises(AssertionError, match=r"expected 5ms"):
        until_sure(delay_test("5ms"), iter([6 * MILLISECOND] * 100))
    chance = random.Random(3)
    samples_taken = until_sure(delay_test("5ms"), (chance.gauss(5 * MILLISECOND, MILLISECOND) for _ in range(10_000)))
    assert 100 < samples_taken < 2000


def test_a_median_within_the_allowed_lateness_passes_and_a_sample_must_show_the_deviation_beyond_it() -> None:
    assert_delay("5ms", [5_300_000] * 30, late="500us")
    with pytest.raises(AssertionError, match="or up to 500us more"):
        assert_delay("5ms", [5_600_000] * 30, late="500us")
    with pytest.raises(AssertionError, match="expected 5ms"):
        assert_delay("5ms", [4_999_000] * 30, late="500us")
    with pytest.raises(AssertionError, match="the median delay is -2us to -2us"):
        assert_delay("5ms", [-2_000] * 30)
    with pytest.raises(SampleTooSmallError, match=r"cannot show that the median delay is off by 1ms.* and 1ms more"):
        assert_delay("5ms", [5_300_000] * 30, late="1ms")


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda: assert_delay("5ms", [5_000_000] * 20), "20 samples are too few for the median delay: take 21 or more"),
        (lambda: assert_jitter("1ms", [5_000_000] * 21, delay="5ms"), "take 145 or more"),
        (lambda: assert_rate("1mbit", [(number * 8_000_000, 1000) for number in range(20)]), "19 samples are too few"),
        (lambda: assert_duplicates("1%", 1, 100), "100 frames cannot show"),
        (lambda: assert_order("1%", 1, 100), "100 frames cannot show"),
        (lambda: assert_loss("30%", 300, 1_000, off=0.1), "off by 10%: send 12,"),
        (lambda: assert_reachable(0, 10, loss="50%"), "distinguish an unreachable peer from a loss of 0.5: send 20"),
        (lambda: assert_unreachable(0, 2, loss="1%"), "send 3"),
        (lambda: assert_reachable(0, 10, loss=1), "cannot be distinguished from an unreachable peer"),
        (lambda: until_sure(loss_test("30%"), [True, False] * 3), "6 samples were not enough for a decision: 3 were lost"),
        (lambda: until_sure(delay_test("5ms"), [5_000_000] * 10), "not enough for a decision: the median delay"),
        (lambda: until_sure(rate_test("1mbit"), []), "0 blocks of 20 frames"),
        (lambda: until_sure(reachability_test("10%"), [False] * 5), "no probe was answered; 6 are needed"),
    ],
)  # fmt: skip
def test_a_sample_too_small_for_the_deviation_is_rejected(check: Callable[[], object], message: str) -> None:
    with pytest.raises(SampleTooSmallError, match=message):
        check()


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda: assert_delay(0, [1] * 30), "the delay must be above 0.*got 0"),
        (lambda: assert_delay("5", [1] * 30), "bare number"),
        (lambda: assert_rate("0bit", []), "the rate must be above 0.*got 0bit"),
        (lambda: assert_delay("5ms", [1], off=0), "must be 0.001 or more, and below 1, got 0"),
        (lambda: assert_loss(0.3, 300, 1000, off=1e-9), "must be 0.001 or more, and below 1, got 1e-09"),
        (lambda: assert_delay("5ms", [1] * 30, late=-5), "late must be 0 or more, got -5"),
        (
            lambda: assert_delay("5ms", [5e6, math.nan] * 30),
            "not a finite number: leave out frames that did not arrive",
        ),
        (lambda: delay_test("5ms").add(math.inf), "not a finite number"),
        (lambda: assert_delay("5ms", [0.005] * 30), "such as 0.005: delays are in nanoseconds"),
        (lambda: delay_test("5ms").add(0.005), "such as 0.005: delays are in nanoseconds"),
        (lambda: assert_jitter("1ms", [1] * 200, delay=-5), "delay must be 0 or more, got -5"),
        (lambda: jitter_test("1ms", delay="5ms", distribution="gauss"), "must be uniform or normal, got 'gauss'"),  # type: ignore[arg-type]
        (lambda: assert_rate("1mbit", [(1, 1), (2, 1)], overhead=-20), "the overhead must be 0 bytes or more, got -20"),
        (lambda: rate_test("1mbit", frames=0), "a block must have 1 frame or more, got 0"),
        (lambda: assert_loss(0.1, 5, 4), "that were lost must be 0 to 4, got 5"),
        (lambda: loss_test(0), "must be above 0 and below 1, got 0"),
        (lambda: reachability_test(1), "cannot be distinguished from an unreachable peer"),
        (lambda: block_rates([(5, 1), (5, 1)], 1), "the clock is too coarse"),
    ],
)
def test_invalid_arguments_are_rejected(check: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check()


def test_order_is_kept_or_changed_at_the_configured_rate() -> None:
    numbers = [0, 1, 3, 2, 2, 4, 7, 5, 6, 7]
    assert overtakes(numbers) == [False, False, True, False, False, True, False, False], "3 overtakes 2; 7, 5 and 6"
    assert out_of_order(numbers) == 2
    assert_order(0, 0, 10)
    with pytest.raises(AssertionError, match="exactly 0"):
        assert_order(0, 1, 10_000)


@pytest.mark.parametrize("gap", [100 * MICROSECOND, 500 * MICROSECOND])
def test_a_reordering_link_passes_with_any_number_of_overtaken_frames_and_one_off_by_a_fifth_is_detected(
    gap: int,
) -> None:
    frames = required_frames(0.25)
    schedule = [(number * gap, numbered(number)) for number in range(frames)]
    for factor in (1, 0.8, 1.2):
        for seed in range(3):
            impairment = Impairment(delay=5 * MILLISECOND, reorder=0.25 * factor)
            numbers = [number_of(frame) for _, frame in deliveries_of(impairment, schedule, seed=seed)]
            if factor == 1:
                assert_order("25%", out_of_order(numbers), frames)
                until_sure(order_test("25%"), overtakes(numbers))
            else:
                with pytest.raises(AssertionError, match=r"were out of order, 0\.\d+; expected 0\.25"):
                    assert_order("25%", out_of_order(numbers), frames)
                with pytest.raises(AssertionError, match="were out of order"):
                    until_sure(order_test("25%"), overtakes(numbers))


def test_jitter_larger_than_the_delay_passes_since_delays_are_cut_off_at_0() -> None:
    for factor in (1, 0.79, 1.21):
        impairment = Impairment(delay=MILLISECOND, jitter=round(2 * MILLISECOND * factor), distribution="uniform")
        arrivals = arrivals_over(impairment, seed=1)
        if factor == 1:
            assert_jitter("2ms", delays(arrivals), delay="1ms")
            until_sure(jitter_test("2ms", delay="1ms"), delays(arrivals))
        else:
            with pytest.raises(AssertionError, match="the 90% quantile of the delay"):
                assert_jitter("2ms", delays(arrivals), delay="1ms")


def test_one_answer_proves_reachability_and_silence_needs_more_probes_than_loss_explains() -> None:
    assert_reachable(1, 20, loss="50%")
    assert_unreachable(0, 20, loss="50%")
    assert_unreachable(0, 1)
    assert until_sure(reachability_test("50%"), [False, False, True, False]) == 3
    with pytest.raises(AssertionError, match="none of 20 probes was answered"):
        assert_reachable(0, 20, loss="50%")
    with pytest.raises(AssertionError, match="1 of 20 probes were answered, expected none"):
        assert_unreachable(1, 20, loss="50%")
    silent: SequentialTest[bool] = reachability_test("50%")
    with pytest.raises(AssertionError, match="none of 20 probes"):
        until_sure(silent, iter(lambda: False, True))


def test_the_minimum_sample_sizes_of_median_and_90_percent_quantile() -> None:
    assert (min_samples(0.5), min_samples(0.9)) == (21, 138)

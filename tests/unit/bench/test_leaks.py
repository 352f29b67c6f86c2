"""Steady growth is reported as a leak; warm-up and variation are not."""

import random

import pytest

from benchmarks.harness.rows import Row
from benchmarks.runs.leaks import MIN, Sample, growth, minimum_increase
from benchmarks.runs.process_watch import NODES
from benchmarks.runs.storm import DESCRIPTORS, LEFT, MEMORY, MESSAGES
from benchmarks.runs.targets import STEADY, leaks

MEBIBYTE = 1 << 20
SECONDS = 60


def samples_of(value: "dict[int, float] | list[float]") -> list[Sample]:
    return [(float(second), value[second]) for second in range(SECONDS)]


def noisy_samples(seed: int, slope: float, noise: float) -> list[Sample]:
    rng = random.Random(seed)
    return samples_of([30 * MEBIBYTE + slope * second + rng.gauss(0, noise) for second in range(SECONDS)])


@pytest.mark.parametrize("seed", range(5))
def test_a_leak_is_detected_in_varying_memory(seed: int) -> None:
    result = growth(noisy_samples(seed, slope=20_000, noise=30_000))
    assert result.samples == SECONDS / 2
    assert 0 < result.least < 20_000 * result.seconds < result.most
    assert result.gained == pytest.approx(20_000 * result.seconds, rel=0.2)


@pytest.mark.parametrize("seed", range(20))
def test_noise_is_not_a_leak(seed: int) -> None:
    result = growth(noisy_samples(seed, slope=0, noise=100_000))
    assert result.least < 0 < result.most


def test_a_leak_in_steps_of_the_allocator_is_detected() -> None:
    result = growth(samples_of([MEBIBYTE * (second // 4) for second in range(SECONDS)]))
    assert result.least > 4 * MEBIBYTE


def test_a_single_step_is_not_a_leak() -> None:
    result = growth(samples_of([(100 * MEBIBYTE if second > 45 else 0) for second in range(SECONDS)]))
    assert result.least <= 0


def test_growth_during_warm_up_is_ignored() -> None:
    result = growth(samples_of([min(second, 25) * MEBIBYTE for second in range(SECONDS)]))
    assert (result.least, result.gained, result.most) == (0, 0, 0)


def test_an_outlier_neither_hides_a_leak_nor_is_one() -> None:
    leak = [20_000.0 * second for second in range(SECONDS)]
    leak[50] = 0
    assert growth(samples_of(leak)).least > 0
    flat = [0.0] * SECONDS
    flat[50] = 1e9
    assert growth(samples_of(flat)).least == 0


def test_too_few_samples_are_rejected() -> None:
    series = samples_of([0.0] * SECONDS)
    growth(series[: 2 * MIN])
    with pytest.raises(ValueError, match="too few to detect a leak"):
        growth(series[: 2 * MIN - 2])


def test_a_lasting_descriptor_is_detected_and_a_short_lived_one_is_not() -> None:
    assert minimum_increase(samples_of([11 + (second > 38) for second in range(SECONDS)])) == 1
    assert minimum_increase(samples_of([11 + 12 * (second % 3 == 0) for second in range(SECONDS)])) == 0
    assert minimum_increase(samples_of([11 - (second > 50) for second in range(SECONDS)])) == -1
    with pytest.raises(ValueError, match="too few to detect a leak"):
        minimum_increase([(0.0, 1.0), (1.0, 1.0)])


def row(measure: str, value: float, **settings: object) -> Row:
    return Row("storm", "kernel", measure, 4, "B", (value,), {"messages": 1_000, **settings})


def test_leaks_and_leftovers_of_a_storm_are_reported() -> None:
    leak_free = [row(MESSAGES, 10), row(LEFT, 0, what=[]), row(f"relay: {MEMORY}", STEADY),
             row(f"{NODES}: {MEMORY}", 4 * 65536 + 100_000), row(f"relay: {DESCRIPTORS}", 0)]  # fmt: skip
    assert leaks(leak_free) == []
    assert leaks([row(LEFT, 1, what=["mount x"])]) == ["left behind: 1 B ['mount x']"]
    assert leaks([row(f"relay: {MEMORY}", STEADY + 1)]) != []
    assert leaks([row(f"{NODES}: {MEMORY}", 4 * 65536 + 100_001)]) != []
    assert leaks([row(f"controller: {DESCRIPTORS}", 1)]) != []

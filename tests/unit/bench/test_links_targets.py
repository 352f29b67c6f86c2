"""Targets computed from the rows of the links benchmark."""

from collections.abc import Sequence

import pytest

from benchmarks.harness.rows import Row
from benchmarks.links import relay, throughput
from benchmarks.links.lateness import FRAME_LATE, TESTBED
from benchmarks.links.relay import Trial, highest_clean_rate
from benchmarks.links.targets import targets


def row(subject: str, contender: str, measure: str, *samples: float) -> Row:
    return Row(subject, contender, measure, 2, "1", samples, {})


def is_reached(rows: Sequence[Row], name_part: str) -> bool | None:
    return next(target.reached for target in targets(rows) if name_part in target.name)


@pytest.mark.parametrize(("rate", "expected"), [(120_000, True), (119_999, False)])
def test_the_target_is_120_000_frames_per_second(rate: float, expected: bool) -> None:
    rows = [row("relay", "testbed", relay.CLEAN, rate - 1, rate, rate + 1)]
    assert is_reached(rows, "without unasked-for loss") is expected


@pytest.mark.parametrize(("lateness", "expected"), [(49e-6, True), (50e-6, False)])
def test_lateness_is_the_median_of_the_runs(lateness: float, expected: bool) -> None:
    rows = [row("lateness", TESTBED, FRAME_LATE.format("p50"), 1e-6, lateness, 1.0)]
    assert is_reached(rows, "p50") is expected


@pytest.mark.parametrize(("ours", "expected"), [(0.951, True), (0.949, False), (2.0, True)])
def test_the_limit_of_unimpaired_tcp_is_five_per_cent_slower(ours: float, expected: bool) -> None:
    rows = [row("unimpaired", name, throughput.TCP, value) for name, value in (("testbed", ours), ("ip", 1.0))]
    assert is_reached(rows, "unimpaired: TCP") is expected


@pytest.mark.parametrize(("ours", "expected"), [(1.049, True), (1.051, False), (0.5, True)])
def test_the_limit_of_unimpaired_round_trips_is_five_per_cent_longer(ours: float, expected: bool) -> None:
    rows = [row("unimpaired", name, throughput.ROUND_TRIP, value) for name, value in (("testbed", ours), ("ip", 1.0))]
    assert is_reached(rows, "unimpaired: round trip") is expected


@pytest.mark.parametrize(("cost", "expected"), [(1.49, True), (1.5, False)])
def test_the_cost_of_a_frame_with_many_links_is_at_most_one_and_a_half_times(cost: float, expected: bool) -> None:
    measure = relay.LINKS.format(load=relay.LOADS[0])
    rows = [row("links", "2 links", measure, 1.0), row("links", "200 links", measure, cost)]
    assert is_reached(rows, f"{relay.LOADS[0]:,}/s") is expected


def test_comparisons_use_the_measurements_of_one_round() -> None:
    ours, theirs = (1.0, 10.0, 100.0), (1.0, 10.5, 80.0)
    rows = [row("unimpaired", "testbed", throughput.TCP, *ours), row("unimpaired", "ip", throughput.TCP, *theirs)]
    (measured,) = [target.measured for target in targets(rows) if "unimpaired: TCP" in target.name]
    assert measured == pytest.approx(0.0)


def test_unmeasured_targets_are_neither_reached_nor_missed() -> None:
    assert {target.reached for target in targets([])} == {None}


def trial_of_relay(capacity: float, rate: float, lost: int = 0) -> Trial:
    """Return a trial of one second at `rate` with a relay of a capacity, frames/s."""
    return Trial(sent=int(rate), rate=rate, seconds=1.0, offered=int(rate), lost=lost, cpu=rate / capacity)


@pytest.mark.parametrize("capacity", [10_000.0, 45_000.0, 123_456.0, 400_000.0])
def test_the_search_ends_just_below_the_relays_capacity(capacity: float) -> None:
    highest_rate = highest_clean_rate(lambda rate: trial_of_relay(capacity, rate))
    assert highest_rate is not None
    assert capacity / relay.RESOLUTION <= highest_rate.rate <= capacity


def test_a_relay_that_always_loses_frames_has_no_clean_rate() -> None:
    assert highest_clean_rate(lambda rate: trial_of_relay(1e6, rate, lost=1)) is None


def test_one_disturbed_trial_does_not_end_the_search() -> None:
    trials = 0

    def disturbed(rate: float) -> Trial:
        nonlocal trials
        trials += 1
        return trial_of_relay(100_000, rate, lost=1 if trials % relay.ATTEMPTS else 0)

    highest_rate = highest_clean_rate(disturbed)
    assert highest_rate is not None
    assert highest_rate.rate > 100_000 / relay.RESOLUTION

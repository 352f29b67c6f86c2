"""Expected probe results are computed from the impairment alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from testbed.controller.probing.expectations import expect, probes_needed
from testbed.controller.probing.probe_plan import MAX_PACE, plan_for
from testbed.fabric.direction import LinkDirection
from testbed.fates.stage import FateOptions
from testbed.spec.layout import Impairment

MILLISECOND = 1_000_000


def test_a_plain_delay_is_one_value() -> None:
    expectation = expect(Impairment(delay=2 * MILLISECOND), {})
    assert expectation.delays == (2 * MILLISECOND,)
    assert expectation.range == expectation.spread == 0
    assert expectation.loss.share == 0


def test_a_rate_delays_a_lone_probe_unless_a_token_bucket_enforces_it() -> None:
    impairment = Impairment(rate=1_000_000)
    assert expect(impairment, {}).delays == (480_000,)  # 60 bytes at 1 Mbit/s
    assert expect(impairment, {}, bucket=True).delays == (0,)
    assert expect(replace(impairment, minimum_frame=64, overhead=20), {}).delays == (672_000,)


@pytest.mark.parametrize("distribution", ["uniform", "normal", "pareto"])
def test_the_delays_are_those_of_the_link_model(distribution: str) -> None:
    """Send lone frames through the model, and compare their delays with the expected quantiles."""
    impairment = Impairment(delay=50 * MILLISECOND, jitter=5 * MILLISECOND, distribution=distribution)
    expectation = expect(impairment, {})
    wire = LinkDirection("l", "forward", impairment, FateOptions(seed=3))
    delays = []
    for n in range(4_000):
        start = n * 1_000 * MILLISECOND
        wire.offer(start, bytes(60))
        ((due, _),) = wire.poll(start + 999 * MILLISECOND)
        delays.append(due - start)
    delays.sort()
    assert expectation.delays[0] <= delays[0]
    assert delays[-1] <= expectation.delays[-1]
    for share in (0.1, 0.25, 0.5, 0.75, 0.9):
        error = 4.892 * (share * (1 - share) / len(delays)) ** 0.5
        assert expectation.delay(share - error) <= delays[int(share * len(delays))] <= expectation.delay(share + error)


def test_a_delay_that_jitter_would_make_negative_is_zero() -> None:
    assert expect(Impairment(delay=MILLISECOND, jitter=3 * MILLISECOND), {}).delays[0] == 0


def test_independent_causes_of_loss_combine_into_one_share() -> None:
    loss = expect(Impairment(loss=0.1, gemodel=(0.1, 0.4, 1.0, 0.0), loss_pattern="1 every 4"), {}).loss
    assert loss.share == pytest.approx(1 - 0.9 * 0.8 * 0.75)
    assert loss.inflation > 1
    assert expect(Impairment(loss=0.05), {}).loss.share == 0.05


def test_unpredictable_fates_have_a_reason() -> None:
    assert "without a period" in expect(Impairment(loss_pattern="5, 12"), {}).loss.unpredictable
    assert (
        "cannot be read"
        in expect(Impairment(jitter=1, distribution="table", jitter_file="x.dist"), {}).delay_unpredictable
    )
    assert expect(Impairment(rate_trace="t"), {}).delay_unpredictable
    assert expect(Impairment(rate_trace="t"), {}).rate_unpredictable
    trace = Impairment(delay=MILLISECOND, distribution="trace", jitter_file="t")
    assert expect(trace, {"t": "1ms\n0\n"}).delay_unpredictable
    assert expect(trace, {"t": "1ms\n0\n"}).delays == (MILLISECOND, 2 * MILLISECOND)


def test_frames_that_skip_the_delay_are_distinguished_from_others() -> None:
    expectation = expect(Impairment(delay=10 * MILLISECOND, reorder=0.1), {})
    assert expectation.skip_below == 5 * MILLISECOND
    assert not expectation.reorder.unpredictable
    assert expect(Impairment(delay=50_000, reorder=0.1), {}).reorder.unpredictable


def test_rarer_losses_need_more_probes() -> None:
    few, many = (probes_needed(expect(Impairment(loss=share), {})) for share in (0.1, 0.01))
    assert 0 < few < many
    assert probes_needed(expect(Impairment(delay=1), {})) == 0
    assert probes_needed(expect(Impairment(loss=1.0), {})) == 0


def test_timed_probes_are_further_apart_than_their_jitter() -> None:
    impairment = Impairment(delay=20 * MILLISECOND, jitter=10 * MILLISECOND)
    assert plan_for(impairment, expect(impairment, {}), 1, 1500).interval >= 20 * MILLISECOND


def test_probes_use_at_most_a_tenth_of_the_rate_and_their_share_of_the_pace() -> None:
    for impairment in (Impairment(rate=1_000_000, loss=0.05), Impairment(loss=0.05), Impairment(rate=64_000)):
        for directions in (1, 2, 400):
            plan = plan_for(impairment, expect(impairment, {}), directions, 1500)
            frames = plan.burst * 1e9 / plan.interval
            assert frames <= MAX_PACE / directions
            if impairment.rate:
                assert frames * 480 <= impairment.rate / 10


def test_a_burst_of_probes_does_not_fill_the_queue() -> None:
    impairment = Impairment(rate=10**9, loss=0.01, queue_frames=4)
    assert plan_for(impairment, expect(impairment, {}), 1, 1500).burst <= 2


@pytest.mark.parametrize("rate", [64_000, 1_000_000, 100_000_000, 500_000_000])
def test_a_train_exceeds_the_rate_and_is_long_enough(rate: int) -> None:
    impairment = Impairment(rate=rate, loss=0.2)
    train = plan_for(impairment, expect(impairment, {}), 1, 1500).train
    assert train is not None
    assert train.count >= 100
    assert 60 <= train.size <= 1514
    rate_passed = 0.8 * train.count * train.bits * 1e9 / train.duration
    assert 1.25 * rate < rate_passed < 1.5 * rate
    assert train.duration <= 8 * 10**9


def test_a_rate_that_cannot_be_reached_has_no_train_and_a_reason() -> None:
    fast_link = Impairment(rate=40_000_000_000)
    plan = plan_for(fast_link, expect(fast_link, {}), 1, 1500)
    assert plan.train is None
    assert "40 Gbit/s" in plan.no_train
    lossy = Impairment(rate=1_000_000, loss=1.0)
    assert plan_for(lossy, expect(lossy, {}), 1, 1500).no_train
    unlimited = Impairment(delay=1)
    assert plan_for(unlimited, expect(unlimited, {}), 1, 1500).no_train == ""

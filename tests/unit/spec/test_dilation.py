"""Dilation by k: delays of links and faults grow k times, rates shrink k times."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.errors import UnsupportedError
from testbed.fabric.direction import LinkDirection
from testbed.fates.stage import FateOptions
from testbed.spec.dilation import slow_layout, slow_rule
from testbed.spec.fault_models import Impair, Incast, Pause, Rule
from testbed.spec.model import Description
from testbed.spec.resolver import resolve
from testbed.spec.scenario import slow_fault
from testbed.spec.units import format_limit


def test_delays_grow_rates_shrink_and_other_keys_of_a_link_stay() -> None:
    layout = resolve(Description.star(2, delay="10us", jitter="2us", rate="1gbit", loss="5%", queue="30KiB", seed=4))
    slowed = slow_layout(layout, 100)
    for before, after in zip(layout.links, slowed.links, strict=True):
        for original, dilated in ((before.forward, after.forward), (before.backward, after.backward)):
            assert (dilated.delay, dilated.jitter, dilated.rate) == (1_000_000, 200_000, 10_000_000)
            assert (dilated.loss, dilated.queue) == (original.loss, original.queue)
            assert dilated.distribution == original.distribution
    assert slowed.nodes == layout.nodes
    assert slowed.switches == layout.switches
    assert slowed.seed == layout.seed
    assert slow_layout(layout, 1) is layout


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("delay 1ms tcp.dport == 5001 and nth(3)", "delay 100000000ns tcp.dport == 5001 and nth(3)"),
        ("drop udp and between(2s, 2.5s)", "drop udp and between(200000000000ns, 250000000000ns)"),
        ("drop eth.type == 0x88b6 and every(10)", "drop eth.type == 0x88b6 and every(10)"),
        ("delay 1.5e3us emp.type == 3", "delay 150000000ns emp.type == 3"),
        ("drop emp.type == 3 and after(20us)", "drop emp.type == 3 and after(2000000ns)"),
    ],
)
def test_only_delays_and_times_of_a_rule_change(rule: str, expected: str) -> None:
    assert slow_rule(rule, 100) == expected


def test_values_from_files_and_rates_below_one_bit_are_rejected() -> None:
    with pytest.raises(UnsupportedError, match="in a file cannot be slowed"):
        slow_layout(resolve(Description.star(2, rate_trace="lte.trace")), 10)
    with pytest.raises(UnsupportedError, match="500 bit/s, 1000 times slower"):
        slow_layout(resolve(Description.star(2, rate="500bit")), 1_000)


@given(
    st.lists(st.tuples(st.integers(0, 50_000), st.integers(60, 1500)), max_size=30),
    st.integers(2, 300),
    st.sampled_from([0, 1_000_000, 100_000_000]),
    st.integers(0, 20_000),
)
def test_frames_leave_a_slowed_link_at_the_slowed_times(
    frames: list[tuple[int, int]], factor: int, rate: int, delay: int
) -> None:
    """Times agree up to the rounding to nanoseconds and to integer bit/s."""
    layout = resolve(Description.back_to_back(rate=format_limit(rate), delay=f"{delay}ns", loss="20%", seed=3))
    delivery_times = []
    for first, scale in ((layout, 1), (slow_layout(layout, factor), factor)):
        link = first.links[0]
        direction = LinkDirection(link.name, "forward", link.forward, FateOptions(seed=first.seed))
        now, deliveries = 0, []
        for gap, size in frames:
            now += gap
            direction.offer(now * scale, bytes(size))
        while direction.deadline is not None:
            time = direction.deadline
            deliveries += [(time / scale, len(frame)) for frame in direction.poll(time)]
        delivery_times.append(deliveries)
    unslowed, slowed = delivery_times
    assert [size for _, size in unslowed] == [size for _, size in slowed]
    rounding = factor / rate if rate else 0.0
    for (first, _), (second, _) in zip(unslowed, slowed, strict=True):
        assert abs(first - second) <= 1 + len(frames) + first * rounding


def test_the_delays_of_a_fault_grow_its_rates_shrink_and_its_schedule_stays() -> None:
    fault = Impair(
        on="n1", from_="4ms", to="8ms", delay="50us", jitter="1us", rate="1gbit", loss="5%",
        rules=["delay 1ms emp.type == 1 and nth(2)", "drop eth.type == 0x88b5"],
    )  # fmt: skip
    slowed_fault = slow_fault(fault, 100)
    assert isinstance(slowed_fault, Impair)
    assert (slowed_fault.delay, slowed_fault.jitter, slowed_fault.rate, slowed_fault.loss) == (
        5_000_000,
        100_000,
        10_000_000,
        0.05,
    )
    assert slowed_fault.rules == ("delay 100000000ns emp.type == 1 and nth(2)", "drop eth.type == 0x88b5")
    assert (slowed_fault.begin, slowed_fault.to) == (fault.begin, fault.to)


def test_rules_and_loads_are_slowed_and_other_quantities_stay() -> None:
    rule = slow_fault(Rule(rules="delay 2us ip", at="1ms"), 10)
    assert isinstance(rule, Rule)
    assert rule.rules == ("delay 20000ns ip",)
    load = slow_fault(Incast(receiver="n1", rate="1mbit", at="1ms"), 10)
    assert isinstance(load, Incast)
    assert load.rate == 100_000
    pause = Pause(on="n1", at="1ms", for_="2ms")
    assert slow_fault(pause, 10) == pause


@pytest.mark.parametrize("keys", [{"jitter_file": "a.csv"}, {"rate_trace": "b.csv"}, {"rate": "5bit"}])
def test_a_fault_that_cannot_be_slowed_is_rejected(keys: dict[str, str]) -> None:
    with pytest.raises(UnsupportedError):
        slow_fault(Impair(on="n1", at="1ms", **keys), 10)

"""Links, and faults of links, that take k times as long."""

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


def test_times_grow_rates_shrink_and_what_counts_frames_stays() -> None:
    layout = resolve(Description.star(2, delay="10us", jitter="2us", rate="1gbit", loss="5%", queue="30KiB", seed=4))
    slow = slow_layout(layout, 100)
    for before, after in zip(layout.links, slow.links, strict=True):
        for one, other in ((before.forward, after.forward), (before.backward, after.backward)):
            assert (other.delay, other.jitter, other.rate) == (1_000_000, 200_000, 10_000_000)
            assert (other.loss, other.queue, other.distribution) == (one.loss, one.queue, one.distribution)
    assert slow.nodes == layout.nodes
    assert slow.switches == layout.switches
    assert slow.seed == layout.seed
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
    """Times agree up to the rounding of times, and of a rate to integer bit/s."""
    layout = resolve(Description.back_to_back(rate=format_limit(rate), delay=f"{delay}ns", loss="20%", seed=3))
    times = []
    for one, scale in ((layout, 1), (slow_layout(layout, factor), factor)):
        link = one.links[0]
        direction = LinkDirection(link.name, "forward", link.forward, FateOptions(seed=one.seed))
        now, left = 0, []
        for gap, size in frames:
            now += gap
            direction.offer(now * scale, bytes(size))
        while direction.deadline is not None:
            at = direction.deadline
            left += [(at / scale, len(frame)) for frame in direction.poll(at)]
        times.append(left)
    plain, slow = times
    assert [size for _, size in plain] == [size for _, size in slow]
    rounded = factor / rate if rate else 0.0
    for (one, _), (second, _) in zip(plain, slow, strict=True):
        assert abs(one - second) <= 1 + len(frames) + one * rounded


def test_a_faults_delays_grow_and_its_rates_shrink_and_its_times_stay() -> None:
    fault = Impair(
        on="n1", from_="4ms", to="8ms", delay="50us", jitter="1us", rate="1gbit", loss="5%",
        rules=["delay 1ms emp.type == 1 and nth(2)", "drop eth.type == 0x88b5"],
    )  # fmt: skip
    slow = slow_fault(fault, 100)
    assert isinstance(slow, Impair)
    assert (slow.delay, slow.jitter, slow.rate, slow.loss) == (5_000_000, 100_000, 10_000_000, 0.05)
    assert slow.rules == ("delay 100000000ns emp.type == 1 and nth(2)", "drop eth.type == 0x88b5")
    assert (slow.begin, slow.to) == (fault.begin, fault.to)


def test_rules_and_loads_are_slowed_and_what_is_no_quantity_of_links_stays() -> None:
    rule = slow_fault(Rule(rules="delay 2us ip", at="1ms"), 10)
    assert isinstance(rule, Rule)
    assert rule.rules == ("delay 20000ns ip",)
    load = slow_fault(Incast(receiver="n1", rate="1mbit", at="1ms"), 10)
    assert isinstance(load, Incast)
    assert load.rate == 100_000
    pause = Pause(on="n1", at="1ms", for_="2ms")
    assert slow_fault(pause, 10) == pause


@pytest.mark.parametrize("said", [{"jitter_file": "a.csv"}, {"rate_trace": "b.csv"}, {"rate": "5bit"}])
def test_a_fault_that_cannot_be_slowed_is_refused(said: dict[str, str]) -> None:
    with pytest.raises(UnsupportedError):
        slow_fault(Impair(on="n1", at="1ms", **said), 10)

"""netem on a real kernel: its dump equals the request, changes are made in place, and fates of frames are as the table of
datapaths says. Rates and jitter are tested in `test_netem_timing`.
"""

from __future__ import annotations

import itertools
import random
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from testbed import Cluster, RunningCluster
from testbed.cluster.plan.veth_wiring import free_ends
from testbed.fabric.direction import LinkDirection
from testbed.fates.stage import FateOptions
from testbed.kernel import namespaces, netem, rtnl_dump
from testbed.kernel.capabilities import probe_capabilities
from testbed.kernel.netem import Options
from testbed.spec.layout import Impairment
from tests.unit.fates.statistical_checks import check_share
from tests.vm.spliced_link import SLOW, SplicedLink, numbers, packet_generator, spliced

pytestmark = pytest.mark.requires("vm", "root", "ip", "ping")

MS = 10**6
SECOND = 10**9
MTU = 1500
NEVER = 10_000 * SECOND  # longer than any test
SEED = 0x0123_4567_89AB_CDEF


@pytest.fixture(scope="module", autouse=True)
def _packet_generator() -> Iterator[None]:
    with packet_generator():
        yield


@pytest.fixture
def splice() -> Iterator[SplicedLink]:
    with spliced() as qdisc:
        yield qdisc


def options(impairment: Impairment) -> Options:
    return netem.options_of(impairment, mtu=MTU, seed=SEED)


def as_reported(requested: Options) -> Options:
    """Return the options as this kernel reports them: without a seed if it knows none."""
    return requested.reportable if probe_capabilities().netem_seed else replace(requested.reportable, seed=None)


# Encoding


def test_capabilities_of_the_kernel_are_probed() -> None:
    capabilities = probe_capabilities()
    assert (
        capabilities.netem,
        capabilities.netem_duplicate,
        capabilities.size_table,
        capabilities.tbf,
        capabilities.bpf,
    ) == (True,) * 5
    if not capabilities.netem_seed:
        assert capabilities.reasons == {
            "netem_seed": "this kernel's netem takes no seed: the kernel did not keep it (Linux 6.6 and later do)"
        }


NAMED = {
    "nothing": Impairment(),
    "delay": Impairment(delay=1),
    "a delay beyond 32 bits of ticks": Impairment(delay=300 * SECOND),
    "uniform": Impairment(delay=MS, jitter=1001),
    "normal": Impairment(delay=MS, jitter=2**31 - 1, distribution="normal"),
    "pareto": Impairment(delay=MS, jitter=MS, distribution="pareto"),
    "the smallest probabilities": Impairment(delay=1, loss=1e-12, corrupt=1e-12, duplicate=1e-12, reorder=1e-12),
    "certainties": Impairment(delay=1, loss=1.0, corrupt=1.0, duplicate=1.0, reorder=1.0),
    "gemodel": Impairment(gemodel=(0.01, 0.3, 0.9, 0.001)),
    "a slow rate": Impairment(rate=8),
    "a rate beyond 32 bits": Impairment(rate=400 * 10**9, delay=MS),
    "cells": Impairment(rate=155_520_000, overhead=8, cell_size=48, cell_overhead=5),
    "less than a frame": Impairment(rate=10**9, overhead=-14, minimum_frame=60),
}


def draw_impairment(source: random.Random) -> Impairment:
    """Draw an impairment that netem supports."""

    def sometimes(value: int) -> int:
        return value if source.random() < 0.5 else 0

    def probability() -> float:
        return source.choice((0.0, source.random(), 10 ** -source.uniform(0, 12)))

    delay = sometimes(int(10 ** source.uniform(0, 11)))
    jitter = sometimes(source.randrange(2**31)) if delay else 0
    gemodel = tuple(probability() for _ in range(4)) if source.random() < 0.3 else ()
    cell_size = sometimes(source.randrange(16, 9000))
    return Impairment(
        delay=delay,
        jitter=jitter,
        distribution=source.choice(("", "uniform", "normal", "pareto")) if jitter else "",
        rate=sometimes(int(10 ** source.uniform(0, 12))),
        queue=sometimes(source.randrange(1, 10**9)),
        loss=0.0 if gemodel else probability(),
        corrupt=probability(),
        duplicate=probability(),
        reorder=probability() if delay else 0.0,
        gemodel=gemodel,
        minimum_frame=sometimes(source.randrange(1, 9000)),
        overhead=sometimes(source.randrange(-14, 1024)),
        cell_size=cell_size,
        cell_overhead=sometimes(source.randrange(1024)) if cell_size else 0,
    )


def test_the_kernel_reports_the_encoded_options_after_any_change(splice: SplicedLink) -> None:
    """One interface is changed in place each time, so that an option omitted by a change would show."""
    source = random.Random(20)
    expected = {name: options(netem_options) for name, netem_options in NAMED.items()}
    expected |= {f"drawn {index}": options(draw_impairment(source)) for index in range(60)}
    order = list(expected)
    source.shuffle(order)
    for name in order:
        splice.set(expected[name])
        qdisc = splice.qdisc()
        assert (qdisc.kind, qdisc.handle) == ("netem", netem.HANDLE), name
        assert netem.decode(qdisc.options) == as_reported(expected[name]), name
        assert qdisc.has_size_table is (expected[name].sizes is not None), name


def test_tc_shows_the_encoded_options(splice: SplicedLink) -> None:
    def qdisc_text() -> str:
        return subprocess.run(
            ["tc", "qdisc", "show", "dev", "b", "root"], capture_output=True, text=True, check=True
        ).stdout

    splice.set(
        options(Impairment(delay=5 * MS, reorder=0.25, duplicate=0.125, corrupt=0.5, gemodel=(0.01, 0.3, 0.9, 0.0)))
    )
    text = qdisc_text()
    assert "limit 744048 delay 5ms" in text
    assert "loss gemodel p 1% r 30% 1-h 90%" in text
    assert "duplicate 12.5% reorder 25% corrupt 50%" in text
    assert "gap 1" in text
    splice.set(options(Impairment(loss=0.2, rate=10**9, overhead=24, cell_size=48, cell_overhead=5, queue_frames=9)))
    text = qdisc_text()
    assert "limit 10 loss 20% rate 1Gbit packetoverhead 24 cellsize 48 celloverhead 5" in text
    assert "gemodel" not in text


def test_a_seed_repeats_the_fates_on_kernels_that_support_it() -> None:
    def lost_numbers() -> list[int]:
        with spliced() as splice:
            splice.set(options(Impairment(loss=0.5)))
            splice.send(200)
            return numbers(splice.arrived())

    assert (lost_numbers() == lost_numbers()) is probe_capabilities().netem_seed


# Live change


def test_a_change_keeps_the_frames_in_flight_and_the_counters(splice: SplicedLink) -> None:
    delay = int(8 * SLOW * SECOND)
    splice.set(options(Impairment(delay=delay)))
    splice.offer(50)
    assert splice.qdisc().queued == 50
    splice.set(options(Impairment(delay=1, corrupt=1e-12)))
    assert splice.qdisc().queued == 50, "a change dropped the frames in flight"
    splice.offer(20)
    assert numbers(splice.arrived(held=50)) == list(range(1, 21))  # they overtake those of the longer delay
    assert splice.qdisc().frames == 20
    assert numbers(splice.arrived()) == list(range(1, 51))
    qdisc = splice.qdisc()
    assert (qdisc.frames, qdisc.dropped, qdisc.queued) == (70, 0, 0)


def test_a_change_applies_to_the_next_frame(splice: SplicedLink) -> None:
    for loss in (1.0, 0.0) * 5:
        splice.set(options(Impairment(loss=loss)))
        before = splice.qdisc().dropped
        splice.offer(1)
        assert (len(splice.arrived()), splice.qdisc().dropped - before) == ((0, 1) if loss else (1, 0))


# Fates of frames


def test_a_delay_keeps_order_and_loses_nothing_with_any_number_of_frames_in_flight(splice: SplicedLink) -> None:
    splice.set(options(Impairment(delay=int(5 * SLOW * SECOND))))
    splice.offer(3000)
    assert splice.qdisc().queued > 1000  # netem's default limit
    assert numbers(splice.arrived()) == list(range(1, 3001))


def test_losses_match_the_configured_rate(splice: SplicedLink) -> None:
    splice.set(options(Impairment(loss=0.25)))
    splice.send(6000)
    arrived = numbers(splice.arrived())
    assert arrived == sorted(set(arrived))
    assert splice.qdisc().dropped == 6000 - len(arrived)
    check_share(6000 - len(arrived), 6000, 0.25, "frames lost")


def test_bursts_of_losses_have_the_configured_frequency_and_length(splice: SplicedLink) -> None:
    enter_probability, leave_probability = 0.2, 0.3
    splice.set(options(Impairment(gemodel=(enter_probability, leave_probability, 1.0, 0.0))))
    splice.send(16_000)
    arrived = set(numbers(splice.arrived()))
    fates = [number in arrived for number in range(1, 16_001)]
    bursts = sum(before and not after for before, after in itertools.pairwise(fates))
    ends = sum(not before and after for before, after in itertools.pairwise(fates))
    check_share(bursts, sum(fates), enter_probability, "bursts that begin")
    check_share(ends, len(fates) - sum(fates), leave_probability, "bursts that end")


def test_losses_in_the_good_and_the_bad_state_match_the_configured_rates(splice: SplicedLink) -> None:
    """State changes of probability 0.5 put half of the frames into the bad state."""
    splice.set(options(Impairment(gemodel=(0.5, 0.5, 0.6, 0.2))))
    splice.send(6000)
    check_share(6000 - len(splice.arrived()), 6000, 0.4, "frames lost")


def test_copies_match_the_configured_rate(splice: SplicedLink) -> None:
    splice.set(options(Impairment(duplicate=0.25)))
    splice.send(6000)
    arrived = numbers(splice.arrived())
    assert set(arrived) == set(range(1, 6001))
    assert arrived == sorted(arrived)
    check_share(len(arrived) - 6000, 6000, 0.25, "frames duplicated")


def test_a_frame_that_is_lost_and_duplicated_arrives_once_as_the_table_defines(splice: SplicedLink) -> None:
    loss = duplicate = 0.4
    splice.set(options(Impairment(loss=loss, duplicate=duplicate)))
    splice.send(8000)
    arrived = numbers(splice.arrived())
    check_share(8000 - len(set(arrived)), 8000, loss * (1 - duplicate), "frames that do not arrive")
    check_share(len(arrived) - len(set(arrived)), 8000, duplicate * (1 - loss) ** 2, "frames that arrive twice")


def test_one_bit_is_flipped_at_the_configured_rate_anywhere_in_the_frame(splice: SplicedLink) -> None:
    size, known_positions = (
        60,
        [*range(18), *range(20, 24), *range(26, 46), *range(50, 60)],
    )  # without fields that differ between frames
    splice.set(options(Impairment()))
    splice.send(1)
    (clean,) = splice.arrived()
    splice.set(options(Impairment(corrupt=0.4)))
    splice.send(6000)
    arrived = splice.arrived()
    assert len(arrived) == 6000
    flipped: list[int] = []
    for frame in arrived:
        assert len(frame) == size
        flipped_positions = [position for position in known_positions if frame[position] != clean[position]]
        assert len(flipped_positions) <= 1
        assert all((frame[position] ^ clean[position]).bit_count() == 1 for position in flipped_positions)
        flipped += flipped_positions
    check_share(len(flipped), 6000, 0.4 * len(known_positions) / size, "frames corrupted")
    assert set(flipped) == set(known_positions)


def test_reordered_frames_skip_the_delay_at_the_configured_rate(splice: SplicedLink) -> None:
    splice.set(options(Impairment(delay=NEVER, reorder=0.25)))
    splice.offer(6000)
    held_count = splice.qdisc().queued
    early_numbers = numbers(splice.arrived(held_count))
    assert early_numbers == sorted(early_numbers)
    assert len(early_numbers) == 6000 - held_count
    check_share(len(early_numbers), 6000, 0.25, "frames reordered")


def test_a_queue_in_frames_without_a_delay_drops_what_the_model_drops(splice: SplicedLink) -> None:
    """The rate is so low that the queue does not drain during the burst."""
    impairment = Impairment(rate=8, queue_frames=10)
    splice.set(options(impairment))
    splice.offer(50)
    model = LinkDirection("a--b", "forward", impairment, FateOptions(seed=1))
    dropped = sum(model.offer(0, bytes(60)).dropped for _ in range(50))
    assert splice.qdisc().dropped == dropped == 39


def test_a_minimum_frame_counts_as_its_minimum_size(splice: SplicedLink) -> None:
    splice.set(options(Impairment(rate=10**9, minimum_frame=500)))
    splice.send(10, size=60)
    splice.send(10, size=1000)
    splice.arrived()
    assert splice.qdisc().bytes == 10 * 500 + 10 * 1000


# On a link of a cluster


def shortest_round_trip(cluster: RunningCluster) -> float:
    """Return the shortest round trip of a series, in milliseconds."""
    ping = ["ping", "-n", "-q", "-c20", "-i0.1", f"-W{60 * SLOW:.0f}", "n2"]
    output = cluster["n1"].run(ping).stdout
    match = re.search(r"= ([0-9.]+)/", output)
    assert match is not None, output
    return float(match[1])


@pytest.mark.usefixtures("machine")
def test_round_trips_take_the_delays_of_both_directions(
    record_property: Callable[[str, object], None],
) -> None:
    """No round trip is shorter than the sum of the delays, and the shortest of 20 is hardly longer."""
    with Cluster.back_to_back().up() as cluster:
        unimpaired_trip = shortest_round_trip(cluster)
        layout = cluster.state.layout
        opened = namespaces.open_path(cluster.state.namespaces[""])  # the wire namespace
        try:
            interfaces = rtnl_dump.by_name(rtnl_dump.interfaces(opened.route))
            a, b = [interfaces[name].index for name in free_ends(layout, layout.links[0].name)]
            opened.route.execute([netem.request(b, options(Impairment(delay=30 * MS)))])  # forward leaves by B
            opened.route.execute([netem.request(a, options(Impairment(delay=50 * MS)))])
            shortest = shortest_round_trip(cluster)
            opened.route.execute([netem.request(a, options(Impairment(delay=20 * MS)))])
            impaired_trip = shortest_round_trip(cluster)
        finally:
            opened.close()
        record_property(
            "note",
            f"shortest round trip of 20: {unimpaired_trip} ms, delayed by 80 ms {shortest}, by 50 ms {impaired_trip}",
        )
        assert 80 <= shortest <= 80 + unimpaired_trip + 40 * SLOW
        assert 50 <= impaired_trip <= 50 + unimpaired_trip + 40 * SLOW

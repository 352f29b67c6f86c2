"""Fates of the n-th frame of a flow: equal on model, relay and tc for any other traffic, speed and size of cluster.

Jitter and flipped bits belong to the fate where the datapath supports them.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

import pytest

from testbed import Cluster
from testbed.spec.layout import Impairment
from tests.semantics.datapaths import ClusterDatapath, DatapathName, DatapathUnderTest, Line, ModelDatapath
from tests.semantics.impairment_checks import MILLISECOND, marked, on
from tests.semantics.tapped_links import Schedule
from tests.unit.fates.wire_frames import B, C, tcp, udp

LINK: Final = "n1:eth0--s1:1"
FRAMES_PER_FLOW: Final = 150
FLOWS: Final = (
    lambda n: marked(n),
    lambda n: marked(n, source=C),
    lambda n: marked(n, 300, destination=B + 7),
    lambda n: udp(40_000, 53, n.to_bytes(4, "big")),
    lambda n: udp(40_000, 7000, n.to_bytes(4, "big") * 40),
    lambda n: tcp(80, 50_000, data=n.to_bytes(4, "big")),
    lambda n: tcp(50_000, 80, data=n.to_bytes(4, "big"), macs=(C + 9, B + 9)),
)


def interleaved_schedule(seed: str, gap: int, count: int = FRAMES_PER_FLOW) -> list[tuple[int, bytes]]:
    """Schedule `count` frames of each flow in order, with the flows interleaved at random."""
    order = [flow for flow in range(len(FLOWS)) for _ in range(count)]
    random.Random(seed).shuffle(order)
    numbers: dict[int, int] = defaultdict(int)
    schedule = []
    for index, flow in enumerate(order):
        numbers[flow] += 1
        schedule.append((index * gap, FLOWS[flow](numbers[flow])))
    return schedule


def fates(line: Line, schedule: Schedule) -> dict[bytes, list[bytes]]:
    """Return {sent frame: its copies on arrival}. No two sent frames are equal."""
    run = line.carry(schedule)
    return {frame: [] for _, frame in schedule} | _copies(run.frames)


def _copies(frames: Sequence[bytes]) -> dict[bytes, list[bytes]]:
    copies_by_original: dict[bytes, list[bytes]] = defaultdict(list)
    for frame in frames:
        copies_by_original[frame].append(frame)
    return copies_by_original


@pytest.fixture(scope="module", params=[2, 4])
def nodes(request: pytest.FixtureRequest) -> int:
    """Number of nodes of the cluster; the link stays the same."""
    count: int = request.param
    return count


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("relay", marks=pytest.mark.requires("root")),
        pytest.param("tc", marks=pytest.mark.requires("root", "bpf")),
    ],
)
def datapath(request: pytest.FixtureRequest, nodes: int, _sandbox: None) -> Iterator[DatapathUnderTest]:
    name: DatapathName = request.param
    tested = ClusterDatapath(name, Cluster.star(nodes), LINK)
    yield tested
    tested.close()


def by_model(impairment: Impairment, schedule: Schedule, seed: int = 1) -> dict[bytes, list[bytes]]:
    with ModelDatapath(LINK, seed).impaired(impairment) as line:
        return fates(line, schedule)


@pytest.mark.parametrize("gap", [0, 100_000], ids=["burst", "spaced"])
@pytest.mark.parametrize("order", ["one", "another"])
def test_the_nth_frame_of_a_flow_is_lost_on_every_datapath_or_on_none(
    datapath: DatapathUnderTest, order: str, gap: int
) -> None:
    impairment = Impairment(loss=0.4)
    with datapath.impaired(impairment) as line:
        fates_by_frame = fates(line, interleaved_schedule(order, gap))
    # The model receives the frames in a third order, all at once.
    assert fates_by_frame == by_model(impairment, interleaved_schedule("a third", 0), line.seed)
    assert 0.3 < sum(not copies for copies in fates_by_frame.values()) / len(fates_by_frame) < 0.5


def test_all_random_fates_of_a_flow_are_independent_of_other_flows() -> None:
    """A flow's fates in the model depend neither on order and times of arrival nor on other flows."""
    impairment = Impairment(loss=0.1, duplicate=0.2, corrupt=0.3, corrupt_bits=2)
    interleaved = by_model(impairment, interleaved_schedule("one", MILLISECOND))
    assert interleaved == by_model(impairment, interleaved_schedule("another", 0))
    one_flow = by_model(impairment, [(0, FLOWS[3](n)) for n in range(1, FRAMES_PER_FLOW + 1)])
    assert {frame: interleaved[frame] for frame in one_flow if frame in interleaved} == {
        frame: one_flow[frame] for frame in one_flow if frame in interleaved
    }


@on(Impairment(loss=0.1, duplicate=0.2, corrupt=0.3, corrupt_bits=2, delay=MILLISECOND, reorder=0.2))
def test_corruption_duplicates_and_reordering_do_not_depend_on_the_order_of_flows(line: Line) -> None:
    """The nodes are back to back: a switch would misroute a frame with a flipped bit in its address."""
    run = line.carry(interleaved_schedule("one", 0))
    assert sorted(run.frames) == sorted(line.expected(run).frames)
    with ModelDatapath(line.link, line.seed).impaired(line.impairments["forward"]) as model:
        model_run = model.carry(interleaved_schedule("another", MILLISECOND))
    assert sorted(run.frames) == sorted(model_run.frames)
    assert len(set(run.frames)) > 100

"""Dilated runs: the simulation's NICs and hosts with their costs, on real frames, slowed down by a factor."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

import testbed
from protocols.am2.profile import NOW_1998
from protocols.core.profile import Profile
from protocols.emp.profile import EMP_2001
from protocols.openmx.profile import OPENMX_2009
from testbed import Cluster, RunResult, TestbedError
from testbed.controller.conformance.parity import FlowOfLink, differing_flows, fates_by_flow, received_messages
from testbed.controller.runs.live_execution import lateness_notes
from testbed.controller.runs.run_options import Mode
from testbed.fates.records import Fate
from testbed.observe.recorded import FATES
from testbed.runtime.logs import read_log
from testbed.runtime.nodes.dilated_host import Lateness

pytestmark = [pytest.mark.alone, pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

LONG = bool(os.environ.get("TESTBED_LONG"))
SIZES = "4,1500"
COUNT = 20
WIRE = Cluster.star(2, rate="1gbit", delay="200ns", overhead=24, minimum_frame=60)
MYRINET = Cluster.star(2, kind="myrinet", rate="1280mbit", delay="200ns")


class Hardware(NamedTuple):
    """Hardware under test. resent: counters of frames that were retransmitted because they were late.

    max_lateness: model ns by which frames of a valid run may be late, less than the effect of a profile that is wrong by
    `factor`. early: ns by which the fastest exchange may be shorter than the simulation's.
    """

    protocol: str
    profile: Profile
    resent: tuple[str, ...]
    cluster: Cluster = WIRE
    dilate: int = 2500
    factor: float = 2
    max_lateness: int = 5_000
    early: int = 10  # rounding of rates and of half round trips


EMP = Hardware("emp", EMP_2001, ("frames_resent", "duplicates"))
EMP_ON_MYRINET = EMP._replace(cluster=MYRINET, dilate=250, factor=4, max_lateness=15_000)
"""A smaller dilation, because the network is mapped first, which takes 85 ms of model time."""
AM2 = Hardware("am2", NOW_1998, ("packets_resent",), dilate=1000, max_lateness=8_000, early=1_000)
"""AM-II's fastest exchange depends on the state of the NIC's polling loop: in the simulation, 100 ns more link delay make it
400 ns shorter."""
AM2_ON_MYRINET = AM2._replace(cluster=MYRINET, dilate=250, factor=4, max_lateness=12_000)
OPENMX = Hardware("openmx", OPENMX_2009, ("resent", "duplicates", "connect_requests_resent"))


def with_firmware_cost(profile: Profile, factor: float) -> Profile:
    """Return a profile whose firmware costs, on the NIC's processors or the host's cores, are multiplied by `factor`."""
    if not profile.hosted:
        return profile.slowed(factor)
    work = {kind: replace(cost, fixed=round(cost.fixed * factor)) for kind, cost in profile.work.items()}
    return replace(profile, work=work)


def pingpong(mode: Mode, hardware: Hardware, profile: Profile, dilate: int | None = None) -> RunResult:
    settings = {"sizes": SIZES, "count": COUNT}
    return testbed.run(
        hardware.cluster, "pingpong", protocol=hardware.protocol, mode=mode, profile=profile, dilate=dilate,
        settings=settings,
    )  # fmt: skip


def lateness(hardware: Hardware, dilated: RunResult) -> int:
    """Return the model ns by which frames were late, at the NICs and in the relay on two links."""
    nics = max(lateness.p99 for lateness in dilated.repetitions[0].lateness.values())
    relayed = max(
        finding.measured or 0.0 for finding in dilated.verdict.findings if finding.what == "relay lateness p99"
    )
    return nics + round(2 * relayed / hardware.dilate)


def times_agree(hardware: Hardware, simulated: RunResult, dilated: RunResult) -> bool:
    """Return whether no exchange is too fast, and the fastest ones exceed the simulation's by at most
    the frames' lateness."""
    pairs = zip(simulated.rows, dilated.rows, strict=True)
    excess = [second["min_ns"] - first["min_ns"] for first, second in pairs]
    return all(-hardware.early <= difference <= hardware.early + lateness(hardware, dilated) for difference in excess)


@pytest.fixture(
    scope="module",
    params=[EMP, OPENMX, *([EMP_ON_MYRINET, AM2, AM2_ON_MYRINET] if LONG else [])],
    ids=["emp", "openmx", *(["emp on myrinet", "am2", "am2 on myrinet"] if LONG else [])],
)
def run(request: pytest.FixtureRequest) -> tuple[Hardware, RunResult]:
    """Run up to five times, until the machine is quiet enough. Late frames and late wake-ups of programs (which are not
    measured) only add time, so one quiet run shows whether the times equal the simulation's."""
    hardware: Hardware = request.param
    simulated = pingpong("sim", hardware, hardware.profile)
    for _ in range(5):
        dilated = pingpong("dilated", hardware, hardware.profile, hardware.dilate)
        late = lateness(hardware, dilated)
        if late <= hardware.max_lateness and times_agree(hardware, simulated, dilated):
            break
    assert late <= hardware.max_lateness, "a busy machine makes frames late"
    return hardware, dilated


@pytest.mark.parametrize(
    ("p99", "factor", "advice"),
    [(100, 200, ""), (2, 2, ""), (400, 200, ""), (800, 200, "; with --dilate 400, those above 20,000 ns would be")],
)
def test_only_a_larger_factor_is_advised(p99: int, factor: int, advice: str) -> None:
    (note,) = lateness_notes([Lateness(1, 1, p99, p99)], factor)
    assert note.endswith(f"measured times above {p99 * 50:,} ns are accurate to 2%{advice}")


def test_times_equal_the_simulations_within_the_measured_lateness(run: tuple[Hardware, RunResult]) -> None:
    hardware, dilated = run
    assert times_agree(hardware, pingpong("sim", hardware, hardware.profile), dilated)
    assert not any("no profile" in note for note in dilated.verdict.notes)
    assert any("frames were late by up to" in note for note in dilated.verdict.notes)
    for late in dilated.repetitions[0].lateness.values():
        assert late.frames > 2 * 2 * COUNT
        assert 0 <= late.p50 <= late.p99 <= late.longest


@pytest.mark.parametrize("is_slower", [False, True])
def test_times_of_a_wrong_profile_do_not_agree(run: tuple[Hardware, RunResult], is_slower: bool) -> None:
    hardware, dilated = run
    factor = hardware.factor if is_slower else 1 / hardware.factor
    assert not times_agree(hardware, pingpong("sim", hardware, with_firmware_cost(hardware.profile, factor)), dilated)


def test_busy_times_of_parts_equal_the_simulations(run: tuple[Hardware, RunResult]) -> None:
    """Each exchange costs the same in both modes; retransmissions of late frames and work after the programs'
    end add to it."""
    hardware, dilated = run
    simulated = pingpong("sim", hardware, hardware.profile)
    for node in ("n1", "n2"):
        retransmitted = sum(dilated.counters[node][name] for name in hardware.resent)
        for part, use in simulated.usage[node].items():
            assert dilated.usage[node][part]["busy_ns"] >= use["busy_ns"], part
            if not retransmitted:
                assert dilated.usage[node][part]["busy_ns"] <= 1.05 * use["busy_ns"], part


def test_messages_and_fates_equal_the_simulations_with_the_same_seed_only(
    tmp_path: Path,
) -> None:
    def run(mode: Mode, seed: int) -> dict[FlowOfLink, dict[int, Fate]]:
        lossy = Cluster.star(3, rate="1gbit", delay="5us", loss="2%", seed=seed)
        folder, dilate = tmp_path / f"{mode}-{seed}", 50 if mode == "dilated" else None
        testbed.run(
            lossy, "random", mode=mode, profile=EMP_2001, settings={"messages": 20}, dilate=dilate, check=True, fates=True,
            output=folder,
        )  # fmt: skip
        return fates_by_flow(read_log(folder / FATES))

    simulated, dilated, other_seed = run("sim", 4), run("dilated", 4), run("sim", 5)
    for node in ("n1", "n2", "n3"):
        received, expected = (received_messages(tmp_path / name, node) for name in ("dilated-4", "sim-4"))
        assert received == expected != {}
    differing, compared = differing_flows(simulated, dilated)
    assert not differing
    assert compared >= 5
    assert differing_flows(other_seed, dilated)[0]


def test_a_host_computes_in_model_time() -> None:
    async def work(_comm: object, node: testbed.workloads.form.Node) -> tuple[int, int]:
        start, cpu_before = node.now(), node.cpu()
        await node.compute(300_000)
        await node.sleep(200_000)
        return node.now() - start, node.cpu() - cpu_before

    profile = replace(EMP_2001, name="another")
    result = testbed.run(WIRE, work, mode="dilated", profile=profile, dilate=20)
    assert set(result.results.values()) == {(500_000, 300_000)}


def test_a_run_that_takes_too_long_reports_how_much_model_time_has_passed() -> None:
    with pytest.raises(TestbedError, match=r"within 0.2 s, which are 200us of model time; a smaller dilation factor"):
        testbed.run(WIRE, "pingpong", mode="dilated", dilate=1000, settings={"sizes": "4", "count": 10**6}, timeout=0.2)


def test_a_run_without_a_profile_is_labelled() -> None:
    result = testbed.run(WIRE, "pingpong", mode="dilated", dilate=20, settings={"sizes": "4", "count": 5})
    assert any("no profile" in note for note in result.verdict.notes)


def test_features_that_cannot_be_dilated_are_rejected_before_the_start() -> None:
    def assert_rejected(message: str, **options: object) -> None:
        with pytest.raises(TestbedError, match=message):
            testbed.run(options.pop("cluster", WIRE), "pingpong", **{"mode": "dilated", **options})  # type: ignore[arg-type]

    assert_rejected("time in sim cannot be slowed", mode="sim", dilate=10)
    assert_rejected("time in live cannot be slowed", mode="live", dilate=10)
    assert_rejected("found 0, expected 1 or more", dilate=0)
    assert_rejected("kernel protocols run in real time", protocol="tcp")
    with WIRE.up() as cluster:
        assert_rejected("is up already", cluster=cluster)

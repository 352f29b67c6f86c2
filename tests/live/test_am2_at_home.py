"""AM-II on Myrinet's switches between real interfaces: every workload, shared NICs, the histories and fates of the
simulation, and what a capture tells of each frame."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

import testbed
from testbed import Cluster, RunResult
from testbed.controller.conformance.parity import differing_flows, fates_by_flow, received_messages
from testbed.controller.runs.run_options import Mode, Nics
from testbed.observe.recorded import FATES
from testbed.runtime.logs import read_log
from tests.sim.scapy_captures import read_capture
from tests.sim.small_workloads import SMALL

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

LONG = bool(os.environ.get("TESTBED_LONG"))
NATIVE: Mapping[str, Mapping[str, object]] = {
    "am-logp": {"count": 20, "burst": 20, "rounds": 1},
    "am-bulk": {"sizes": (128, 8192), "count": 10},
    "am-contention": {"clients": (1, 3), "time": "20ms"},
    "am-networks": {"networks": (1, 3), "time": "20ms", "threads": "one"},
    "am-permutations": {"count": 12, "trips": 4, "size": 1024},
}
WORKLOADS = {**SMALL, "churn": {"time": "5s"}, **NATIVE}
# In CI those that end soon: the time of churn, for one, passes while the network is still being mapped.
QUICK = ("pingpong", "random", "service", "sort", "am-bulk", "am-contention", "am-permutations")


def ring(seed: int = 7) -> Cluster:
    """Four switches in a ring, a node at each; every cable loses frames."""
    return Cluster.ring(4, kind="myrinet", loss="2%", seed=seed)


@pytest.mark.parametrize("name", WORKLOADS if LONG else QUICK)
def test_every_workload_ends_on_switches_that_lose_frames(name: str) -> None:
    result = testbed.run(ring(), name, protocol="am2", settings=WORKLOADS[name])
    assert result.rows
    assert any(counters["packets_resent"] for counters in result.counted.values())
    lost = [finding for finding in result.verdict.findings if finding.what in ("NIC lost", "relay lost")]
    assert {finding.measured for finding in lost} == {0}, "the emulator loses nothing beside what is asked for"


def random_traffic(folder: Path, mode: Mode = "live", nics: Nics = "inline", seed: int = 7) -> RunResult:
    """Messages of chance from everybody to everybody, with their histories checked and every fate logged."""
    dilate = 20 if mode == "dilated" else None
    return testbed.run(
        ring(seed), "random", protocol="am2", mode=mode, nics=nics, dilate=dilate, settings={"messages": 40}, check=True,
        fates=True, output=folder,
    )  # fmt: skip


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("simulated") / "run"
    random_traffic(folder, "sim")
    return folder


@pytest.mark.parametrize(("mode", "nics"), [("live", "inline"), ("live", "shared"), ("dilated", "inline")])
def test_messages_and_the_fates_of_every_flow_are_the_simulations(
    mode: Mode, nics: Nics, simulated: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    result = random_traffic(folder, mode, nics)
    assert result.checks is not None
    assert result.checks.passed
    for node in ("n1", "n2", "n3", "n4"):
        assert received_messages(folder, node) == received_messages(simulated, node) != {}
    there, here = (fates_by_flow(read_log(run / FATES)) for run in (simulated, folder))
    differing, compared = differing_flows(there, here)
    assert not differing
    assert compared >= 20


def test_another_seed_has_other_fates(simulated: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    random_traffic(folder, seed=8)
    differing, _ = differing_flows(*(fates_by_flow(read_log(run / FATES)) for run in (simulated, folder)))
    assert differing
    assert any(received_messages(folder, node) != received_messages(simulated, node) for node in ("n1", "n2"))


def test_a_capture_at_a_nic_tells_which_of_its_frames_its_cable_loses(tmp_path: Path) -> None:
    """Frames of a NIC are captured before its cable takes them. What its switch sends is captured when it has come: of what
    is lost there, or between switches, the log of fates tells."""
    path, log = tmp_path / "n1.pcapng", tmp_path / "fates.jsonl"
    with Cluster.ring(4, kind="myrinet", loss="5%", seed=7).up(fates=log) as cluster:
        (link,) = [link.name for link in cluster.state.layout.links if link.name.startswith("n1:")]
        with cluster.capture("n1", path) as capture:
            testbed.run(cluster, "random", protocol="am2", settings={"messages": 40})
        assert capture.result is not None
    lost = [frame for _, _, frame, met in read_capture(path) if "dropped by loss" in met]
    address = bytes.fromhex(cluster["n1"].layout.nics[0].mac.replace(":", ""))
    assert {frame[6:12] for frame in lost} == {address}
    logged = [record for record in read_log(log) if (record.link, record.direction) == (link, "forward")]
    assert len(lost) == len(logged) == capture.result.met["loss"] > 0

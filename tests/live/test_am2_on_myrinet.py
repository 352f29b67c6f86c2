"""AM-II on Myrinet switches between real interfaces: every workload, and lost frames in a capture.
`test_parity_live` compares its runs with the simulation."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

import testbed
from testbed import Cluster, registry
from testbed.controller.runs.run_options import Mode
from testbed.runtime.logs import read_log
from testbed.spec.elements import Link, Node
from testbed.workloads.lookup import choose
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
    "am-bulk-contention": {"clients": (1, 3), "time": "20ms"},
    "am-bursts": {"networks": (1, 3), "intervals": ("4ms", "20ms"), "time": "40ms"},
    "am-random": {"requests": 60},
    "am-sort": {"keys": 60},
    "am-split-c": {"count": 10, "bulk": 1000, "repeats": 2},
}
WORKLOADS = {**SMALL, "churn": {"time": "5s"}, **NATIVE}
# Short workloads for CI. Churn, for example, would end while the network is still being mapped.
QUICK = ("pingpong", "random", "service", "sort", "am-bulk", "am-contention", "am-permutations")


def ring(seed: int = 7) -> Cluster:
    """Four switches in a ring with a node each; every cable loses frames."""
    return Cluster.ring(4, kind="myrinet", loss="2%", seed=seed)


def test_the_table_has_all_workloads_that_run_on_am2() -> None:
    registered = [
        name for name, entry in registry.offered("testbed.workloads").items() if entry.module.startswith("testbed.")
    ]
    assert {name for name in registered if choose(name).protocol in ("", "am2")} == WORKLOADS.keys()


@pytest.mark.parametrize("name", WORKLOADS if LONG else QUICK)
def test_every_workload_completes_on_lossy_links(name: str) -> None:
    result = testbed.run(ring(), name, protocol="am2", settings=WORKLOADS[name])
    assert result.rows
    assert any(counters["packets_resent"] for counters in result.counters.values())
    lost = [finding for finding in result.verdict.findings if finding.what in ("NIC lost", "relay lost")]
    assert {finding.measured for finding in lost} == {0}, "the emulator loses only frames of the configured loss"


@pytest.mark.parametrize("mode", ["sim", "live"])
@pytest.mark.parametrize("protocol", ["am2", "emp"])
def test_a_cable_between_two_nics_is_a_network_without_switches(protocol: str, mode: Mode) -> None:
    link = Link(ends=["n1", "n2"], kind="myrinet", loss="2%")
    pair = Cluster(name="pair", seed=7, nodes=[Node(name="n1"), Node(name="n2")], links=[link])
    result = testbed.run(pair, "random", protocol=protocol, mode=mode, settings={"messages": 60}, check=True)
    assert result.checks is not None
    assert result.checks.passed, result.checks.to_text()
    assert len(result.rows) > 0


def test_a_capture_at_a_nic_marks_the_frames_lost_on_its_cable(tmp_path: Path) -> None:
    """A capture records a NIC's frames before its cable can lose them, and the switch's frames after they have arrived;
    only the log of fates has losses in that direction and between switches."""
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
    assert len(lost) == len(logged) == capture.result.fates["loss"] > 0

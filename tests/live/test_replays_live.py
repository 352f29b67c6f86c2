"""A run that failed in one mode fails the same check in the other mode when its fate log is replayed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import testbed
from testbed import Cluster, Grade, TestbedError
from testbed.controller.replay.replays import FATES, read_repetition, replay_repetition
from testbed.runtime.logs import read_log
from tests.unit.protocols.emp_mutants import MUTANTS

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

STAR = Cluster.star(3, loss="10%")
SETTINGS = {"messages": 20, "outstanding": 4, "largest": 8000}


def test_a_correct_live_run_passes_its_checks_and_is_replayed_in_the_simulation(
    tmp_path: Path,
) -> None:
    result = testbed.run(STAR, "random", output=tmp_path / "run", settings=SETTINGS, fates=True, seed=1)
    assert result.checks is not None
    assert result.checks.passed
    assert result.verdict.grade is not Grade.FAILED
    assert result.checks.checks["nothing lost"].checked > 3 * 20
    assert {record.cause for record in read_log(tmp_path / "run" / FATES)} == {"loss"}
    again = replay_repetition(read_repetition(tmp_path / "run"), "sim")
    assert (again.reproduced, again.failed) == (True, frozenset())
    assert 0 < again.applied <= again.fates


def with_datapath(datapath: str) -> Cluster:
    description = STAR.model_dump()
    return Cluster(**{**description, "links": [{**link, "datapath": datapath} for link in description["links"]]})


def fates_of(folder: Path) -> Any:
    return json.loads((folder / "result.json").read_text())["fates"]


def test_a_run_on_relayed_links_records_all_fates_by_default(tmp_path: Path) -> None:
    testbed.run(with_datapath("relay"), "random", output=tmp_path / "run", settings=SETTINGS, seed=1)
    assert fates_of(tmp_path / "run") == {"whole": True, "untold": []}
    again = replay_repetition(read_repetition(tmp_path / "run"), "sim")
    assert 0 < again.applied <= again.fates == len(read_log(tmp_path / "run" / FATES))


@pytest.mark.requires("bpf")
def test_a_run_on_kernel_datapaths_reports_the_missing_fates(tmp_path: Path) -> None:
    testbed.run(with_datapath("tc"), "random", output=tmp_path / "run", settings=SETTINGS, seed=1)
    (reason,) = fates_of(tmp_path / "run")["untold"]
    assert reason.startswith("the kernel forwards n1:eth0--s1:1, n2:eth0--s1:2, n3:eth0--s1:3 and logs no fates")
    assert replay_repetition(read_repetition(tmp_path / "run"), "sim").fates == -1, "the fates come from the seed"


def test_a_run_on_a_running_cluster_records_no_fates(tmp_path: Path) -> None:
    with with_datapath("relay").up() as cluster:
        testbed.run(cluster, "random", output=tmp_path / "run", settings=SETTINGS)
    assert not (tmp_path / "run" / FATES).exists()
    (reason,) = fates_of(tmp_path / "run")["untold"]
    assert reason.startswith("the cluster was up before the run")


@pytest.mark.requires("interpreted")
def test_a_defect_found_in_simulation_fails_the_same_check_in_a_live_replay(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        MUTANTS[0].apply(patch)
        with pytest.raises(TestbedError):
            testbed.run(STAR, "random", mode="sim", output=tmp_path / "run", settings=SETTINGS, seed=1, timeout=12)
        repetition = read_repetition(tmp_path / "run")
        assert repetition.failed == {"progress"}
        again = replay_repetition(repetition, "live", output=tmp_path / "again")
    assert again.failed == {"progress"}
    assert again.reproduced
    assert "no program and no transfer has ended" in again.error
    assert not replay_repetition(repetition, "live").failed, "without the defect the replay passes"

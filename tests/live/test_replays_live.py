"""A run that failed in one mode fails in the same check in the other one, with the fates that its log gives again."""

from __future__ import annotations

from pathlib import Path

import pytest
from emp_mutants import MUTANTS

import testbed
from testbed import Cluster, Grade, TestbedError
from testbed.controller.replaying import FATES, repetition, replayed
from testbed.runtime.logs import read_log

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]

STAR = Cluster.star(3, loss="10%")
SETTINGS = {"messages": 20, "outstanding": 4, "largest": 8000}


def test_a_live_run_with_nothing_wrong_passes_its_checks_and_its_fates_come_again_in_the_simulation(
    tmp_path: Path,
) -> None:
    result = testbed.run(STAR, "random", output=tmp_path / "run", settings=SETTINGS, fates=True, seed=1)
    assert result.checks is not None
    assert result.checks.passed
    assert result.verdict.grade is not Grade.FAILED
    assert result.checks.checks["nothing lost"].checked > 3 * 20
    assert {record.cause for record in read_log(tmp_path / "run" / FATES)} == {"loss"}
    again = replayed(repetition(tmp_path / "run"), "sim")
    assert (again.same, again.now) == (True, frozenset())
    assert 0 < again.given <= again.fates


def test_a_mistake_that_the_simulation_found_is_found_in_namespaces_by_the_same_check(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        MUTANTS[0].put_in(patch)
        with pytest.raises(TestbedError):
            testbed.run(STAR, "random", mode="sim", output=tmp_path / "run", settings=SETTINGS, seed=1, timeout=12)
        one = repetition(tmp_path / "run")
        assert one.failed == {"progress"}
        again = replayed(one, "live", output=tmp_path / "again")
    assert again.now == {"progress"}
    assert again.same
    assert "no program and no transfer has ended" in again.error
    assert not replayed(one, "live").now, "without the mistake"

"""Workload am-random under random faults: the checkers of active messages pass correct runs, and find each mutant of
AM-II that MPI's checkers do not find. Fixed seeds in CI, random ones with TESTBED_LONG=1."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

import testbed
from testbed import Cluster, TestbedError
from testbed.controller.checkers.runs import recheck
from testbed.controller.replay.replays import minimize, read_repetition, replay_repetition
from testbed.observe.recorded import read_run
from testbed.spec.fault_models import Cpu, Crash, Impair
from testbed.spec.scenario import Scenario
from tests.sim import request_swarm
from tests.unit.protocols.am2_mutants import NATIVE
from tests.unit.protocols.mutants import Mutant, find, search_repeatedly
from tests.unit.protocols.ssam_mutants import NATIVE as SSAM_MUTANTS

LONG = bool(os.environ.get("TESTBED_LONG"))
FIRST = random.SystemRandom().randrange(2**40) if LONG else 0
CASES = 500 if LONG else 8
FIRST_OF_SEARCH = 10_000
"""First seed of the search for mutants, apart from the cases' seeds."""
AM2_MUTANTS = {mutant.name: mutant for mutant in NATIVE}


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("protocol", request_swarm.SWARMS)
def test_every_case_passes_the_checks(protocol: str, record_property: Callable[[str, object], None]) -> None:
    swarm = request_swarm.SWARMS[protocol]
    tally = swarm.run_many(range(FIRST, FIRST + CASES), chunk=3)
    failures = [f"{swarm.replay(seed)}: {reason}" for seed, reason in tally.failed.items()]
    assert not failures, "\n".join(failures[:10])
    record_property(
        "note", f"swarm of requests on {protocol}: {CASES:,} cases from seed {FIRST} on; {dict(tally.rows)}"
    )
    assert tally.rows["checked: replies"] > 100 * CASES
    assert tally.rows["checked: errors"]
    assert tally.rows["checked: recovery"]


@pytest.mark.parametrize("seed", range(3))
def test_requests_to_a_node_that_never_comes_back_end_though_no_program_abandons_them(seed: int) -> None:
    """A program abandons requests after five minutes of silence; without keepalives, the run takes as long."""
    cluster = Cluster.star(3, loss="3%", seed=seed)
    result = testbed.run(
        cluster, "am-random", protocol="am2", mode="sim", seed=seed, settings={"requests": 60, "patience": "300s"},
        scenario=Scenario(faults=[Crash(on="n3", at="3ms")]), timeout=600,
    )  # fmt: skip
    assert result.checks is not None
    assert result.checks.passed, result.checks.to_text()
    for row in result.rows:
        assert row["replied"] + row["returned"] == row["sent"] == 60
        assert row["returned"] >= 1
        assert row["took_ns"] < 30_000_000_000


@pytest.mark.requires("interpreted")
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("protocol", "mutant"),
    [*(("am2", mutant) for mutant in NATIVE), *(("ssam", mutant) for mutant in SSAM_MUTANTS)],
    ids=str,
)
def test_the_swarm_of_requests_finds_the_mutant(
    protocol: str, mutant: Mutant, record_property: Callable[[str, object], None]
) -> None:
    """Seeds are random in a long run, which searches several times; in CI they are fixed, apart from the cases."""
    trial, first = request_swarm.SWARMS[protocol].trial, FIRST_OF_SEARCH + FIRST
    if LONG:
        record_property("note", f"swarm of requests: {search_repeatedly(mutant, trial, first, 1_000)}")
    else:
        result = find(mutant, trial, first, 1_000)
        record_property("note", f"swarm of requests: {mutant}, after {result.cases} cases: {result.complaint}")


@pytest.mark.parametrize("mutant", NATIVE, ids=str)
def test_the_checkers_of_mpi_do_not_find_the_mutant(mutant: Mutant) -> None:
    with pytest.MonkeyPatch.context() as patch:
        mutant.apply(patch)
        for seed in range(4):
            cluster = Cluster.star(3, loss="3%", duplicate="2%")
            result = testbed.run(
                cluster, "random", protocol="am2", mode="sim", seed=seed, settings={"messages": 40}, check=True
            )
            assert result.checks is not None
            assert result.checks.passed


@pytest.mark.requires("interpreted")
@pytest.mark.parametrize(
    ("name", "check"), [("handled again", "nothing twice"), ("by name", "replies"), ("all of its node", "errors")]
)
def test_a_mutant_fails_the_check_that_is_meant_to_find_it(name: str, check: str, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        AM2_MUTANTS[name].apply(patch)
        folder = failing_run(tmp_path)
    assert read_repetition(folder).failed == {check}
    assert [report.failed for report in recheck(read_run(folder))] == [(check,)]


def failing_run(directory: Path, scenario: Scenario | None = None) -> Path:
    """Return the folder of the first run, of up to 30 seeds, in which a check fails."""
    settings = {"requests": 60, "freed": 1, "patience": "1s"}
    cluster = Cluster.star(3) if scenario is not None else Cluster.star(3, loss="5%")
    for seed in range(30):
        folder = directory / str(seed)
        try:
            testbed.run(
                cluster, "am-random", protocol="am2", mode="sim", seed=seed, settings=settings, output=folder,
                scenario=scenario,
            )  # fmt: skip
        except TestbedError:
            assert json.loads((folder / "result.json").read_text())["status"] == "failed"
        if read_repetition(folder).failed:
            return folder
    raise AssertionError("30 runs, and nothing failed")


def test_a_failed_run_fails_again_and_of_its_fates_few_are_enough(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        AM2_MUTANTS["all of its node"].apply(patch)
        run = read_repetition(failing_run(tmp_path))
        assert replay_repetition(run, "sim").reproduced
        shrunk = minimize(run, 60)
        assert replay_repetition(run, "sim", run.minimal_file).reproduced
    assert len(shrunk.causes) < len(run.log.read_text().splitlines()) if run.log is not None else False
    assert not replay_repetition(run, "sim").failed, "without the mistake nothing is wrong"


@pytest.mark.requires("interpreted")
def test_a_scenario_of_requests_is_reduced_to_the_necessary_faults(tmp_path: Path) -> None:
    scenario = Scenario(faults=[Cpu(on="n3", at="0s", share=0.5), Impair(on="n2", at="20ms", for_="1ms", delay="10us")])
    with pytest.MonkeyPatch.context() as patch:
        AM2_MUTANTS["by name"].apply(patch)
        run = read_repetition(failing_run(tmp_path, scenario))
        assert run.failed == {"replies"}
        shrunk = minimize(run, 20)
    assert shrunk.minimal
    assert not shrunk.causes, "it needs no fault"

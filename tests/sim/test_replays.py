"""Replays of failed runs from their folders, with all and with a minimal set of fates."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import testbed
from testbed import Cluster, TestbedError
from testbed.controller.replay import replays
from testbed.controller.replay.replays import (
    FATES,
    MINIMAL_FATES,
    RUN_ERROR,
    SCENARIO_PROGRESS_TIMEOUT,
    minimize,
    read_repetition,
    replay_repetition,
)
from testbed.errors import NotFoundError, UnsupportedError
from testbed.observe.recorded import read_layout, read_run
from testbed.runtime.logs import read_log
from testbed.spec.fault_models import Cpu, Crash, Impair
from testbed.spec.scenario import Scenario, load
from tests.unit.protocols.emp_mutants import MUTANTS

SETTINGS = {"messages": 20, "outstanding": 4, "largest": 8000}


@pytest.fixture
def mutated_emp() -> Iterator[None]:
    """Apply a mutant of EMP that forgets a lost collection once the next one is acknowledged."""
    with pytest.MonkeyPatch.context() as patch:
        MUTANTS[1].apply(patch)
        yield


def run_random(folder: Path, seed: int = 1, repeat: int = 1, scenario: Scenario | None = None) -> Path:
    """Run random traffic with 10 % loss, or with a scenario."""
    cluster = Cluster.star(3, loss="10%") if scenario is None else Cluster.star(3)
    try:
        testbed.run(
            cluster, "random", mode="sim", seed=seed, settings=SETTINGS, output=folder, timeout=20, repeat=repeat,
            scenario=scenario,
        )  # fmt: skip
    except TestbedError:
        assert json.loads((folder / "result.json").read_text())["status"] == "failed"
    return folder


def failing_run(directory: Path, scenario: Scenario | None = None) -> Path:
    """Return the folder of the first run, of up to 30 seeds, in which the mutant fails."""
    for seed in range(30):
        folder = run_random(directory / str(seed), seed, scenario=scenario)
        if read_repetition(folder).failed:
            return folder
    raise AssertionError("none of 30 runs has failed")


@pytest.mark.requires("interpreted")
@pytest.mark.usefixtures("mutated_emp")
def test_a_replay_applies_all_fates_and_fails_the_same_checks(tmp_path: Path) -> None:
    repetition = read_repetition(failing_run(tmp_path))
    assert repetition.failed == {"errors", "nothing lost"}
    replayed = replay_repetition(repetition, "sim", output=tmp_path / "replay")
    assert replayed.reproduced
    assert replayed.failed == {"errors", "nothing lost"}
    assert "has given the message up" in replayed.error
    assert replayed.applied == replayed.fates > 5
    assert (tmp_path / "replay" / "checks.json").read_text() == (repetition.folder / "checks.json").read_text()


@pytest.mark.requires("interpreted")
@pytest.mark.usefixtures("mutated_emp")
def test_a_replay_without_a_log_draws_the_fates_from_the_seed(tmp_path: Path) -> None:
    folder = failing_run(tmp_path)
    (folder / "fates.jsonl").unlink()
    replayed = replay_repetition(read_repetition(folder), "sim")
    assert (replayed.reproduced, replayed.fates) == (True, -1)
    document = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(document | {"mode": "live"}))
    with pytest.raises(NotFoundError, match="no link was impaired"):
        minimize(read_repetition(folder), 10)


@pytest.mark.parametrize("number", [1, 2])
def test_a_simulated_replay_draws_the_fates_of_a_cluster_that_had_another_seed_than_the_run(
    tmp_path: Path, number: int
) -> None:
    folder = tmp_path / "run"
    testbed.run(
        Cluster.star(3, loss="10%"), "random", mode="sim", seed=number, link_seed=7, settings=SETTINGS, output=folder
    )
    fates = (folder / FATES).read_bytes()
    assert read_layout(folder).seed == 7
    (folder / FATES).unlink()
    document = json.loads((folder / "run.json").read_text())
    # In namespaces, links keep the seed of their cluster for all repetitions.
    (folder / "run.json").write_text(json.dumps(document | {"mode": "live", "seed": 1, "repeat": number}))
    if number > 1:
        for repetition in range(1, number + 1):
            (folder / f"repeat-{repetition}").mkdir()
    replayed = replay_repetition(read_repetition(folder), "sim", output=tmp_path / "replay")
    assert replayed.fates == -1
    assert fates == (tmp_path / "replay" / FATES).read_bytes()
    again = replay_repetition(read_repetition(tmp_path / "replay"), "sim", output=tmp_path / "again")
    assert again.applied == again.fates > 5


@pytest.mark.requires("interpreted")
@pytest.mark.usefixtures("mutated_emp")
def test_a_replay_ignores_an_incomplete_log_of_fates(tmp_path: Path) -> None:
    folder = failing_run(tmp_path)
    result = json.loads((folder / "result.json").read_text())
    untold = {"fates": {"whole": False, "untold": ["it ends before the run: the disk is full"]}}
    (folder / "result.json").write_text(json.dumps(result | untold))
    replayed = replay_repetition(read_repetition(folder), "sim")
    assert (replayed.reproduced, replayed.fates) == (True, -1)
    document = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(document | {"mode": "live"}))
    with pytest.raises(NotFoundError, match="the disk is full"):
        minimize(read_repetition(folder), 10)


@pytest.mark.requires("interpreted")
@pytest.mark.usefixtures("mutated_emp")
def test_minimizing_keeps_few_fates_that_reproduce_the_failure(tmp_path: Path) -> None:
    repetition = read_repetition(failing_run(tmp_path))
    shrunk = minimize(repetition, 400)
    assert shrunk.minimal
    assert 1 <= len(shrunk.causes) < len(read_log(repetition.folder / FATES)) / 2
    assert [record.describe() for record in read_log(repetition.folder / MINIMAL_FATES)] == [
        sentence.partition(": ")[2] for sentence in shrunk.causes
    ]
    assert replay_repetition(repetition, "sim", repetition.folder / MINIMAL_FATES).reproduced
    assert minimize(repetition, 3).trials == 3


@pytest.mark.requires("interpreted")
def test_a_replay_of_a_fixed_failure_does_not_reproduce_it(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        MUTANTS[1].apply(patch)
        repetition = read_repetition(failing_run(tmp_path))
    replayed = replay_repetition(repetition, "sim")
    assert not replayed.reproduced
    assert not replayed.failed
    with pytest.raises(UnsupportedError, match="does not reproduce the failure"):
        minimize(repetition, 10)


@pytest.mark.requires("interpreted")
@pytest.mark.usefixtures("mutated_emp")
def test_by_default_the_failed_last_repetition_is_replayed(tmp_path: Path) -> None:
    folder = run_random(tmp_path / "run", 2, repeat=50)
    repetition = read_repetition(folder)
    assert repetition.failed == {"errors", "nothing lost"}
    assert repetition.number == len(list(folder.glob("repeat-*")))
    assert repetition.layout.seed == 2 + repetition.number - 1
    assert replay_repetition(repetition, "sim").reproduced
    assert not any(read_repetition(folder, number).failed for number in range(1, repetition.number))
    with pytest.raises(NotFoundError, match="no repetition 51"):
        read_repetition(folder, 51)


@pytest.mark.requires("interpreted")
@pytest.mark.usefixtures("mutated_emp")
def test_minimizing_keeps_the_faults_of_a_scenario_that_cause_the_failure(tmp_path: Path) -> None:
    scenario = Scenario(
        faults=[
            Cpu(on="n3", at="0s", share=0.5),
            Impair(on="all", at="0s", loss=0.1),
            Impair(on="n2", at="1ms", for_="1ms", delay="10us"),
        ]
    )
    repetition = read_repetition(failing_run(tmp_path, scenario))
    assert repetition.failed == {"errors", "nothing lost"}
    assert replay_repetition(repetition, "sim").reproduced
    shrunk = minimize(repetition, 100)
    assert shrunk.minimal
    assert shrunk.causes == ["at 0s: loss 10% on all"]
    assert [fault.what for fault in load(repetition.minimal_file).faults] == ["loss 10% on all"]
    assert replay_repetition(repetition, "sim", repetition.minimal_file).reproduced


@pytest.mark.requires("interpreted")
@pytest.mark.usefixtures("mutated_emp")
def test_the_first_simulation_counts_among_the_runs_of_minimizing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repetition = read_repetition(failing_run(tmp_path))
    runs: list[object] = []

    def count_run(*arguments: Any, **options: Any) -> object:
        runs.append(arguments)
        return testbed.run(*arguments, **options)

    monkeypatch.setattr(replays, "run", count_run)
    shrunk = minimize(repetition, 1)
    assert (shrunk.trials, shrunk.minimal, len(runs)) == (1, False, 1)
    assert len(shrunk.causes) == len(read_log(repetition.folder / FATES))


def test_a_repetition_without_a_failure_cannot_be_minimized(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"nothing failed in repetition 2 of .*only a failure can be minimized"):
        minimize(read_repetition(run_random(tmp_path / "run", repeat=2)), 10)


def test_a_replay_in_dilated_time_is_refused(tmp_path: Path) -> None:
    repetition = read_repetition(run_random(tmp_path / "run"))
    with pytest.raises(UnsupportedError, match="in mode dilated is not supported: use sim or live"):
        replay_repetition(repetition, "dilated")


def test_links_in_namespaces_keep_the_seed_that_they_had_before_the_run(tmp_path: Path) -> None:
    folder = run_random(tmp_path / "run", seed=5, repeat=3)
    document = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(document | {"mode": "live"}))
    repetition = read_repetition(folder, 3)
    assert (repetition.seed, repetition.layout.seed) == (7, 5)
    assert repetition.log is None
    assert "has the fates of all repetitions together" in repetition.log_gaps[0]


def test_a_replay_has_the_profiles_of_the_nodes(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    star = Cluster.star(2)
    testbed.run(
        star, "pingpong", mode="sim", settings={"count": 2, "sizes": 0}, profiles={"n1": "emp-2001"}, output=folder
    )
    replay_repetition(read_repetition(folder), "sim", output=tmp_path / "replay")
    assert (tmp_path / "replay" / "rows.jsonl").read_text() == (folder / "rows.jsonl").read_text()
    assert read_run(tmp_path / "replay").parameters["profiles"].keys() == {"n1"}


@pytest.mark.parametrize(
    ("recorded", "queues", "expected"),
    [("sim", 4, ("inline", 1)), ("live", 1, ("inline", 1)), ("live", 4, ("shared", 4))],
)
def test_a_replay_in_namespaces_has_the_queues_of_a_run_in_namespaces_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorded: str, queues: int, expected: tuple[str, int]
) -> None:
    """Queues of a simulation are those of its profile; in namespaces, queues need shared NICs."""
    folder = run_random(tmp_path / "run")
    document = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(document | {"mode": recorded, "queues": queues}))

    def check_options(*_arguments: Any, **options: Any) -> None:
        assert (options["nics"], options["queues"]) == expected
        raise TestbedError("checked")

    monkeypatch.setattr(replays, "_bring_up", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(replays, "run", check_options)
    with pytest.raises(TestbedError, match="checked"):
        replay_repetition(read_repetition(folder), "live")


def test_the_progress_timeout_of_live_replays_is_longer_than_am2_takes_to_give_up_a_node() -> None:
    """Programs make no progress meanwhile, as their last requests are to the crashed node."""
    crash = Scenario(faults=[Crash(on="n3", at="1ms")])
    result = testbed.run(
        Cluster.star(3), "am-random", protocol="am2", mode="sim", settings={"requests": 60}, scenario=crash
    )
    took = max(row["took_ns"] for row in result.rows) / 1e9
    assert 5 < took < SCENARIO_PROGRESS_TIMEOUT / 2, "seconds; a busy machine may take twice as long"


def test_a_replay_of_a_function_needs_the_function(tmp_path: Path) -> None:
    async def raise_error(comm: object, node: object) -> None:  # noqa: ARG001
        raise ValueError("always")

    with pytest.raises(TestbedError):
        testbed.run(Cluster.star(2), raise_error, mode="sim", output=tmp_path / "run", check=True)
    with pytest.raises(UnsupportedError, match="has no name"):
        read_repetition(tmp_path / "run")
    replayed = testbed.replay(tmp_path / "run", "sim", workload=raise_error)
    assert replayed.failed_originally == {RUN_ERROR}
    assert replayed.reproduced
    assert "ValueError: always" in replayed.error


def test_logging_fates_of_several_live_repetitions_is_rejected() -> None:
    with pytest.raises(UnsupportedError, match="--fates needs --repeat 1"):
        testbed.run(Cluster.star(2), "random", fates=True, repeat=2)


def test_missing_or_damaged_runs_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="not a run's folder"):
        read_repetition(tmp_path)
    folder = run_random(tmp_path / "run")
    shutil.copytree(folder, tmp_path / "broken")
    (tmp_path / "broken" / "cluster.json").write_text("{}")
    with pytest.raises(TestbedError, match=r"cluster\.json"):
        read_repetition(tmp_path / "broken")

"""Checks and replays from the command line: output, exit codes, and the printed replay command."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from testbed.cli.consoles import new_results_folder
from testbed.cli.main import testbed as command
from testbed.errors import TestbedError
from tests.unit.protocols.emp_mutants import MUTANTS

RANDOM = "random --mode sim --set messages=20 --set outstanding=4 --set largest=8000 --timeout 20 --output run"


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def mutated_emp() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        MUTANTS[1].apply(patch)
        yield


def invoke(line: str) -> Result:
    return CliRunner().invoke(command, shlex.split(line))


def cluster_toml() -> str:
    """Write the description of a cluster of three nodes with 10 % loss; return its path."""
    from testbed import Cluster
    from testbed.spec.toml_writer import to_toml

    Path("three.toml").write_text(to_toml(Cluster.star(3, loss="10%")))
    return "three.toml"


def failing_run() -> Result:
    """Repeat the run with up to 30 seeds until the mutant makes it fail; its folder is `run`."""
    for seed in range(30):
        result = invoke(f"run {cluster_toml()} {RANDOM} --seed {seed}")
        if result.exit_code:
            return result
        shutil.rmtree("run")
    raise AssertionError("none of 30 runs has failed")


def test_a_correct_run_prints_a_summary_of_its_checks() -> None:
    result = invoke("run star-4 random --mode sim --set messages=5")
    assert result.exit_code == 0
    assert "checks: nothing wrong with " in result.stderr
    assert "checks" not in invoke("run star-4 random --mode sim --set messages=5 --no-check").output


@pytest.mark.requires("interpreted")
@pytest.mark.usefixtures("mutated_emp")
def test_the_replay_command_that_a_failed_run_prints_reproduces_the_failure() -> None:
    failed = failing_run()
    assert isinstance(failed.exception, TestbedError)
    assert "errors: 1 of " in failed.stderr
    printed_command = re.search(r"again in live: testbed (replay run) --mode live", failed.stderr)
    assert printed_command is not None
    repeated = invoke(f"{printed_command[1]} --mode sim")
    assert repeated.exit_code == 10
    assert "the same check has failed again" in repeated.output


@pytest.mark.requires("interpreted")
@pytest.mark.usefixtures("mutated_emp")
def test_shrinking_prints_the_minimal_fates_and_the_number_of_runs() -> None:
    failing_run()
    result = invoke("replay run --shrink --runs 400 --mode sim")
    assert result.exit_code == 10
    reported_fates = re.search(
        r"(\d+) fates? reproduces? the failure, found in \d+ of at most 400 runs; each of", result.output
    )
    assert reported_fates is not None
    assert result.output.count("dropped by loss, frame ") == int(reported_fates[1])
    document = json.loads(invoke("replay run --shrink --runs 5 --mode sim --json").output)
    assert (document["same"], document["now"], document["shrunk"]["runs"]) == (True, ["errors", "nothing lost"], 5)
    assert document["shrunk"]["fates"] >= int(reported_fates[1])


@pytest.mark.requires("interpreted")
def test_a_replay_of_a_fixed_failure_reports_that_it_was_not_reproduced() -> None:
    with pytest.MonkeyPatch.context() as patch:
        MUTANTS[1].apply(patch)
        failing_run()
    result = invoke("replay run --mode sim")
    assert result.exit_code == 0
    assert "the failure was not reproduced" in result.output


def test_check_run_checks_the_history_of_a_folder() -> None:
    invoke("run star-4 pingpong --mode sim --set count=5 --history --output run")
    result = invoke("check-run run")
    assert result.exit_code == 0
    assert "order: holds for" in result.output
    lines = Path("run/history/n1.jsonl").read_text().splitlines(keepends=True)
    received_index = next(index for index, line in enumerate(lines) if '"received"' in line and '"bytes": 64' in line)
    lines[received_index] = re.sub(r'"digest": "\w+"', '"digest": "0"', lines[received_index])
    Path("run/history/n1.jsonl").write_text("".join(lines))
    result = invoke("check-run run --json")
    assert result.exit_code == 10
    (report,) = json.loads(result.output)["repetitions"]
    assert [check["check"] for check in report["checks"] if check["failed"]] == ["content"]
    Path("run/history/n1.jsonl").write_text('{"clock_ns": 1, "what": "sent", "n": "seven"}\n')
    assert "cannot be understood" in str(invoke("check-run run").exception)


def test_check_run_rejects_a_run_without_a_history() -> None:
    invoke("run star-4 pingpong --mode sim --set count=5 --output run")
    assert "has no history" in str(invoke("check-run run").exception)


DEADLINE = """
async def deadline(comm, node):
    if comm.rank == 0:
        assert node.now() > 10**12, "too early"
"""


def test_the_replay_of_a_raising_program_shows_the_exception() -> None:
    Path("own.py").write_text(DEADLINE)
    failed = invoke("run star-2 ./own.py:deadline --mode sim --output run")
    assert failed.exit_code
    printed_command = re.search(r"again in live: testbed (replay run) --mode live", failed.stderr)
    assert printed_command is not None
    repeated = invoke(f"{printed_command[1]} --mode sim")
    assert repeated.exit_code == 10
    assert "  n1: AssertionError: too early" in repeated.output.splitlines()


def test_runs_of_the_same_second_get_separate_folders_and_rejected_runs_get_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("time.strftime", lambda _: "20250101-120000")
    for _ in range(2):
        assert invoke("run star-2 pingpong --mode sim --set count=1 --set sizes=0").exit_code == 0
    assert isinstance(invoke("run star-2 pingpong --mode sim --set count=x").exception, TestbedError)
    run_names = sorted(folder.name for folder in Path("results/runs").iterdir())
    assert run_names == ["20250101-120000-star-2-pingpong", "20250101-120000-star-2-pingpong-2"]
    assert invoke("run star-2 ./nowhere.py:f --mode sim").exit_code
    assert len(list(Path("results/runs").iterdir())) == 2


def test_results_folders_are_unique_and_their_names_limited(tmp_path: Path) -> None:
    assert new_results_folder(tmp_path, "star-2") != new_results_folder(tmp_path, "star-2")
    assert new_results_folder(tmp_path, 300 * "\u7de8").is_dir(), "a name of 900 bytes"


def test_shrinking_with_other_fates_is_rejected() -> None:
    Path("fates.jsonl").write_text("")
    result = invoke("replay run --shrink --with fates.jsonl")
    assert result.exit_code == 2
    assert "--shrink cannot be combined with --with" in result.output

"""Checks and replays from the command line: output, exit codes, and the command that repeats a failure."""

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
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def forgetful() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        MUTANTS[1].apply(patch)
        yield


def call(line: str) -> Result:
    return CliRunner().invoke(command, shlex.split(line))


def cluster_toml() -> str:
    """A cluster of three that loses a tenth of its frames."""
    from testbed import Cluster
    from testbed.spec.toml_writer import to_toml

    Path("three.toml").write_text(to_toml(Cluster.star(3, loss="10%")))
    return "three.toml"


def failing_run() -> Result:
    """The first run, of 30 seeds, in which the mistake shows; its folder is run."""
    for seed in range(30):
        result = call(f"run {cluster_toml()} {RANDOM} --seed {seed}")
        if result.exit_code:
            return result
        shutil.rmtree("run")
    raise AssertionError("30 runs, and nothing failed")


def test_a_correct_run_reports_how_much_was_checked() -> None:
    result = call("run star-4 random --mode sim --set messages=5")
    assert result.exit_code == 0
    assert "checks: nothing wrong with " in result.stderr
    assert "checks" not in call("run star-4 random --mode sim --set messages=5 --no-check").output


@pytest.mark.requires("interpreted")
@pytest.mark.usefixtures("forgetful")
def test_a_failed_run_prints_its_replay_command_which_reports_whether_it_fails_again() -> None:
    failed = failing_run()
    assert isinstance(failed.exception, TestbedError)
    assert "errors: 1 of " in failed.stderr
    printed_command = re.search(r"again in live: testbed (replay run) --mode live", failed.stderr)
    assert printed_command is not None
    repeated = call(f"{printed_command[1]} --mode sim")
    assert repeated.exit_code == 10
    assert "the same check has failed again" in repeated.output


@pytest.mark.requires("interpreted")
@pytest.mark.usefixtures("forgetful")
def test_shrinking_prints_the_runs_that_it_took_and_the_fates_that_are_enough() -> None:
    failing_run()
    result = call("replay run --shrink --runs 400 --mode sim")
    assert result.exit_code == 10
    reported_fates = re.search(
        r"(\d+) fates? reproduces? the failure, found in \d+ of at most 400 runs; each of", result.output
    )
    assert reported_fates is not None
    assert result.output.count("dropped by loss, frame ") == int(reported_fates[1])
    document = json.loads(call("replay run --shrink --runs 5 --mode sim --json").output)
    assert (document["same"], document["now"], document["shrunk"]["runs"]) == (True, ["errors", "nothing lost"], 5)
    assert document["shrunk"]["fates"] >= int(reported_fates[1])


@pytest.mark.requires("interpreted")
def test_a_fixed_failure_does_not_fail_again() -> None:
    with pytest.MonkeyPatch.context() as patch:
        MUTANTS[1].apply(patch)
        failing_run()
    result = call("replay run --mode sim")
    assert result.exit_code == 0
    assert "the failure was not reproduced" in result.output


def test_a_history_is_checked_again_from_its_folder() -> None:
    call("run star-4 pingpong --mode sim --set count=5 --history --output run")
    result = call("check-run run")
    assert result.exit_code == 0
    assert "order: holds for" in result.output
    lines = Path("run/history/n1.jsonl").read_text().splitlines(keepends=True)
    received_index = next(index for index, line in enumerate(lines) if '"received"' in line and '"bytes": 64' in line)
    lines[received_index] = re.sub(r'"digest": "\w+"', '"digest": "0"', lines[received_index])
    Path("run/history/n1.jsonl").write_text("".join(lines))
    result = call("check-run run --json")
    assert result.exit_code == 10
    (report,) = json.loads(result.output)["repetitions"]
    assert [check["check"] for check in report["checks"] if check["failed"]] == ["content"]
    Path("run/history/n1.jsonl").write_text('{"clock_ns": 1, "what": "sent", "n": "seven"}\n')
    assert "cannot be understood" in str(call("check-run run").exception)


def test_a_run_without_a_history_cannot_be_checked_again() -> None:
    call("run star-4 pingpong --mode sim --set count=5 --output run")
    assert "has no history" in str(call("check-run run").exception)


DEADLINE = """
async def deadline(comm, node):
    if comm.rank == 0:
        assert node.now() > 10**12, "too early"
"""


def test_a_raising_programs_command_is_printed_and_the_replay_shows_the_exception() -> None:
    Path("own.py").write_text(DEADLINE)
    failed = call("run star-2 ./own.py:deadline --mode sim --output run")
    assert failed.exit_code
    printed_command = re.search(r"again in live: testbed (replay run) --mode live", failed.stderr)
    assert printed_command is not None
    repeated = call(f"{printed_command[1]} --mode sim")
    assert repeated.exit_code == 10
    assert "  n1: AssertionError: too early" in repeated.output.splitlines()


def test_runs_that_begin_in_one_second_have_folders_of_their_own_and_a_refused_one_leaves_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("time.strftime", lambda _: "20250101-120000")
    for _ in range(2):
        assert call("run star-2 pingpong --mode sim --set count=1 --set sizes=0").exit_code == 0
    assert isinstance(call("run star-2 pingpong --mode sim --set count=x").exception, TestbedError)
    run_names = sorted(folder.name for folder in Path("results/runs").iterdir())
    assert run_names == ["20250101-120000-star-2-pingpong", "20250101-120000-star-2-pingpong-2"]
    assert call("run star-2 ./nowhere.py:f --mode sim").exit_code
    assert len(list(Path("results/runs").iterdir())) == 2


def test_a_folder_is_claimed_before_the_run_writes_into_it(tmp_path: Path) -> None:
    assert new_results_folder(tmp_path, "star-2") != new_results_folder(tmp_path, "star-2")
    assert new_results_folder(tmp_path, 300 * "\u7de8").is_dir(), "of three bytes each"

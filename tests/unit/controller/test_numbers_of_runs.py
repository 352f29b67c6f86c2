"""Options of a run that are out of range are rejected with the allowed range, in every mode, before the run begins."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

import testbed
from testbed.cli.main import testbed as command
from testbed.controller.runs.command_runs import run_commands
from testbed.controller.runs.run_options import Mode
from testbed.errors import DescriptionError
from testbed.workloads.lookup import choose
from testbed.workloads.workload_settings import LARGEST_MESSAGE

MODES: tuple[Mode, ...] = ("sim", "live", "dilated")
LARGEST_SEED = 2**64 - 1


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"seed": 10**22}, f"seed: found {10**22}, expected 0 to {LARGEST_SEED}"),
        ({"seed": -1}, f"seed: found -1, expected 0 to {LARGEST_SEED}"),
        ({"seed": LARGEST_SEED, "repeat": 2}, r"the last of 2 repetitions has seed + 1"),
        ({"timeout": float("nan")}, "timeout: found nan, expected seconds, above 0 and up to 1000000"),
        ({"timeout": float("inf")}, "timeout: found inf, expected seconds"),
        ({"timeout": 1e30}, "timeout: found 1e+30, expected seconds"),
        ({"patience": 1e30}, "patience: found 1e+30, expected seconds"),
        ({"settings": {"sizes": "5GiB"}}, "sizes: found '5GiB', expected at most 255MiB for a message"),
        ({"settings": {"sizes": "-4"}}, "not negative"),
        ({"settings": {"count": "1" * 30}}, "expected a whole number between"),
        ({"settings": {"count": "9" * 5000}}, "expected a whole number"),
    ],
)
def test_an_invalid_number_is_rejected_with_the_allowed_range(
    tmp_path: Path, mode: Mode, options: Mapping[str, object], expected: str
) -> None:
    with pytest.raises(DescriptionError) as caught:
        testbed.run("star-2", "pingpong", mode=mode, output=tmp_path / "run", **options)  # type: ignore[arg-type]
    assert expected in str(caught.value)
    assert caught.value.exit_code == 2
    assert not (tmp_path / "run").exists()


def test_the_largest_seed_is_valid() -> None:
    result = testbed.run("star-2", "pingpong", mode="sim", seed=LARGEST_SEED, settings={"sizes": 4, "count": 2})
    assert result.seed == LARGEST_SEED


@pytest.mark.parametrize(
    ("workload", "setting"),
    [
        ("bandwidth", "sizes"),
        ("rate", "size"),
        ("random", "largest"),
        ("logp", "size"),
        ("logp", "sizes"),
        ("permutation", "size"),
        ("contention", "size"),
        ("comb", "size"),
        ("service", "size"),
        ("service", "reply"),
    ],
)
@pytest.mark.parametrize("size", ["256MiB", 2**28, -1])
def test_workloads_reject_impossible_message_sizes(workload: str, setting: str, size: str | int) -> None:
    choose(workload, {setting: LARGEST_MESSAGE})
    with pytest.raises(DescriptionError):
        choose(workload, {setting: size})


@pytest.mark.parametrize(
    ("workload", "settings"),
    [
        ("sort", {"keys": LARGEST_MESSAGE}),
        ("sort", {"keys": 0}),
        ("random", {"tags": 10**18}),
        ("random", {"outstanding": 10**18}),
        ("random", {"over": -1}),
        ("service", {"rate": "nan"}),
        ("service", {"rate": "inf"}),
        ("bandwidth", {"count": 2**63}),
        ("comb", {"batch": "-1"}),
    ],
)
def test_impossible_counts_and_rates_are_rejected(workload: str, settings: Mapping[str, object]) -> None:
    with pytest.raises(DescriptionError):
        choose(workload, settings)


@pytest.mark.parametrize("seconds", ["nan", "inf", "-1", "1e30"])
def test_an_unlimited_duration_of_a_check_is_rejected(seconds: str) -> None:
    result = CliRunner().invoke(command, ["check", "--seconds", seconds])
    assert isinstance(result.exception, DescriptionError), result.exception


def test_runs_of_commands_reject_invalid_seeds_and_timeouts(tmp_path: Path) -> None:
    with pytest.raises(DescriptionError) as caught:
        run_commands("star-2", [("n1", "true")], seed=2**64, timeout=float("inf"), output=tmp_path / "run")
    assert [problem.path for problem in caught.value.problems] == ["seed", "timeout"]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("option", ["--seed=99999999999999999999999", "--seconds=inf", "--seconds=nan"])
def test_the_check_of_a_scenario_rejects_invalid_seeds_and_durations(tmp_path: Path, option: str) -> None:
    file = tmp_path / "storm.toml"
    file.write_text('[[fault]]\nat = "1ms"\ncut = "n1"\n')
    result = CliRunner().invoke(command, ["scenario", "check", str(file), "star-2", "--mode", "sim", option])
    assert isinstance(result.exception, DescriptionError), result.exception

"""Values of options that several commands share."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from testbed.cli.consoles import to_seconds
from testbed.cli.main import testbed as command
from testbed.cli.run_command import run_command


@click.command()
@click.option("--timeout", callback=to_seconds, default="60")
def wait(timeout: float) -> None:
    click.echo(f"{timeout:g}")


@pytest.mark.parametrize(
    ("text", "seconds"), [("2", "2"), ("0.5", "0.5"), ("2s", "2"), ("500ms", "0.5"), ("1min", "60")]
)
def test_seconds_are_a_number_or_a_duration_with_its_unit(text: str, seconds: str) -> None:
    assert CliRunner().invoke(wait, ["--timeout", text]).output == f"{seconds}\n"


def test_without_the_option_its_default_holds() -> None:
    assert CliRunner().invoke(wait).output == "60\n"


@pytest.mark.parametrize("text", ["2m", "-2s", "soon", ""])
def test_other_seconds_are_refused_with_both_forms(text: str) -> None:
    result = CliRunner().invoke(wait, ["--timeout", text])
    assert result.exit_code == 2
    assert f"found {text!r}, expected seconds, or a duration with its unit: 2.5 or 2500ms" in result.output


def test_a_command_in_place_of_a_workload_names_the_option_that_runs_it() -> None:
    result = CliRunner().invoke(run_command, ["star-2", "ping -c1 n2"])
    assert result.exit_code == 2
    assert "--on NODE 'ping -c1 n2'" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("validate star-2 --toml --json", "--toml cannot be combined with --json"),
        ("graph star-2 --dot --json", "--dot cannot be combined with --json"),
        ("decode x.pcapng --messages --message n1/n2/7", "--messages cannot be combined with --message"),
        ("decode x.pcapng --verbose --json", "--verbose cannot be combined with --json"),
        ("runs . --workloads", "--workloads cannot be combined with a FOLDER"),
        ("run star-2 --on n1 true --no-bind", "--no-bind needs a workload"),
        ("run star-2 --on n1 true --no-check", "--no-check needs a workload"),
        ("replay x --runs 3", "--runs needs --shrink"),
        ("study x.toml --tls-ca ca.pem", "--tls-ca needs --scheduler tls://HOST:PORT"),
        ("study x.toml --scheduler here --tls-key k.pem", "--tls-key needs --scheduler tls://HOST:PORT"),
        ("study x.toml --dry-run --output x", "--dry-run cannot be combined with --output"),
        ("protocol check emp --only fates --cases 3", "--cases needs the check 'swarm'"),
        ("protocol check emp --only swarm --depth 3", "--depth needs the check 'fates'"),
        ("protocol check emp --only swarm --case 7 --seed 3", "--case cannot be combined with --seed"),
    ],
)
def test_options_that_contradict_each_other_are_rejected(arguments: str, message: str) -> None:
    result = CliRunner().invoke(command, arguments.split())
    assert result.exit_code == 2, result.output
    assert message in result.output


def test_settings_that_a_workload_rejects_are_named_with_their_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(command, ["run", "star-2", "pingpong", "--mode", "sim", "--set", "count=-1"])
    assert "found count = '-1', expected count and peer: 1 or more" in str(result.exception)

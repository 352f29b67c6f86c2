"""Values of options that several commands share."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from testbed.cli.consoles import to_seconds
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

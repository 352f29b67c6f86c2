"""``testbed runs``, of a directory."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from testbed.cli.main import testbed as command


def test_a_missing_directory_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for target in ("nonesuch", "file"):
        result = CliRunner().invoke(command, ["runs", str(tmp_path / target)])
        assert result.exit_code == 2
        assert str(tmp_path / target) in result.output


def test_an_empty_list_of_runs_is_not_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments in (["runs"], ["runs", str(tmp_path)]):
        result = CliRunner().invoke(command, arguments)
        assert result.exit_code == 0
        assert result.output.startswith("there are no runs in ")

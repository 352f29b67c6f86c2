"""Commands called within a longer-lived process restore the state of Python's garbage collector."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from testbed.cli.collector import MAX_FROZEN_AT_START, collector_off, imports_frozen
from testbed.cli.main import testbed as command
from testbed.cluster.records import state


def collector_state() -> tuple[bool, tuple[int, int, int], bool]:
    return gc.isenabled(), gc.get_threshold(), gc.get_freeze_count() > MAX_FROZEN_AT_START


@pytest.fixture(autouse=True)
def _clusters_in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "default_root", lambda: tmp_path / "clusters")


@pytest.mark.parametrize(
    "arguments",
    [
        ["validate", "ring-8"],
        ["validate", "no-such"],
        ["graph", "star-3", "--dot"],
        ["up", "star-3", "--dry-run"],
        ["up", "star-3000"],
        ["run", "star-2", "pingpong", "--mode", "sim", "--set", "sizes=8", "--set", "count=10", "--output", "run"],
        ["run", "star-2", "pingpong", "--mode", "sim", "--set", "nothing=8", "--output", "run"],
    ],
    ids=" ".join,
)
def test_a_command_leaves_the_collector_as_it_was(
    arguments: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = collector_state()
    CliRunner().invoke(command, list(arguments))
    assert collector_state() == before


def test_a_report_leaves_the_collector_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    run = ["run", "star-2", "pingpong", "--mode", "sim", "--set", "count=10", "--output", "run"]
    before = collector_state()
    assert CliRunner().invoke(command, run).exit_code == 0
    result = CliRunner().invoke(command, ["report", "run"])
    assert result.exit_code == 0, result.output
    assert collector_state() == before


def test_imports_are_unfrozen_although_python_starts_with_frozen_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.12 starts with 375 frozen objects."""
    calls: list[str] = []
    monkeypatch.setattr(gc, "get_freeze_count", lambda: 375)
    monkeypatch.setattr(gc, "freeze", lambda: calls.append("freeze"))
    monkeypatch.setattr(gc, "unfreeze", lambda: calls.append("unfreeze"))
    with imports_frozen():
        pass
    assert calls == ["freeze", "unfreeze"]


def test_a_disabled_or_frozen_collector_is_not_changed() -> None:
    gc.disable()
    gc.freeze()
    try:
        with collector_off(), imports_frozen():
            pass
        assert not gc.isenabled()
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
        gc.enable()


def test_a_command_in_its_own_process_leaves_the_collector_off() -> None:
    """A last collection would delay the exit of the command."""
    program = (
        "import gc, sys; from testbed.cli.main import main\n"
        "try: main()\n"
        "finally: sys.stderr.write(f'collecting: {gc.isenabled()}')"
    )
    completed = subprocess.run(
        [sys.executable, "-c", program, "validate", "star-3"], capture_output=True, text=True, check=True
    )
    assert completed.stderr == "collecting: False"

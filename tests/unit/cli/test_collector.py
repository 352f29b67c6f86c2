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


def collector() -> tuple[bool, tuple[int, int, int], bool]:
    return gc.isenabled(), gc.get_threshold(), gc.get_freeze_count() > MAX_FROZEN_AT_START


@pytest.fixture(autouse=True)
def _own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    before = collector()
    CliRunner().invoke(command, list(arguments))
    assert collector() == before


def test_a_report_leaves_the_collector_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    run = ["run", "star-2", "pingpong", "--mode", "sim", "--set", "count=10", "--output", "run"]
    before = collector()
    assert CliRunner().invoke(command, run).exit_code == 0
    result = CliRunner().invoke(command, ["report", "run"])
    assert result.exit_code == 0, result.output
    assert collector() == before


def test_objects_that_python_itself_has_frozen_do_not_keep_the_others_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.12 starts with 375 frozen objects; all that was frozen later stayed so."""
    calls: list[str] = []
    monkeypatch.setattr(gc, "get_freeze_count", lambda: 375)
    monkeypatch.setattr(gc, "freeze", lambda: calls.append("freeze"))
    monkeypatch.setattr(gc, "unfreeze", lambda: calls.append("unfreeze"))
    with imports_frozen():
        pass
    assert calls == ["freeze", "unfreeze"]


def test_a_disabled_or_frozen_collector_stays_so() -> None:
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
    """A last collection would delay the exit of a command with its own process."""
    program = (
        "import gc, sys; from testbed.cli.main import main\n"
        "try: main()\n"
        "finally: sys.stderr.write(f'collecting: {gc.isenabled()}')"
    )
    completed = subprocess.run(
        [sys.executable, "-c", program, "validate", "star-3"], capture_output=True, text=True, check=True
    )
    assert completed.stderr == "collecting: False"

"""Ctrl-C while the command is still importing its modules."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]


@pytest.mark.parametrize("module", ["click", "testbed.errors"])
def test_an_immediate_interrupt_prints_one_line_and_no_traceback(tmp_path: Path, module: str) -> None:
    """The process interrupts itself when it imports this module, a moment that no timer would hit reliably."""
    script = tmp_path / "interrupted.py"
    script.write_text(
        "import importlib.abc, signal, sys\n"
        "class Finder(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        f"        if name == {module!r}:\n"
        "            signal.raise_signal(signal.SIGINT)\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from testbed.cli.entry import main\n"
        "main()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    completed = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False
    )
    assert (completed.returncode, completed.stderr) == (130, "testbed: interrupted\n")

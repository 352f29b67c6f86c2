"""Ctrl-C while the command is still importing its modules."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]


SCRIPT = """
import importlib.abc, signal, sys, time, weakref

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "{module}":
            {action}

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Finder())
from testbed.cli.entry import main
main()
"""
IN_FINALIZER = "weakref.finalize(Finder(), signal.raise_signal, signal.SIGINT); time.sleep(30)"


@pytest.mark.parametrize(
    ("module", "action"),
    [
        ("click", "signal.raise_signal(signal.SIGINT)"),
        ("testbed.errors", "signal.raise_signal(signal.SIGINT)"),
        ("click", IN_FINALIZER),
    ],
    ids=["before click", "before testbed.errors", "in a finalizer"],
)
def test_an_immediate_interrupt_prints_one_line_and_no_traceback(tmp_path: Path, module: str, action: str) -> None:
    """The process interrupts itself at the import of a module, a moment that no timer would hit reliably."""
    script = tmp_path / "interrupted.py"
    script.write_text(SCRIPT.format(module=module, action=action))
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    completed = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False, timeout=20
    )
    assert (completed.returncode, completed.stderr) == (130, "testbed: interrupted\n")

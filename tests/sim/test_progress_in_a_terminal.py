"""A long simulation shows its progress if standard error is a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

COMMAND = [
    str(Path(sys.executable).parent / "testbed"),
    "run",
    "star-4",
    "random",
    "--mode",
    "sim",
    "--set",
]


def run_in_terminal(folder: Path) -> str:
    """Run the command in a terminal and return its standard error."""
    master, terminal = pty.openpty()
    try:
        process = subprocess.Popen(
            [*COMMAND, "messages=6000", "--output", str(folder)], stdout=subprocess.DEVNULL, stderr=terminal
        )
    finally:
        os.close(terminal)
    text = b""
    with os.fdopen(master, "rb", buffering=0) as file:
        try:
            while data := file.read(4096):
                text += data
        except OSError:  # the terminal has no writer any more
            pass
    assert process.wait() == 0
    return text.decode()


def test_a_long_simulation_shows_its_progress_in_a_terminal(tmp_path: Path) -> None:
    text = run_in_terminal(tmp_path / "run")
    assert "random on star-4, " in text
    assert " s simulated, " in text
    assert " events, " in text
    assert " messages: " in text


def test_a_simulation_shows_no_progress_without_a_terminal(tmp_path: Path) -> None:
    completed = subprocess.run(
        [*COMMAND, "messages=1200", "--output", str(tmp_path / "run")], capture_output=True, text=True, check=True
    )
    assert "simulated" not in completed.stderr
    assert "\x1b" not in completed.stdout + completed.stderr

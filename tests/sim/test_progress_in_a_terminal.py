"""A long simulation shows its progress in a terminal, and only there."""

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


def in_a_terminal(folder: Path) -> str:
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
        except OSError:  # the error of a terminal without a writer
            pass
    assert process.wait() == 0
    return text.decode()


def test_a_long_simulation_shows_how_far_it_is_in_a_terminal(tmp_path: Path) -> None:
    text = in_a_terminal(tmp_path / "run")
    assert "random on star-4, " in text
    assert " s simulated, " in text
    assert " events, " in text
    assert " messages: " in text


def test_it_shows_nothing_without_a_terminal(tmp_path: Path) -> None:
    completed = subprocess.run(
        [*COMMAND, "messages=1200", "--output", str(tmp_path / "run")], capture_output=True, text=True, check=True
    )
    assert "simulated" not in completed.stderr
    assert "\x1b" not in completed.stdout + completed.stderr

"""Stopped processes, of which one waits for a child that was stopped before it began its program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from testbed.kernel.processes import is_stopped, state_of
from tests.live.machine_state import eventually

SPAWN = """
import os, sys
os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 3, sys.argv[1], os.O_WRONLY, 0)])
"""
"""The child opens a FIFO before it begins its program, and its parent waits for that in vfork."""


def test_a_process_that_waits_for_a_stopped_child_is_stopped(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with subprocess.Popen([sys.executable, "-c", SPAWN, str(fifo)], start_new_session=True) as process:
        try:
            eventually(lambda: state_of(process.pid) == "D", "the parent waits for its child")
            assert not is_stopped(process.pid)
            os.killpg(process.pid, signal.SIGSTOP)
            eventually(lambda: is_stopped(process.pid), "stopped")
            assert state_of(process.pid) == "D"
            os.killpg(process.pid, signal.SIGCONT)
            eventually(lambda: not is_stopped(process.pid), "continued")
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_a_running_an_ended_and_no_process_are_not_stopped() -> None:
    with subprocess.Popen(["true"]) as process:
        assert not is_stopped(os.getpid())
    assert not is_stopped(process.pid)
    assert not is_stopped(0)

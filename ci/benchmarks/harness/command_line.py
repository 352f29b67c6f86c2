"""The product's command, from start to exit: wall time, and CPU time (user + system, with children it waited for)."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.contenders import ContenderError


def command() -> list[str]:
    """How the command is started: the installed script, or the module where nothing is installed."""
    script = Path(sys.executable).with_name("testbed")
    return [str(script)] if script.exists() else [sys.executable, "-m", "testbed.cli.main"]


@dataclass(frozen=True, slots=True)
class Exit:
    """A command that ended well: wall and CPU seconds."""

    wall: float
    cpu: float


def run(command: Sequence[str], marker: str = "") -> Exit:
    """Run a command to its end, its output thrown away; ContenderError with its last line when it fails."""
    environment = {**os.environ, **({"TESTBED_BENCH": marker} if marker else {})}
    start = time.monotonic()
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.monotonic() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.stderr is not None
    with process.stderr:
        if process.returncode:
            words = process.stderr.read().decode(errors="replace").strip().rpartition("\n")[2]
            raise ContenderError(f"{' '.join(command)}: exit code {process.returncode}: {words}")
    return Exit(wall, usage.ru_utime + usage.ru_stime)

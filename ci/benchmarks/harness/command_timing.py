"""Run a command and measure its wall time and CPU time (user + system, including reaped children)."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.contenders import ContenderError


def command() -> list[str]:
    """Return the testbed command: the installed script, or the module without an installation."""
    script = Path(sys.executable).with_name("testbed")
    return [str(script)] if script.exists() else [sys.executable, "-m", "testbed.cli.main"]


@dataclass(frozen=True, slots=True)
class CommandTimes:
    """Times of a successful command, seconds."""

    wall: float
    cpu: float


def run(command: Sequence[str], marker: str = "") -> CommandTimes:
    """Run a command and discard its output. marker: value of TESTBED_BENCH in the command's environment. Raises
    ContenderError with the last line of stderr if the command fails."""
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
            last_line = process.stderr.read().decode(errors="replace").strip().rpartition("\n")[2]
            raise ContenderError(f"{' '.join(command)}: exit code {process.returncode}: {last_line}")
    return CommandTimes(wall, usage.ru_utime + usage.ru_stime)

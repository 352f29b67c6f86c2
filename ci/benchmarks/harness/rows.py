"""Rows of results as JSON Lines: quantity, settings, and every raw sample."""

import dataclasses
import datetime
import json
import shutil
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from testbed.controller.runs.folders import run_environment

REPOSITORY = Path(__file__).resolve().parents[3]
DISTRIBUTIONS = ("netns-testbed", "pyroute2", "click", "rich", "simpy")


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """Measured quantity of one contender. `hosts` is the number of nodes, 0 if not applicable.

    `samples` are in `unit`, in the order in which they were taken; `settings`: conditions of the measurement.
    """

    subject: str  # "star", "command", "run in a node", "footprint"
    contender: str  # "floor", "testbed", "ip -batch", ...
    measure: str  # "bring-up", "settled tear-down", "CPU of status", ...
    hosts: int
    unit: str
    samples: tuple[float, ...]
    settings: dict[str, Any]

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def low(self) -> float:
        return min(self.samples)

    @property
    def high(self) -> float:
        return max(self.samples)


def _output(*command: str) -> str:
    """Return the output of a command, empty when it cannot be run."""
    if shutil.which(command[0]) is None:
        return ""
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    return (done.stdout or done.stderr).strip() if done.returncode == 0 else ""


def environment() -> dict[str, Any]:
    """Return a description of the machine and of versions, which a repetition needs besides a row's settings."""
    return {
        **run_environment(DISTRIBUTIONS),
        "iproute2": _output("ip", "-V"),
        "compiler": _output("cc", "--version").partition("\n")[0],
        "commit": _output("git", "rev-parse", "HEAD"),
        "changed": bool(_output("git", "status", "--porcelain", "--untracked-files=no")),
    }


class Store:
    """Appends rows to a file, one JSON object per line, each with the time of its run and its environment."""

    def __init__(self, benchmark: str, path: Path) -> None:
        self._benchmark = benchmark
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a")
        self._run = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self._environment = environment()

    def add(self, rows: Sequence[Row]) -> None:
        for row in rows:
            summary = {"median": row.median, "low": row.low, "high": row.high}
            self._write({**dataclasses.asdict(row), **summary})

    def add_result(self, result: dict[str, Any]) -> None:
        """Store a result derived from rows, such as a ratio or a target."""
        self._write(result)

    def close(self) -> None:
        self._file.close()

    def _write(self, record: dict[str, Any]) -> None:
        entry = {"benchmark": self._benchmark, "run": self._run, **record, "environment": self._environment}
        self._file.write(json.dumps(entry) + "\n")
        self._file.flush()

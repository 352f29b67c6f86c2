"""Time from the command to the first message, and the controller's cost while programs run."""

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.harness import command_timing
from benchmarks.harness.contenders import ContenderError
from benchmarks.harness.rows import Row
from benchmarks.runs import process_watch
from benchmarks.runs.process_watch import CONTROLLER, MARK, Watch

FIRST = "to the first message"
SHARE = "controller: CPU per 10 nodes"
NODES = 4
_TIMEOUT = 60.0  # s


def first_messages(repeat: int, progress: Callable[[str], None]) -> Iterator[Row]:
    """Measure ``testbed run star-4 pingpong`` from its start, imports included, to the first receive in the histories
    (a barrier's). After one warm-up."""
    samples: list[float] = []
    for turn in range(repeat + 1):
        progress(f"first message: {turn} of {repeat}")
        with tempfile.TemporaryDirectory(prefix="testbed-bench-") as directory:
            start = time.monotonic_ns()
            _command(
                directory, "star-4", "pingpong", "--set", "count=10", "--set", "sizes=4", "--history", "--no-check"
            )
            if turn:
                samples.append((_first_received(Path(directory, "run")) - start) / 1e9)
    yield Row(
        "first", "testbed", FIRST, NODES, "s", tuple(samples), {"repeat": repeat, "command": command_timing.command()}
    )


def _first_received(folder: Path) -> int:
    """Return the time of the first receive, in ns of the machine's monotonic clock."""
    records = [json.loads(line) for path in folder.glob("history/*.jsonl") for line in path.read_text().splitlines()]
    return min(int(record["clock_ns"]) for record in records if record["what"] == "received")


def _command(directory: str, *arguments: str) -> None:
    command = [*command_timing.command(), "run", *arguments, "--output", f"{directory}/run"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    if done.returncode not in (0, 8):  # a busy machine degrades a run
        raise ContenderError(f"testbed run ended with code {done.returncode}: {done.stderr.strip()[:200]}")


def controllers(nodes: int, seconds: float, repeat: int, progress: Callable[[str], None]) -> Iterator[Row]:
    """Measure the controller during random traffic on `nodes` nodes."""
    samples = []
    for turn in range(repeat):
        progress(f"controller: {turn} of {repeat}")
        with tempfile.TemporaryDirectory(prefix="testbed-bench-") as directory:
            samples.append(controller_share(_watched(directory, nodes, seconds)) / nodes * 10)
    yield Row("controller", "testbed", SHARE, nodes, "1", tuple(samples), {"seconds": seconds})


def _watched(directory: str, nodes: int, seconds: float) -> Watch:
    """Sample a run of the command repeatedly."""
    mark = f"controller-{os.getpid()}-{time.monotonic_ns()}"
    settings = ["--set", f"messages={round(20 * seconds)}", "--set", f"over={seconds}s"]
    limits = ["--no-check", "--timeout", str(10 * seconds + 60), "--output", f"{directory}/run"]
    command = [*command_timing.command(), "run", f"star-{nodes}", "random", *settings, *limits]
    environment = {**os.environ, MARK: mark}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        watch = Watch(mark, process.pid)
        while process.poll() is None:
            watch.sample()
            time.sleep(0.1)  # between two samples
    if process.returncode not in (0, 8):  # a busy machine degrades a run
        raise ContenderError(f"testbed run ended with code {process.returncode}")
    return watch


def controller_share(watch: Watch) -> float:
    """Return the controller's share of a processor while nodes ran."""
    used = process_watch.processor(watch.kinds()[CONTROLLER])
    return (used[-1][1] - used[0][1]) / (used[-1][0] - used[0][0])

"""The command line, start to exit: wall time, and CPU time (user + system, with children it waited for)."""

import os
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks import product
from benchmarks.contenders import ContenderError, named_namespaces
from benchmarks.rows import Row
from benchmarks.settled import Observer

HOSTS = 100
WALL, CPU = "start to exit", "CPU"


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


class ByCommand:
    """A star that the command brought up, until the body ends; taken down and settled then."""

    def __init__(self, name: str, observer: Observer, marker: str = "", hosts: int = HOSTS) -> None:
        self.name, self.hosts = name, hosts
        self._observer, self._marker = observer, marker
        self.up = self.down = Exit(0.0, 0.0)

    def __enter__(self) -> "ByCommand":
        self.up = run([*product.command(), "up", f"star-{self.hosts}", "--name", self.name], self._marker)
        return self

    def __exit__(self, *_: object) -> None:
        self._observer.watch(named_namespaces(self.name))
        self.down = run([*product.command(), "down", "--name", self.name])
        self._observer.wait()


def measure(repeat: int, observer: Observer, progress: Callable[[str], None]) -> list[Row]:
    """Every command `repeat` times, by turns, after one round that is not counted."""
    samples: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    name = f"bench-command-{os.getpid()}"
    testbed = product.command()

    def note(turn: int, label: str, hosts: int, done: Exit) -> None:
        if turn:
            samples[label, WALL, hosts].append(done.wall)
            samples[label, CPU, hosts].append(done.cpu)

    for turn in range(repeat + 1):
        progress(f"commands: {f'{turn} of {repeat}' if turn else 'warm-up'}")
        note(turn, "testbed --help", 0, run([*testbed, "--help"]))
        star = ByCommand(name, observer)
        with star:
            note(turn, "testbed status --json", HOSTS, run([*testbed, "status", "--name", name, "--json"]))
            note(turn, "testbed status", HOSTS, run([*testbed, "status", "--name", name]))
            inside = [*testbed, "exec", "--name", name, "n1", "--", "true"]
            note(turn, "testbed exec n1 -- true", HOSTS, run(inside))
            again = [*testbed, "up", f"star-{HOSTS}", "--name", name]
            note(turn, f"testbed up star-{HOSTS}, already up", HOSTS, run(again))
        note(turn, f"testbed up star-{HOSTS}", HOSTS, star.up)
        note(turn, "testbed down", HOSTS, star.down)
    return [
        Row("command", label, measured, hosts, "s", tuple(values), {"repeat": repeat, "command": testbed})
        for (label, measured, hosts), values in samples.items()
    ]

"""Wall and CPU time of testbed's commands on a star, and a star that the command brings up."""

import os
from collections import defaultdict
from collections.abc import Callable

from benchmarks.harness.command_timing import CommandTimes, command, run
from benchmarks.harness.contenders import named_namespaces
from benchmarks.harness.namespace_teardown import Observer
from benchmarks.harness.rows import Row

HOSTS = 100
WALL, CPU = "start to exit", "CPU"


class CommandStar:
    """Context manager: a star that the command brings up. At the end the star is taken down, and its namespaces are
    destroyed. up, down: times of the two commands."""

    def __init__(self, name: str, observer: Observer, marker: str = "", hosts: int = HOSTS) -> None:
        self.name, self.hosts = name, hosts
        self._observer, self._marker = observer, marker
        self.up = self.down = CommandTimes(0.0, 0.0)

    def __enter__(self) -> "CommandStar":
        self.up = run([*command(), "up", f"star-{self.hosts}", "--name", self.name], self._marker)
        return self

    def __exit__(self, *_: object) -> None:
        self._observer.watch(named_namespaces(self.name))
        self.down = run([*command(), "down", "--name", self.name])
        self._observer.wait()


def measure(repeat: int, observer: Observer, progress: Callable[[str], None]) -> list[Row]:
    """Measure every command `repeat` times, in turn, after one uncounted round."""
    samples: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    name = f"bench-command-{os.getpid()}"
    testbed = command()

    def record(turn: int, label: str, hosts: int, times: CommandTimes) -> None:
        if turn:
            samples[label, WALL, hosts].append(times.wall)
            samples[label, CPU, hosts].append(times.cpu)

    for turn in range(repeat + 1):
        progress(f"commands: {f'{turn} of {repeat}' if turn else 'warm-up'}")
        record(turn, "testbed --help", 0, run([*testbed, "--help"]))
        star = CommandStar(name, observer)
        with star:
            record(turn, "testbed status --json", HOSTS, run([*testbed, "status", "--name", name, "--json"]))
            record(turn, "testbed status", HOSTS, run([*testbed, "status", "--name", name]))
            execute = [*testbed, "exec", "--name", name, "n1", "--", "true"]
            record(turn, "testbed exec n1 -- true", HOSTS, run(execute))
            up_again = [*testbed, "up", f"star-{HOSTS}", "--name", name]
            record(turn, f"testbed up star-{HOSTS}, already up", HOSTS, run(up_again))
        record(turn, f"testbed up star-{HOSTS}", HOSTS, star.up)
        record(turn, "testbed down", HOSTS, star.down)
    return [
        Row("command", label, measured, hosts, "s", tuple(values), {"repeat": repeat, "command": testbed})
        for (label, measured, hosts), values in samples.items()
    ]

"""Clusters of thousands of nodes: validation of a description of 10,000, and bring-up of a star of 1,000 by the command and
by the floor in turn."""

import os
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from benchmarks.cluster.commands import CPU, WALL, CommandStar
from benchmarks.cluster.floor import Floor
from benchmarks.cluster.stars import BRING_UP
from benchmarks.harness import command_timing
from benchmarks.harness.command_timing import run
from benchmarks.harness.namespace_teardown import Observer
from benchmarks.harness.rows import Row

NODES, HOSTS = 10_000, 1_000
REFERENCE = "floor, in turn with the command"
UP = f"testbed up star-{HOSTS}"


def explicit_description(nodes: int, racks: int = 10) -> str:
    """Return a description that lists all elements: hosts on switches in a row."""
    tables = [f'name = "written-{nodes}"']
    tables += [f'[[node]]\nname = "host-{number}"' for number in range(nodes)]
    tables += [f'[[switch]]\nname = "rack-{number}"' for number in range(racks)]
    tables += [f'[[link]]\nends = ["host-{number}", "rack-{number % racks}"]' for number in range(nodes)]
    tables += [f'[[link]]\nends = ["rack-{number}", "rack-{number + 1}"]' for number in range(racks - 1)]
    return "\n".join(tables)


DESCRIPTIONS = {
    "testbed validate, a ring": f'[generate]\nshape = "ring"\nnodes = {NODES}\n',
    "testbed validate, a fat tree": '[generate]\nshape = "fat-tree"\nk = 32\n',
    "testbed validate, written out": explicit_description(NODES),
}


def measure(floor: Floor | None, repeat: int, observer: Observer, progress: Callable[[str], None]) -> list[Row]:
    """Measure `repeat` rounds after a warm-up; rows in seconds."""
    samples: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    testbed = command_timing.command()
    with tempfile.TemporaryDirectory() as folder:
        for number, text in enumerate(DESCRIPTIONS.values()):
            Path(folder, f"{number}.toml").write_text(text)
        for turn in range(repeat + 1):
            progress(f"thousands of nodes: {f'{turn} of {repeat}' if turn else 'warm-up'}")
            for number, label in enumerate(DESCRIPTIONS):
                times = run([*testbed, "validate", str(Path(folder, f"{number}.toml"))])
                if turn:
                    samples[label, WALL, NODES].append(times.wall)
                    samples[label, CPU, NODES].append(times.cpu)
            if floor is not None:
                floor_time = floor.up(f"bench-large-{os.getpid()}", HOSTS)
                observer.watch(floor.namespaces())
                floor.down()
                observer.wait()
            with CommandStar(f"bench-large-{os.getpid()}", observer, hosts=HOSTS) as star:
                pass
            if turn:
                samples[UP, WALL, HOSTS].append(star.up.wall)
                samples[UP, CPU, HOSTS].append(star.up.cpu)
                if floor is not None:
                    samples[REFERENCE, BRING_UP, HOSTS].append(floor_time.seconds)
    return [
        Row("large", label, measured, hosts, "s", tuple(values), {"repeat": repeat, "command": testbed})
        for (label, measured, hosts), values in samples.items()
    ]

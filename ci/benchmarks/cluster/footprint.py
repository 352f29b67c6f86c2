"""Cost of an idle node: kernel memory, state, processes. Measured on a star that the command brought up.

Memory is taken from /proc/meminfo before and after: the fall of MemAvailable, and separately the growth of
Slab + Percpu + KernelStack + PageTables, which page cache and processes do not affect.
"""

import os
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from benchmarks.cluster.commands import HOSTS, CommandStar
from benchmarks.cluster.stars import cluster_name
from benchmarks.harness.contenders import NAMES, Contender, named_namespaces
from benchmarks.harness.namespace_teardown import Observer
from benchmarks.harness.rows import Row

AVAILABLE, KERNEL = "memory per node, MemAvailable", "memory per node, kernel's own"
STATE, PROCESSES, IN_NODES = "state per node", "processes left running", "processes in idle nodes"


def memory() -> dict[str, int]:
    """Return bytes by measure; both measures grow as memory is used."""
    results = {}
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        results[name] = int(value.split()[0]) * 1024
    own = sum(results.get(name, 0) for name in ("Slab", "Percpu", "KernelStack", "PageTables"))
    return {AVAILABLE: -results["MemAvailable"], KERNEL: own}


def state_bytes(cluster: str) -> int:
    """Return the total size of files below /run with the cluster's name in their path, without namespaces."""
    total = 0
    for directory, directories, files in os.walk("/run"):
        if Path(directory) == Path("/run"):
            directories[:] = [name for name in directories if name != NAMES.name]
        paths = [Path(directory, name) for name in files]
        total += sum(path.lstat().st_size for path in paths if cluster in str(path))
    return total


def processes(cluster: str, marker: str) -> tuple[int, int]:
    """Return the number of processes that descend from the command with `marker`, and of those in the namespaces."""
    expected = f"TESTBED_BENCH={marker}".encode()
    inside = {os.stat(path).st_ino for path in named_namespaces(cluster)}
    descendants = in_nodes = 0
    for directory in Path("/proc").iterdir():
        if not directory.name.isdigit():
            continue
        try:
            in_nodes += os.stat(directory / "ns/net").st_ino in inside
            descendants += expected in (directory / "environ").read_bytes().split(b"\0")
        except OSError:
            continue  # the process has ended, or is a kernel thread
    return descendants, in_nodes


def measure(floor: Contender | None, repeat: int, observer: Observer, progress: Callable[[str], None]) -> list[Row]:
    """Return rows of testbed, and of the floor's memory for comparison."""
    samples: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    name = f"bench-footprint-{os.getpid()}"
    for turn in range(repeat + 1):
        progress(f"footprint: {f'{turn} of {repeat}' if turn else 'warm-up'}")
        values: list[tuple[str, str, str, float]] = []
        before = memory()
        with CommandStar(name, observer, marker=name):
            values += _memory_growth("testbed", before)
            state, (running, inside) = state_bytes(name), processes(name, name)
        values += [
            ("testbed", STATE, "B", state / HOSTS),
            ("testbed", PROCESSES, "1", running),
            ("testbed", IN_NODES, "1", inside),
        ]
        if floor is not None:
            before = memory()
            floor.up(cluster_name(floor), HOSTS)
            values += _memory_growth(floor.name, before)
            observer.watch(floor.namespaces())
            floor.down()
            observer.wait()
        for contender, measured, unit, value in values if turn else ():
            samples[contender, measured, unit].append(value)
    return [
        Row("footprint", contender, measured, HOSTS, unit, tuple(sample), {"repeat": repeat})
        for (contender, measured, unit), sample in samples.items()
    ]


def _memory_growth(contender: str, before: dict[str, int]) -> list[tuple[str, str, str, float]]:
    """Return rows of the memory growth per node."""
    after = memory()
    return [(contender, name, "B", (after[name] - before[name]) / HOSTS) for name in after]

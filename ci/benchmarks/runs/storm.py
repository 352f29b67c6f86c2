"""A storm of random traffic, watched for losses, leaks and left-over objects."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.contenders import NAMES, ContenderError
from benchmarks.harness.rows import REPOSITORY, Row
from benchmarks.runs import process_watch
from benchmarks.runs.first_message import SHARE, controller_share
from benchmarks.runs.leaks import Growth, growth, minimum_increase
from benchmarks.runs.process_watch import MARK, Watch, network_cookie

KERNEL, RELAY = "losses by the kernel", "losses by the relay"
MESSAGES, TOOK, WRONG, LEFT = "messages received", "time", "lost or twice", "left behind"
MEMORY, DESCRIPTORS = "memory gained, beyond doubt", "descriptors gained"
PROCESS = Path(__file__).with_name("storm_process.py")
_SETTLE_TIME = 10.0  # s for processes to end by themselves
_TIMEOUT_FACTOR = 10  # times the duration of the traffic, for a machine that does not keep up


@dataclass(frozen=True, slots=True)
class Storm:
    """Parameters of a storm: nodes send a total of `messages` within `seconds`. every: seconds between two samples."""

    nodes: int
    messages: int
    seconds: float
    every: float
    loss: str = "0.5%"
    relay: bool = False


@dataclass(frozen=True, slots=True)
class StormOutcome:
    """Outcome of a storm. result: see `storm_process`. watch: samples. leftovers: descriptions of left-over objects."""

    result: dict[str, Any]
    watch: Watch
    leftovers: list[str]


def watch_storm(storm: Storm, directory: Path, progress: Callable[[str], None] = lambda _: None) -> StormOutcome:
    """Run a storm in a separate process and watch it. Raises ContenderError with the run's first lines if it fails."""
    before = machine()
    mark = f"storm-{os.getpid()}-{time.monotonic_ns()}"
    requested = {
        "nodes": storm.nodes, "messages": storm.messages, "seconds": storm.seconds, "loss": storm.loss,
        "relay": storm.relay, "timeout": storm.seconds * _TIMEOUT_FACTOR + 60, "seed": 1, "output": str(directory / mark),
    }  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, str(PROCESS), json.dumps(requested)],
        env={**os.environ, MARK: mark, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    watch, start = Watch(mark, process.pid), time.monotonic()
    try:
        while process.poll() is None:
            watch.sample()
            progress(f"storm: {time.monotonic() - start:.0f} s")
            time.sleep(storm.every)  # between two samples
        output, errors = process.communicate()
    finally:
        process.kill()
        process.wait()
    if process.returncode:
        raise ContenderError(errors.strip() or f"the storm ended with code {process.returncode}")
    return StormOutcome(json.loads(output), watch, _leftovers(watch, before))


@dataclass(frozen=True, slots=True)
class Machine:
    """Mounts, files and packet sockets on the machine. Others may use the machine, so only new objects of this run count."""

    mounts: frozenset[str]
    files: frozenset[str]
    packet_sockets: frozenset[str]


def machine() -> Machine:
    """Return the machine's present state."""
    files = (str(path) for folder in (NAMES, Path("/run/netns-testbed")) for path in folder.rglob("*"))
    return Machine(
        frozenset(line.split()[4] for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()),
        frozenset(files),
        frozenset(line.split()[-1] for line in Path("/proc/net/packet").read_text().splitlines()[1:]),
    )


def _leftovers(watch: Watch, before: Machine) -> list[str]:
    """Return what `remains` once processes have had time to end by themselves."""
    deadline = time.monotonic() + _SETTLE_TIME
    while (result := remains(watch, before)) and time.monotonic() < deadline:
        time.sleep(0.05)  # between two samples
    return result


def remains(watch: Watch, before: Machine) -> list[str]:
    """Describe the watched objects that are left and did not exist before."""
    after = machine()
    ours = watch.networks - {network_cookie("/proc/self/ns/net")}
    results = [f"process {pid}" for pid in sorted(watch.pids())]
    results += [f"network namespace {cookie}" for cookie in sorted(ours & _networks())]
    name = f"-run-{watch.controller}-"  # in our cluster's name; other clusters may start and end meanwhile
    results += [f"mount {mount}" for mount in sorted(after.mounts - before.mounts) if name in mount]
    results += [f"file {file}" for file in sorted(after.files - before.files) if name in file]
    new = after.packet_sockets - before.packet_sockets
    return results + [f"packet socket {socket}" for socket in sorted(new - _sockets_of_others() if new else new)]


def _sockets_of_others() -> set[str]:
    """Return the inodes of sockets of living processes; our own have ended, or are reported."""
    result = set()
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                names = [os.readlink(f"/proc/{entry}/fd/{number}") for number in os.listdir(f"/proc/{entry}/fd")]
                result.update(name[8:-1] for name in names if name.startswith("socket:["))
    return result


def _networks() -> set[int]:
    """Return the cookies of the network namespaces that have a name or a process."""
    paths = [str(path) for path in NAMES.iterdir()] if NAMES.exists() else []
    paths += [f"/proc/{entry}/ns/net" for entry in os.listdir("/proc") if entry.isdigit()]
    by_inode = {}
    for path in paths:
        with contextlib.suppress(OSError):
            by_inode[os.stat(path).st_ino] = path
    result = set()
    for path in by_inode.values():
        with contextlib.suppress(OSError):
            result.add(network_cookie(path))
    return result


def growth_by_kind(watch: Watch) -> dict[str, tuple[Growth, float]]:
    """Return by kind of process the growth of its memory in the second half, and of its descriptors."""
    return {
        kind: (growth(process_watch.memory(rounds)), minimum_increase(process_watch.descriptors(rounds)))
        for kind, rounds in watch.kinds().items()
    }


def rows(storm: Storm, outcome: StormOutcome) -> Iterator[Row]:
    contender = RELAY if storm.relay else KERNEL
    result, settings = outcome.result, {"seconds": storm.seconds, "loss": storm.loss, "every": storm.every}

    def row(measure: str, unit: str, value: float, **more: object) -> Row:
        return Row("storm", contender, measure, storm.nodes, unit, (value,), {**settings, **more})

    yield row(
        MESSAGES, "1", result["received"], sent=result["sent"], grade=result["grade"], findings=result["findings"]
    )
    yield row(TOOK, "s", result["took"])
    yield row(
        WRONG, "1", result["sent"] - result["received"]
    )  # duplicated or reordered messages would have failed the run
    yield row(LEFT, "1", len(outcome.leftovers), what=outcome.leftovers)
    for kind, (memory, more) in sorted(growth_by_kind(outcome.watch).items()):
        reported = {
            "gained": memory.gained,
            "most": memory.most,
            "span": memory.seconds,
            "samples": memory.samples,
        }
        meanwhile = messages_within(outcome, memory.seconds)
        yield row(f"{kind}: {MEMORY}", "B", max(0.0, memory.least), **reported, messages=meanwhile)
        yield row(f"{kind}: {DESCRIPTORS}", "1", more)
    yield row(SHARE, "1", controller_share(outcome.watch) / storm.nodes * 10)


def messages_within(outcome: StormOutcome, seconds: float) -> float:
    """Return the approximate number of messages that arrived in `seconds`."""
    return float(outcome.result["received"]) * min(1.0, seconds / outcome.result["took"])

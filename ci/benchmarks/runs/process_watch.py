"""Watch of a run's processes from outside: memory, descriptors and processor time, by kind.

Included are all descendants of a process with a mark in its environment. Sampling slows the watched processes down: the
kernel walks a process's memory to sum it up.
"""

import contextlib
import os
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.runs.leaks import Sample
from testbed.kernel import namespaces

MARK = "TESTBED_BENCH"
CONTROLLER, NODES = "controller", "node processes"
_KINDS = {
    "testbed-nodes": "warm parent", "testbed-relay": "relay", "testbed-superv": "supervisor",
    "testbed-holder": "namespace holder",
}  # fmt: skip
SO_NETNS_COOKIE = 71  # include/uapi/asm-generic/socket.h
_MIN_SHARE = 0.8  # of the samples in which a kind must run; short-lived processes are ignored


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """Sample of one process. memory: bytes of anonymous memory. descriptors: their number. cpu: CPU time in seconds."""

    pid: int
    kind: str
    memory: int
    descriptors: int
    cpu: float


Rounds = list[tuple[float, list[ProcessSample]]]
"""Samples with their times, seconds."""


class Watch:
    """Watch of a process and its descendants. controller: the process with the mark in its environment."""

    def __init__(self, mark: str, controller: int) -> None:
        self._mark = f"{MARK}={mark}".encode()
        self.controller = controller
        self._unmarked: set[tuple[int, int]] = set()
        self._networks: dict[tuple[int, int], int] = {}
        self.rounds: Rounds = []

    def sample(self) -> None:
        """Sample all processes once."""
        self.rounds.append((time.monotonic(), list(self._sample_processes())))

    @property
    def networks(self) -> set[int]:
        """Cookies of the network namespaces in which the processes have been seen."""
        return set(self._networks.values())

    def pids(self) -> set[int]:
        """Return the pids of the running processes."""
        return set(self._marked())

    def _marked(self) -> Iterator[int]:
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            with contextlib.suppress(OSError):
                pid, folder = int(entry), Path("/proc", entry)
                key = pid, os.stat(folder).st_ino  # a reused PID has another inode
                if key in self._unmarked:
                    continue
                environment = (folder / "environ").read_bytes()
                if self._mark in environment.split(b"\0"):
                    yield pid
                elif environment:  # the environment is empty during exec
                    self._unmarked.add(key)

    def _sample_processes(self) -> Iterator[ProcessSample]:
        for pid in self._marked():
            with contextlib.suppress(OSError):
                kind = CONTROLLER if pid == self.controller else _kind(pid)
                descriptor_count = len(os.listdir(f"/proc/{pid}/fd"))
                yield ProcessSample(pid, kind, anonymous_memory(pid), descriptor_count, cpu_time(pid))
                network = pid, os.stat(f"/proc/{pid}/ns/net").st_ino
                if network not in self._networks:
                    self._networks[network] = network_cookie(f"/proc/{pid}/ns/net")

    def kinds(self) -> dict[str, Rounds]:
        """Return samples by kind of process, of the time during which nodes ran.

        Includes only kinds that ran nearly all of that time, and only samples with the most frequent number of processes.
        """
        with_nodes = [
            place for place, (_, samples) in enumerate(self.rounds) if any(sample.kind == NODES for sample in samples)
        ]
        rounds = self.rounds[with_nodes[0] : with_nodes[-1] + 1] if with_nodes else []
        results = {}
        for kind in {sample.kind for _, samples in rounds for sample in samples}:
            of_kind = [(when, [sample for sample in samples if sample.kind == kind]) for when, samples in rounds]
            typical_count = Counter(len(samples) for _, samples in of_kind).most_common(1)[0][0]
            kept = [sample for sample in of_kind if len(sample[1]) == typical_count]
            if typical_count and len(kept) > _MIN_SHARE * len(rounds):
                results[kind] = kept
        return results


def memory(rounds: Rounds) -> list[Sample]:
    return [(when, float(sum(sample.memory for sample in samples))) for when, samples in rounds]


def descriptors(rounds: Rounds) -> list[Sample]:
    return [(when, float(sum(sample.descriptors for sample in samples))) for when, samples in rounds]


def processor(rounds: Rounds) -> list[Sample]:
    return [(when, sum(sample.cpu for sample in samples)) for when, samples in rounds]


def _kind(pid: int) -> str:
    name = Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    return NODES if name.startswith("node ") else _KINDS.get(name, "others")


def anonymous_memory(pid: int) -> int:
    """Return bytes of anonymous memory, resident or swapped out.

    Pages shared with the parent count: a process that writes to one copies it, which is no growth.
    """
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(("Anonymous:", "Swap:")))


def network_cookie(path: str) -> int:
    """Return the cookie of a network namespace, which is unique, whereas inode numbers are reused at once. Needs root.
    Raises OSError."""
    with namespaces.restore_namespace():
        namespaces.enter(path)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as inside:
            return int.from_bytes(inside.getsockopt(socket.SOL_SOCKET, SO_NETNS_COOKIE, 8), sys.byteorder)


def cpu_time(pid: int) -> float:
    """Return the CPU time of a process with one thread, seconds."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9

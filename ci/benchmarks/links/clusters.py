"""Clusters for the benchmarks of links, in a process that is driven by lines of text."""

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness.contenders import ContenderError, LineProcess
from benchmarks.harness.processors import RELAY
from benchmarks.harness.traffic import NodeAddress

PROCESS = Path(__file__).with_name("cluster_process.py")
TIMEOUT = 20.0  # s for a relay to forward all waiting frames
INTERVAL, IDLE = (
    0.05,
    0.1,
)  # s between readings of a relay's CPU time; share of a processor below which the relay is idle


class Clusters:
    """Client of the process that runs the clusters; `close` ends the process."""

    def __init__(self) -> None:
        self._process = LineProcess("the product", [sys.executable, str(PROCESS)])
        self._numbers = iter(range(1, 1_000_000))

    def ask(self, command: str, **arguments: object) -> dict[str, Any]:
        return self._process.ask(json.dumps({"command": command, **arguments}))

    @contextmanager
    def up(
        self, shape: str = "back-to-back", nodes: int = 2, datapath: str = "auto", **keys: object
    ) -> Iterator["Running"]:
        """Context manager: a running cluster. shape: "back-to-back" or "star". keys: keys of all links."""
        name = f"bench-links-{os.getpid()}-{next(self._numbers)}"
        answer = self.ask("up", name=name, shape=shape, nodes=nodes, keys=keys, datapath=datapath)
        try:
            yield Running(self, name, answer)
        finally:
            self.ask("down", name=name)

    def close(self) -> None:
        self._process.close()


class Running:
    """A running cluster."""

    def __init__(self, clusters: Clusters, name: str, answer: Mapping[str, Any]) -> None:
        self.name = name
        self.nodes = {node: NodeAddress(**place) for node, place in answer["nodes"].items()}
        self.datapaths: dict[str, str] = answer["datapaths"]
        self._clusters = clusters

    def inject(self, target: str = "all", rules: Sequence[str] = (), **keys: object) -> float:
        """Inject an impairment or rules; return the duration in seconds."""
        answer = self._clusters.ask("inject", name=self.name, target=target, keys=keys, rules=list(rules))
        self.datapaths = answer["datapaths"]
        return float(answer["seconds"])

    def heal(self) -> float:
        """Heal all impairments; return the duration in seconds."""
        self.datapaths = {}
        return float(self._clusters.ask("heal", name=self.name)["seconds"])

    def relay(self) -> "Relay":
        return Relay(self._clusters.ask("report", name=self.name))


class Relay:
    """A relay, as reported at one moment. spun: seconds of CPU time in which the relay waited for deadlines."""

    def __init__(self, report: Mapping[str, Any]) -> None:
        self._pids: list[int] = [process["pid"] for process in report["processes"]]
        self.spun = report["processor"]["spun"] / 1e9
        self._directions = [direction for link in report["links"].values() for direction in link.values()]

    def cpu(self) -> float:
        """Return the CPU time of the relay's processes, seconds."""
        return sum(time.clock_gettime(~pid << 3 | 2) for pid in self._pids)  # CLOCK_PROCESS_CPUTIME_ID of others

    def wait(self) -> float:
        """Wait until the relay is idle; return its CPU time. The relay gets no requests meanwhile, which would take CPU
        time."""
        deadline = time.monotonic() + TIMEOUT
        used = self.cpu()
        while time.monotonic() < deadline:
            time.sleep(INTERVAL)
            before, used = used, self.cpu()
            if used - before < IDLE * INTERVAL:
                return used
        raise ContenderError(f"the relay was not idle after {TIMEOUT:g} s")

    def pin(self, cpu: int = RELAY) -> None:
        """Pin all processes of the relay to one processor."""
        for pid in self._pids:
            os.sched_setaffinity(pid, {cpu})

    def counter(self, name: str) -> int:
        """Return the sum of a counter over all links and directions."""
        return sum(direction["counters"].get(name, 0) for direction in self._directions)

    @property
    def lost(self) -> int:
        """Number of frames lost in the relay without being configured to be lost: in sockets, or in a full queue."""
        return sum(
            sum(direction["emulator"][name] for name in ("overrun", "oversized", "unsent", "down"))
            for direction in self._directions
        )

    @property
    def held(self) -> int:
        """Number of frames that the relay holds."""
        return sum(direction["held"] for direction in self._directions)

    @property
    def worst(self) -> float:
        """Maximum lateness of a frame, seconds."""
        return max((direction["lateness"]["worst"] for direction in self._directions), default=0) / 1e9

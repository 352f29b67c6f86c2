"""Measurements of AM-II, EMP and TCP in turn, and their rows."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.harness.contenders import ContenderError, LineProcess
from benchmarks.harness.processors import RECEIVER, SENDER
from benchmarks.harness.rows import Row
from benchmarks.harness.traffic import NodeAddress, Traffic

AM2, EMP, TCP = "AM-II, inline", "EMP, inline", "kernel TCP, C"
TRIPS, CROSSBAR, RATE, BULK = "round trips", "crossbar", "rate", "bulk"
TRIP, TRIP_SHARE, CPU = "round trip, p50", "round trip, {}", "CPU per round trip, one side"
REQUESTS, STREAM, TCP_STREAM = (
    "4-word requests with replies",
    "1 MiB messages in 1500-byte frames",
    "bytes, unlimited rate",
)
PAIR = "pair"
_SHARES = ("min", "p90", "p99")

Progress = Callable[[str], None]


class Nodes:
    """Client of the process that runs the nodes; `close` ends the process."""

    def __init__(self) -> None:
        home = Path(__file__).parents[1]
        os.environ["PYTHONPATH"] = os.pathsep.join([str(home.parent), str(home.parents[1])])
        self._process = LineProcess("the node process", [sys.executable, "-m", "benchmarks.am2.node_process"])
        self.addresses = {name: NodeAddress(**address) for name, address in self._ask("addresses").items()}

    def run(self, cluster: str, kind: str, count: int, spin: bool) -> dict[str, Any]:
        answer = self._ask("run", cluster=cluster, kind=kind, count=count, spin=spin, cpus=[SENDER, RECEIVER])
        if answer["invalid"]:
            raise ContenderError(f"{kind}: {answer['invalid']}")
        return answer

    def close(self) -> None:
        self._process.close()

    def _ask(self, command: str, **arguments: object) -> dict[str, Any]:
        answer = self._process.ask(json.dumps({"command": command, **arguments}))
        if "error" in answer:
            raise ContenderError(f"{command}: {answer['error']}")
        return answer


def trips(nodes: Nodes, traffic: Traffic, repeat: int, count: int, progress: Progress) -> Iterator[Row]:
    """Measure in turn requests of four words with replies, 4-byte messages of EMP, and 8 bytes of TCP, all spinning,
    between the same interfaces."""
    ends = nodes.addresses["n1"], nodes.addresses["n2"]
    resent: dict[str, int] = {AM2: 0, EMP: 0}

    def run_nodes(contender: str, kind: str) -> dict[str, float]:
        run = nodes.run(PAIR, kind, count, True)
        resent[contender] += run["resent"]
        trip: dict[str, float] = run["result"]
        return trip

    def tcp() -> dict[str, float]:
        trip = traffic.round_trips(*ends, count, spin=True)
        return {**trip, "cpu": trip["cpu"] * 1e9 / count}

    contenders = {AM2: lambda: run_nodes(AM2, "am trip"), EMP: lambda: run_nodes(EMP, "emp trip"), TCP: tcp}
    settings = {"cluster": "two nodes, one pair of interfaces", "bytes": {AM2: 16, EMP: 4, TCP: 8}, "count": count}
    settings |= {"waiting": "spinning", "processors": [SENDER, RECEIVER], "resent": resent}
    yield from _interleaved(TRIPS, contenders, repeat, progress, settings)


def crossbar(nodes: Nodes, repeat: int, count: int, progress: Progress) -> Iterator[Row]:
    """Measure the requests through a Myrinet crossbar in the relay, asleep between frames: there are more processes
    than processors."""
    contenders = {AM2: lambda: dict[str, float](nodes.run(CROSSBAR, "am trip", count, False)["result"])}
    settings = {"cluster": "two nodes at a crossbar in the relay", "count": count, "waiting": "sleeping"}
    yield from _interleaved(CROSSBAR, contenders, repeat, progress, settings)


def rate(nodes: Nodes, repeat: int, count: int, progress: Progress) -> Iterator[Row]:
    """Measure requests of four words, four in flight."""
    samples, resent = _one_way(nodes, "am rate", RATE, repeat, count, progress)
    settings = {"cluster": "two nodes, one pair of interfaces", "count": count, "resent": resent}
    yield Row(RATE, AM2, REQUESTS, 2, "/s", samples, settings)


def bulk(nodes: Nodes, traffic: Traffic, repeat: int, count: int, seconds: float, progress: Progress) -> Iterator[Row]:
    """Measure bulk messages, and TCP between the same interfaces."""
    samples, resent = _one_way(nodes, "am bulk", BULK, repeat, count, progress)
    settings = {"cluster": "two nodes, one pair of interfaces", "messages": count, "resent": resent}
    yield Row(BULK, AM2, STREAM, 2, "bit/s", samples, settings)
    ends = nodes.addresses["n1"], nodes.addresses["n2"]
    moved = tuple(float(traffic.tcp(*ends, seconds)["bits"]) for _ in range(repeat))
    yield Row(BULK, TCP, TCP_STREAM, 2, "bit/s", moved, {"cluster": settings["cluster"], "seconds": seconds})


def _one_way(
    nodes: Nodes, kind: str, what: str, repeat: int, count: int, progress: Progress
) -> tuple[tuple[float, ...], int]:
    """Return samples, and the number of retransmitted packets."""
    samples, resent = [], 0
    for turn in range(repeat + 1):
        progress(f"{what}: {f'{turn} of {repeat}' if turn else 'warm-up'}")
        run = nodes.run(PAIR, kind, count, True)
        if turn:
            samples.append(float(run["result"]))
            resent += run["resent"]
    return tuple(samples), resent


def _interleaved(
    subject: str,
    contenders: Mapping[str, Callable[[], dict[str, float]]],
    repeat: int,
    progress: Progress,
    settings: dict[str, Any],
) -> Iterator[Row]:
    samples_by_key: dict[tuple[str, str], list[float]] = {}
    for turn in range(repeat + 1):
        progress(f"{subject}: {f'{turn} of {repeat}' if turn else 'warm-up'}")
        for contender, measure in contenders.items():
            trip = measure()
            if turn:
                names = {TRIP: "p50", CPU: "cpu"} | {TRIP_SHARE.format(share): share for share in _SHARES}
                for name, key in names.items():
                    samples_by_key.setdefault((contender, name), []).append(trip[key] / 1e9)
    settings = {**settings, "interleaved": list(contenders)}
    for (contender, name), samples in samples_by_key.items():
        yield Row(subject, contender, name, 2, "s", tuple(samples), settings)

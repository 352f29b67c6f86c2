"""Measurements of EMP, packet sockets and TCP in turn, and their rows."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness.contenders import ContenderError, LineProcess
from benchmarks.harness.host_programs import PING
from benchmarks.harness.processors import RECEIVER, SENDER
from benchmarks.harness.rows import Row
from benchmarks.harness.traffic import NodeAddress, Traffic
from testbed.runtime.nodes.patience import Patience

EMP, RAW, TCP = "EMP, inline", "packet sockets, Python", "kernel TCP, C"
AT_ONCE = "EMP, inline, sleeping at once"
RAW_POLLING_FIRST, TCP_POLLING_FIRST = f"{RAW}, looking first", f"{TCP}, looking first"
TRIP, TRIP_SHARE, CPU = "round trip, p50", "round trip, {}", "CPU per round trip, one side"
STREAM = "1 MiB messages in 1500-byte frames"
BEGIN, END, PRIVATE, PROPORTIONAL = "all listen", "all ended", "memory of one, private", "memory of one, its share"
COUNTED, WRONG = "4-byte messages, 64 in flight", "of those, lost or out of order"
SPINNING, BLOCKING = "spinning", "blocking"
_SHARES = ("min", "p90", "p99", "p99.9")
_FRAMES_OF_A_MESSAGE = 750  # frames of a packet-socket stream with as many bytes

Progress = Callable[[str], None]


class Nodes:
    """Client of the process that runs the nodes; `close` ends the process."""

    def __init__(self) -> None:
        home = Path(__file__).parents[1]
        os.environ["PYTHONPATH"] = os.pathsep.join([str(home.parent), str(home.parents[1])])
        self._process = LineProcess("the product", [sys.executable, "-m", "benchmarks.emp.node_process"])
        self.addresses = {name: NodeAddress(**address) for name, address in self._ask("addresses").items()}

    def run(self, kind: str, count: int, spin: bool, poll: int = 0) -> dict[str, Any]:
        answer = self._ask("run", kind=kind, count=count, spin=spin, poll=poll, cpus=[SENDER, RECEIVER])
        if answer["invalid"]:
            raise ContenderError(f"{kind}: {answer['invalid']}")
        return answer

    def many(self, nodes: int) -> dict[str, Any]:
        return self._ask("many", nodes=nodes)

    def close(self) -> None:
        self._process.close()

    def _ask(self, command: str, **arguments: object) -> dict[str, Any]:
        answer = self._process.ask(json.dumps({"command": command, **arguments}))
        if "error" in answer:
            raise ContenderError(f"{command}: {answer['error']}")
        return answer


def trips(nodes: Nodes, traffic: Traffic, waiting: str, repeat: int, count: int, progress: Progress) -> Iterator[Row]:
    """Measure in turn round trips of 4 bytes of EMP, of an equal frame between packet sockets, and of 8 bytes of TCP.

    When blocking, EMP polls before it sleeps (`Patience`), and the others sleep at once; each is also measured with the
    other strategy.
    """
    spin, poll = waiting == SPINNING, Patience.SPIN
    samples_by_key: dict[tuple[str, str], list[float]] = {}
    ends = nodes.addresses["n1"], nodes.addresses["n2"]
    resent: dict[str, int] = {}

    def agents(contender: str, kind: str, poll: int) -> dict[str, float]:
        run = nodes.run(kind, count, spin, poll)
        resent[contender] = resent.get(contender, 0) + run["resent"]
        trip: dict[str, float] = run["results"][PING]
        return trip

    def tcp(poll: int) -> dict[str, float]:
        trip = traffic.round_trips(*ends, count, spin=spin, poll=poll)
        return {**trip, "cpu": trip["cpu"] * 1e9 / count}

    contenders: dict[str, Callable[[], dict[str, float]]] = {
        EMP: lambda: agents(EMP, "emp trip", poll),
        RAW: lambda: agents(RAW, "raw trip", 0),
        TCP: lambda: tcp(0),
    }
    if not spin:
        contenders |= {
            AT_ONCE: lambda: agents(AT_ONCE, "emp trip", 0),
            RAW_POLLING_FIRST: lambda: agents(RAW_POLLING_FIRST, "raw trip", poll),
            TCP_POLLING_FIRST: lambda: tcp(poll),
        }
    for turn in range(repeat + 1):
        progress(f"round trips, {waiting}: {f'{turn} of {repeat}' if turn else 'warm-up'}")
        for contender, measure in contenders.items():
            trip = measure()
            if not turn:
                resent.clear()
                continue
            samples_by_key.setdefault((contender, TRIP), []).append(trip["p50"] / 1e9)
            samples_by_key.setdefault((contender, CPU), []).append(trip["cpu"] / 1e9)
            for share in _SHARES:
                samples_by_key.setdefault((contender, TRIP_SHARE.format(share)), []).append(trip[share] / 1e9)
    settings = {
        "cluster": "two nodes, one pair of interfaces", "bytes": {EMP: 4, RAW: 4, TCP: 8}, "count": count,
        "waiting": waiting, "look": 0 if spin else poll, "processors": [SENDER, RECEIVER], "resent": resent,
        "interleaved": list(contenders),
    }  # fmt: skip
    for (contender, name), samples in samples_by_key.items():
        yield Row(waiting, contender, name, 2, "s", tuple(samples), settings)


def streams(nodes: Nodes, repeat: int, messages: int, progress: Progress) -> Iterator[Row]:
    """Measure one-way streams of EMP and raw sockets in turn, both spinning."""
    samples_by_key: dict[str, list[float]] = {EMP: [], RAW: []}
    resent, lost, frames = 0, 0.0, messages * _FRAMES_OF_A_MESSAGE
    for turn in range(repeat + 1):
        progress(f"streams: {f'{turn} of {repeat}' if turn else 'warm-up'}")
        emp = nodes.run("emp stream", messages, True)
        raw = nodes.run("raw stream", frames, True)
        if turn:
            resent += emp["resent"]
            lost += raw["results"]["n2"]["lost"]
            samples_by_key[EMP].append(emp["results"]["n1"])
            samples_by_key[RAW].append(raw["results"]["n2"]["bits"])
    settings = {
        "cluster": "two nodes, one pair of interfaces", "messages": messages, "frames": {RAW: frames},
        "processors": [SENDER, RECEIVER], "resent": {EMP: resent}, "lost": {RAW: lost}, "interleaved": [EMP, RAW],
    }  # fmt: skip
    for contender, samples in samples_by_key.items():
        yield Row("stream", contender, STREAM, 2, "bit/s", tuple(samples), settings)


def measure_messages(nodes: Nodes, messages: int, progress: Progress) -> Iterator[Row]:
    """Measure numbered messages, so that lost, duplicated and reordered ones are counted."""
    progress(f"{messages} numbered messages")
    run = nodes.run("emp count", messages, True)
    settings = {"cluster": "two nodes, one pair of interfaces", "messages": messages, "resent": run["resent"]}
    for measure, node, unit in ((COUNTED, "n1", "/s"), (WRONG, "n2", "")):
        yield Row("count", EMP, measure, 2, unit, (float(run["results"][node]),), settings)


def many(nodes: Nodes, count: int, repeat: int, progress: Progress) -> Iterator[Row]:
    """Measure the node processes of a star, all at once."""
    samples_by_key: dict[tuple[str, str], list[float]] = {}
    for turn in range(repeat + 1):
        progress(f"{count} node processes: {f'{turn} of {repeat}' if turn else 'warm-up'}")
        run = nodes.many(count)
        if turn:
            samples_by_key.setdefault((BEGIN, "s"), []).append(run["begin"])
            samples_by_key.setdefault((END, "s"), []).append(run["end"])
            samples_by_key.setdefault((PRIVATE, "B"), []).extend(map(float, run["private"]))
            samples_by_key.setdefault((PROPORTIONAL, "B"), []).extend(map(float, run["proportional"]))
    for (measure, unit), samples in samples_by_key.items():
        yield Row("nodes", EMP, measure, count, unit, tuple(samples), {"cluster": "star", "program": "waits"})

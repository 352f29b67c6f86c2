"""When messages were delivered, how long each took and how long it was: from the histories of a run's programs.

MPI keeps the order of messages of one sender under one context and tag: the n-th that was sent to a receiver is what the
n-th receive of these was given, in the order in which receives began.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy

from testbed.observe.report.columns import Numbers, read_chunks

_Way = tuple[int, int, int, int]  # sender, receiver, context, tag


@dataclass(frozen=True, slots=True)
class Deliveries:
    """Of messages, in the order in which they were delivered. at: the clock then, ns. took: since the send began, ns. moved:
    bytes."""

    at: Numbers
    took: Numbers
    moved: Numbers


def read_deliveries(history: Path, names: Sequence[str]) -> Deliveries | None:
    """Of all nodes' histories in a folder; None where there is none. names: by rank."""
    if not history.is_dir():
        return None
    sent: dict[_Way, list[tuple[int, int]]] = {}
    received: dict[_Way, list[tuple[int, int, int, int]]] = {}
    for rank, name in enumerate(names):
        _read_node(history / f"{name}.jsonl", rank, sent, received)
    at, took, moved = array("d"), array("d"), array("d")
    for way, arrivals in received.items():
        arrivals.sort()
        for (begun, size), (_, _, clock, came) in zip(sent.get(way, ()), arrivals, strict=False):
            if size == came and clock >= begun:  # else something was lost before it, and who answers whom is not known
                at.append(clock)
                took.append(clock - begun)
                moved.append(size)
    if not at:
        return None
    order = numpy.argsort(numpy.frombuffer(at), kind="stable")
    return Deliveries(numpy.frombuffer(at)[order], numpy.frombuffer(took)[order], numpy.frombuffer(moved)[order])


def _read_node(
    file: Path,
    rank: int,
    sent: dict[_Way, list[tuple[int, int]]],
    received: dict[_Way, list[tuple[int, int, int, int]]],
) -> None:
    life = last = 0  # a program that was started again numbers its transfers from 1 again
    for events in read_chunks(file, without=b'"what": "sent"'):
        for event in events:
            try:
                what, number = event["what"], event["n"]
                if what == "received":
                    way = event["peer"], rank, event["context"], event["tag"]
                    received.setdefault(way, []).append((life, number, event["clock_ns"], event["bytes"]))
                    continue
                if what == "send":
                    way = rank, event["peer"], event["context"], event["tag"]
                    sent.setdefault(way, []).append((event["clock_ns"], event["bytes"]))
                elif what != "receive":
                    continue
            except KeyError:  # no event of a history
                continue
            if number <= last:
                life += 1
            last = number

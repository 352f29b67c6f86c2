"""Deliveries of messages, with their times and sizes, from the histories of a run's programs.

MPI keeps the order of messages of one sender under one context and tag: the n-th message sent to a receiver matches its
n-th such receive, in the order in which receives began.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy

from testbed.observe.report.columns import Numbers, read_chunks
from testbed.runtime.journal import broken_line, read_numbered
from testbed.workloads.history import check_event

_Way = tuple[int, int, int, int]  # sender, receiver, context, tag


@dataclass(frozen=True, slots=True)
class Deliveries:
    """Delivered messages, in order of delivery. at: the clock then, ns. took: since the send began, ns. moved:
    bytes."""

    at: Numbers
    took: Numbers
    moved: Numbers


def read_deliveries(history: Path, names: Sequence[str]) -> Deliveries | None:
    """Read the histories of all nodes in a folder; None where there is none. names: by rank. Raises BrokenFileError
    naming the line that is no event of a history."""
    if not history.is_dir():
        return None
    try:
        return _read(history, names)
    except (KeyError, TypeError, OverflowError):  # checked only now: checking a million events takes long
        for name in names:
            _check_file(history / f"{name}.jsonl")
        raise


def _check_file(file: Path) -> None:
    for number, event in read_numbered(file):
        try:
            check_event(event)
        except ValueError as error:
            raise broken_line(file, number, error) from error


def _read(history: Path, names: Sequence[str]) -> Deliveries | None:
    sent: dict[_Way, list[tuple[int, int]]] = {}
    received: dict[_Way, list[tuple[int, int, int, int]]] = {}
    for rank, name in enumerate(names):
        _read_node(history / f"{name}.jsonl", rank, sent, received)
    at, took, moved = array("d"), array("d"), array("d")
    for way, arrivals in received.items():
        arrivals.sort()
        for (begun, size), (_, _, clock, came) in zip(sent.get(way, ()), arrivals, strict=False):
            if size == came and clock >= begun:  # else an earlier message was lost, and the match is unknown
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
    life = last = 0  # a restarted program numbers its transfers from 1
    for events in read_chunks(file, without=b'"what": "sent"'):
        for event in events:
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
            if number <= last:
                life += 1
            last = number

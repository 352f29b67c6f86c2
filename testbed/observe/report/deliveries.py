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

_Stream = tuple[int, int, int, int]  # sender, receiver, context, tag


@dataclass(frozen=True, slots=True)
class Deliveries:
    """Delivered messages, in order of delivery. at: clock at the delivery, ns. took: since the send began, ns. moved:
    bytes."""

    at: Numbers
    took: Numbers
    bytes_moved: Numbers


def read_deliveries(history: Path, names: Sequence[str]) -> Deliveries | None:
    """Read the histories of all nodes in a folder; None if there are no deliveries. names: by rank. Raises BrokenFileError
    for a line that is not an event of a history."""
    if not history.is_dir():
        return None
    try:
        return _read(history, names)
    except (KeyError, TypeError, OverflowError):  # checked only after an error: checking a million events takes long
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
    sent: dict[_Stream, list[tuple[int, int]]] = {}
    received: dict[_Stream, list[tuple[int, int, int, int]]] = {}
    for rank, name in enumerate(names):
        _read_node(history / f"{name}.jsonl", rank, sent, received)
    at, took, bytes_moved = array("d"), array("d"), array("d")
    for stream, arrivals in received.items():
        arrivals.sort()
        for (start_time, size), (_, _, clock, received_size) in zip(sent.get(stream, ()), arrivals, strict=False):
            if (
                size == received_size and clock >= start_time
            ):  # else an earlier message was lost, and the match is unknown
                at.append(clock)
                took.append(clock - start_time)
                bytes_moved.append(size)
    if not at:
        return None
    order = numpy.argsort(numpy.frombuffer(at), kind="stable")
    return Deliveries(numpy.frombuffer(at)[order], numpy.frombuffer(took)[order], numpy.frombuffer(bytes_moved)[order])


def _read_node(
    file: Path,
    rank: int,
    sent: dict[_Stream, list[tuple[int, int]]],
    received: dict[_Stream, list[tuple[int, int, int, int]]],
) -> None:
    incarnation = last = 0  # incarnation and last number: a restarted program numbers its transfers from 1
    for events in read_chunks(file, without=b'"what": "sent"'):
        for event in events:
            kind, number = event["what"], event["n"]
            if kind == "received":
                stream = event["peer"], rank, event["context"], event["tag"]
                received.setdefault(stream, []).append((incarnation, number, event["clock_ns"], event["bytes"]))
                continue
            if kind == "send":
                stream = rank, event["peer"], event["context"], event["tag"]
                sent.setdefault(stream, []).append((event["clock_ns"], event["bytes"]))
            elif kind != "receive":
                continue
            if number <= last:
                incarnation += 1
            last = number

"""Deliveries of messages, with their times and sizes, from the histories of a run's programs.

MPI keeps the order of messages of one sender under one context and tag: the n-th message sent to a receiver matches the
receiver's n-th such receive, in the order in which receives began.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import polars
from polars import Int64, String, col

from testbed.kernel.filesystem import open_regular
from testbed.observe.report.columns import Numbers
from testbed.runtime.journal import broken_line, read_numbered
from testbed.workloads.history import check_event

_EVENT_SCHEMA: Final = {
    "clock_ns": Int64, "what": String, "n": Int64, "peer": Int64, "context": Int64, "tag": Int64, "bytes": Int64,
}  # fmt: skip
_IS_TRANSFER: Final = col("what").is_in(["send", "receive", "received"])
_STREAM: Final = ("sender", "receiver", "context", "tag")


@dataclass(frozen=True, slots=True)
class Deliveries:
    """Delivered messages, in order of delivery. at: clock at each delivery, ns. took: time from the beginning of the send to
    the delivery, ns. bytes_moved: sizes of the messages."""

    at: Numbers
    took: Numbers
    bytes_moved: Numbers


def read_deliveries(history: Path, names: Sequence[str]) -> Deliveries | None:
    """Read the histories of all nodes in a folder; None if there are no deliveries. names: by rank. Raises BrokenFileError
    for a line that is not an event of a history."""
    if not names or not history.is_dir():
        return None
    nodes = [_transfers(history / f"{name}.jsonl", rank) for rank, name in enumerate(names)]
    sent, received = (polars.concat(frames) for frames in zip(*nodes, strict=True))
    number = polars.int_range(polars.len()).over(_STREAM)
    delivered = (
        received.sort("incarnation", "n", maintain_order=True).with_columns(number=number)
        .join(sent.with_columns(number=number), on=[*_STREAM, "number"])
        # If the sizes differ, an earlier message was lost, and the match is unknown.
        .filter(col("bytes") == col("bytes_sent"), col("clock_ns") >= col("start"))
        .select(at="clock_ns", took=col("clock_ns") - col("start"), moved="bytes")
        .sort("at").cast(polars.Float64)
    )  # fmt: skip
    return Deliveries(*(column.to_numpy() for column in delivered)) if delivered.height else None


def _transfers(file: Path, rank: int) -> tuple[polars.DataFrame, polars.DataFrame]:
    """Read the messages that a node has sent and received."""
    is_begin = col("what").is_in(["send", "receive"])
    previous = polars.when(is_begin).then(col("n")).forward_fill().shift(1)
    # A restarted program numbers its transfers from 1.
    events = _read_events(file).with_columns(incarnation=(is_begin & (col("n") <= previous)).fill_null(False).cum_sum())
    own_rank = polars.lit(rank, Int64)
    sent = events.filter(what="send").select(
        "context", "tag", sender=own_rank, receiver="peer", start="clock_ns", bytes_sent="bytes"
    )
    received = events.filter(what="received").select(
        "context", "tag", "incarnation", "n", "clock_ns", "bytes", sender="peer", receiver=own_rank
    )
    return sent, received


def _read_events(file: Path) -> polars.DataFrame:
    """Read a history. If polars cannot parse it, each event is checked, which is slow but finds the broken line."""
    try:
        with open_regular(file) as stream:
            lines = stream.read()
        # A killed process may leave an incomplete last line.
        events = polars.read_ndjson(lines[: lines.rfind(b"\n") + 1], schema=_EVENT_SCHEMA)
        if not any(column.has_nulls() for column in events.filter(_IS_TRANSFER)):
            return events
    except (OSError, polars.exceptions.PolarsError):
        pass
    return polars.DataFrame(
        [{key: event.get(key) for key in _EVENT_SCHEMA} for event in _checked_events(file)], schema=_EVENT_SCHEMA
    )


def _checked_events(file: Path) -> Iterator[Mapping[str, Any]]:
    for number, event in read_numbered(file):
        try:
            check_event(event)
        except ValueError as error:
            raise broken_line(file, number, error) from error
        yield event

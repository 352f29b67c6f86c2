"""The event log of a cluster, in the directory of its state: one JSON object per line.

    {"time": nanoseconds since the epoch, "clock": monotonic nanoseconds, "event": "inject", ...}

Processes append independently. Each line is written in one call, so that lines do not mix.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from testbed.errors import errors_naming, reason_of
from testbed.json_text import INTEGER_LIMIT
from testbed.kernel.changes import announce
from testbed.runtime import journal

FILE: Final = "events.jsonl"


def record(directory: Path, event: str, **attributes: object) -> None:
    """Append an event to the log in a cluster's directory; do nothing if the directory is gone.

    Raises OSError, also if the log is a FIFO without a reader: opening it without O_NONBLOCK would block.
    """
    line = json.dumps({"time": time.time_ns(), "clock": time.monotonic_ns(), "event": event, **attributes})
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK
        descriptor = os.open(directory / FILE, flags, 0o600)
    except FileNotFoundError:
        return
    try:
        announce(f"create {directory / FILE}")
        with errors_naming(directory / FILE):
            _append(descriptor, line.encode() + b"\n")
        announce(f"write {directory / FILE}")
    finally:
        os.close(descriptor)


def record_if_possible(directory: Path, event: str, **attributes: object) -> None:
    """Record an event as `record`; omit it if the log cannot be written, for example on a full disk. For processes that
    have to continue without the event, such as supervisor and relay. Before the next event that it can record, the process
    records "events omitted", with their number and the reason why the first one was omitted."""
    key = os.getpid(), directory
    try:
        if key in _omitted:
            count, reason = _omitted[key]
            record(directory, "events omitted", pid=os.getpid(), count=count, reason=reason)
            del _omitted[key]
        record(directory, event, **attributes)
    except OSError as error:
        count, reason = _omitted.get(key, (0, reason_of(error)))
        _omitted[key] = count + 1, reason


_omitted: Final[dict[tuple[int, Path], tuple[int, str]]] = {}
"""Process and directory -> number of events omitted since the last one recorded, and the reason for the first one."""


def _append(descriptor: int, line: bytes) -> None:
    """Append a line, or nothing. Raises OSError."""
    written = os.write(descriptor, line)
    if written == len(line):
        return
    try:
        os.write(descriptor, line[written:])  # raises with the reason
    except OSError:
        # Without its beginning: the next line would be appended to it, and both would be invalid.
        end = os.lseek(descriptor, 0, os.SEEK_CUR)
        if os.fstat(descriptor).st_size == end:  # no other process has appended since
            os.ftruncate(descriptor, end - written)
        raise


def read(directory: Path) -> Iterator[Mapping[str, Any]]:
    """Read all events in the order in which they were written; skip invalid lines."""
    return (event for event in journal.read(directory / FILE) if is_event(event))


def is_event(document: Mapping[str, Any]) -> bool:
    """Whether a document has the fields of every event. In a damaged log, a line can contain any JSON object."""
    return (
        type(document.get("event")) is str
        and type(document.get("time")) is int
        and type(document.get("clock")) is int
        and abs(document["time"]) < INTEGER_LIMIT
    )

"""The events of a cluster: what was done to it and what happened to it, one JSON object per line, beside its state.

    {"time": nanoseconds of the epoch, "clock": monotonic nanoseconds, "event": "inject", ...}

Every process appends for itself; a line is written in one call, and lines do not mix.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from testbed.kernel.changes import announce

FILE: Final = "events.jsonl"


def record(directory: Path, event: str, **facts: object) -> None:
    """Append an event to those of the cluster whose directory this is; nothing where the cluster is gone."""
    line = json.dumps({"time": time.time_ns(), "clock": time.monotonic_ns(), "event": event, **facts})
    try:
        descriptor = os.open(directory / FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        return
    try:
        announce(f"create {directory / FILE}")
        os.write(descriptor, line.encode() + b"\n")
        announce(f"write {directory / FILE}")
    finally:
        os.close(descriptor)


def read(directory: Path) -> Iterator[Mapping[str, Any]]:
    """The events until now, in the order in which they were written."""
    try:
        text = (directory / FILE).read_text()
    except FileNotFoundError:
        return
    for line in text.splitlines():
        yield json.loads(line)

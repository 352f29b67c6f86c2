"""What a run is at: on standard error, in a terminal, a line that changes every second once it has taken more than one."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

_SILENT = 1.0  # s


@contextmanager
def progress(place: Path, mode: str) -> Iterator[Callable[[str], None] | None]:
    """place: the run's folder, whose rows are counted. Gives what is to be told in a phrase what the run is at, None where
    nobody looks."""
    stream = sys.stderr  # while programs are simulated it leads to their logs
    if not stream.isatty():
        yield None
        return
    begun = time.monotonic()
    phase = "beginning"
    shown = False

    def show(_number: int = 0, _frame: FrameType | None = None) -> None:
        nonlocal shown
        try:
            rows = (place / "rows.jsonl").read_bytes().count(b"\n")
        except OSError:
            rows = 0
        stream.write(f"\r{phase}: {time.monotonic() - begun:.0f} s, {rows} row{'s' if rows != 1 else ''}\x1b[K")
        stream.flush()
        shown = True

    def follow(what: str) -> None:
        nonlocal phase
        phase = what or phase
        if time.monotonic() - begun > _SILENT:
            show()

    ticking = mode != "sim"  # the simulation has the timer for itself, and tells by itself
    if ticking:
        signal.signal(signal.SIGALRM, show)
        signal.setitimer(signal.ITIMER_REAL, _SILENT, _SILENT)
    try:
        yield follow
    finally:
        if ticking:
            signal.setitimer(signal.ITIMER_REAL, 0)
        if shown:
            stream.write("\r\x1b[K")

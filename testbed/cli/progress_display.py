"""Progress of a command on standard error, if it takes more than a second."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from testbed.cli.consoles import echo

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

_INTERVAL = 1.0  # s before progress is shown, and between two lines


@contextmanager
def progress(folder: Path, mode: str) -> Iterator[Callable[[str], None] | None]:
    """Context manager: show a run's progress in a terminal, as a line that is rewritten every second.

    folder: the run's folder, whose rows are counted. Yields a function that sets the current phase; None without a terminal.
    """
    stream = sys.stderr  # a simulation redirects sys.stderr to logs
    if not stream.isatty():
        yield None
        return
    started = time.monotonic()
    phase = "starting"
    shown = False

    def show(_number: int = 0, _frame: FrameType | None = None) -> None:
        nonlocal shown
        try:
            rows = (folder / "rows.jsonl").read_bytes().count(b"\n")
        except OSError:
            rows = 0
        stream.write(f"\r{phase}: {time.monotonic() - started:.0f} s, {rows} row{'s' if rows != 1 else ''}\x1b[K")
        stream.flush()
        shown = True

    def set_phase(name: str) -> None:
        nonlocal phase
        phase = name or phase
        if time.monotonic() - started > _INTERVAL:
            show()

    has_timer = mode != "sim"  # a simulation uses SIGALRM, and calls `set_phase` regularly
    if has_timer:
        signal.signal(signal.SIGALRM, show)
        signal.setitimer(signal.ITIMER_REAL, _INTERVAL, _INTERVAL)
    try:
        yield set_phase
    finally:
        if has_timer:
            signal.setitimer(signal.ITIMER_REAL, 0)
        if shown:
            stream.write("\r\x1b[K")


@contextmanager
def step_progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Context manager: after a second, show the number of steps done and the remaining time, as a bar in a terminal,
    otherwise as a line every second. Until the first step is reported, only `what` is shown.

    Yields a function of the numbers of steps done and of all steps. Steps done at its first call belong to an earlier
    command, and do not count for the remaining time.
    """
    started = reported = time.monotonic()
    done_before: int | None = None
    with ExitStack() as stack:
        bars: list[Bar] = []

        def report_waiting(_number: int, _frame: FrameType | None) -> None:
            """Report a command that waits: for another command's lock, or for a program to end."""
            if not bars:
                echo(f"{what} ...", err=True)

        stack.callback(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, report_waiting))
        stack.callback(signal.setitimer, signal.ITIMER_REAL, *signal.setitimer(signal.ITIMER_REAL, _INTERVAL))

        def show(done: int, total: int) -> None:
            nonlocal reported, done_before
            if done_before is None:
                done_before = done
            now = time.monotonic()
            if now - started < _INTERVAL:
                return
            if not sys.stderr.isatty():
                if now - reported >= _INTERVAL:
                    remaining = _remaining(now - started, done - done_before, total - done)
                    echo(f"{what}: {done} of {total} done{remaining}", err=True)
                    reported = now
                return
            if not bars:
                from rich.console import Console
                from rich.progress import Progress as RichProgress

                bars.append(stack.enter_context(RichProgress(console=Console(stderr=True), transient=True)))
                bars[0].add_task(what, total=total, completed=done_before)
            bars[0].update(bars[0].task_ids[0], completed=done)

        yield show


def _remaining(seconds: float, done: int, left: int) -> str:
    """Return the remaining time as text. seconds: duration of the steps done."""
    return f", about {timedelta(seconds=round(seconds / done * left))} left" if done and left else ""

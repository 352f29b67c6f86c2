"""Runs in a directory, with the progress of those that are running, and their reports.

A run's folder is reread only until the run has ended.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from heapq import heappush, heappushpop
from itertools import islice
from pathlib import Path
from typing import Any, Final

from testbed.cli.consoles import format_age, printable
from testbed.cli.screen.key_commands import own_command, summarize
from testbed.cli.web.page_parts import JSON
from testbed.errors import TestbedError
from testbed.kernel.processes import Identity
from testbed.observe.format.event_format import Tail
from testbed.observe.recorded import EVENTS, RESULT, ROWS, RUN, RecordedRun, read_run

_MAX_SHOWN: Final = 30


class RunList:
    """Runs whose folders are in a directory, which need not exist yet."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ended: dict[str, JSON] = {}
        self._running: dict[str, _Progress] = {}
        self._unreadable: set[str] = set()

    def close(self) -> None:
        for progress in self._running.values():
            progress.close()

    def folder(self, name: str) -> Path | None:
        """Return the folder of a run that `refresh` has returned; None for any other name."""
        return self._directory / name if name in self._ended or name in self._running else None

    def refresh(self) -> JSON:
        """Read the folders of new and running runs, and return the runs, the latest first."""
        names = self._latest()
        self._remove_others(names)
        for name in names - self._ended.keys() - self._running.keys() - self._unreadable:
            self._running[name] = _Progress(name, self._directory / name)
        shown = dict(self._ended)
        for name, progress in list(self._running.items()):
            try:
                shown[name] = progress.sample()
            except TestbedError:  # damaged, or of a newer version: `testbed runs` reports the reason
                self._unreadable.add(name)
            if name in self._unreadable or progress.has_ended:
                self._running.pop(name).close()
            if progress.has_ended:
                self._ended[name] = shown[name]
        return sorted(shown.values(), key=_start_time, reverse=True)

    def _latest(self) -> set[str]:
        """Return the names of the most recently changed runs, at most `_MAX_SHOWN`; a run in a series is "SERIES/RUN".

        A folder that changed before all of these is not opened: a series changes whenever a run is added to it.
        """
        latest: list[tuple[int, str]] = []  # a heap of times and names, the earliest time first
        for changed, name in _subfolders(self._directory):
            if len(latest) == _MAX_SHOWN and changed < latest[0][0]:
                break
            if (self._directory / name / RUN).exists():
                runs = [(changed, name)]
            else:
                runs = [(time, f"{name}/{run}") for time, run in _runs_of_series(self._directory / name)]
            for entry in runs:
                if len(latest) < _MAX_SHOWN:
                    heappush(latest, entry)
                else:
                    heappushpop(latest, entry)
        return {name for _, name in latest}

    def _remove_others(self, names: set[str]) -> None:
        """Remove all other runs from the lists."""
        for name in self._running.keys() - names:
            self._running.pop(name).close()
        for name in self._ended.keys() - names:
            del self._ended[name]
        self._unreadable &= names


def _runs_of_series(directory: Path) -> Iterator[tuple[int, str]]:
    """Return the time of the last change and the name of a series' most recently changed runs, at most `_MAX_SHOWN`."""
    runs = ((changed, name) for changed, name in _subfolders(directory) if (directory / name / RUN).exists())
    return islice(runs, _MAX_SHOWN)


def _subfolders(directory: Path) -> list[tuple[int, str]]:
    """Return the time of the last change and the name of each subfolder, the most recently changed first."""
    changed = []
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(directory) as entries:
        for entry in entries:
            with suppress(OSError):  # removed meanwhile
                if entry.is_dir():
                    changed.append((entry.stat().st_mtime_ns, entry.name))
    return sorted(changed, reverse=True)


class _Progress:
    """Progress of a run until it has ended. name: name of the run in the list."""

    def __init__(self, name: str, folder: Path) -> None:
        self._name = name
        self._folder = folder
        self._events = Tail(folder / EVENTS)
        self._repetition = 0
        self._rows = _LineCount(folder / ROWS)
        self.has_ended = False

    def close(self) -> None:
        self._events.close()

    def sample(self) -> JSON:
        """Describe the run. Raises TestbedError for a folder that cannot be read."""
        run = read_run(self._folder)
        numbers = [event.get("number") for event in self._events.read() if event.get("event") == "repetition begins"]
        self._repetition = max([self._repetition, *(number for number in numbers if isinstance(number, int))])
        status = run.status if run.result else _status_without_result(run.parameters)
        self.has_ended = status != "running"
        return {
            "name": printable(self._name),
            "began": float(run.parameters.get("began", 0)),
            "description": printable(
                " ".join(str(run.parameters.get(key) or "") for key in ("cluster", "workload", "protocol", "mode"))
            ),
            "status": status,
            "grade": str((run.result.get("verdict") or {}).get("grade", "")),
            "error": printable(str(run.result.get("error", ""))),
            "progress": "" if self.has_ended else self._progress_text(run),
            "fraction_done": None if self.has_ended else self._fraction_done(run),
        }

    def _progress_text(self, run: RecordedRun) -> str:
        rows = self._rows.sample()
        seconds = format_age(time.time() - float(run.parameters.get("began", time.time())))
        repeat = int(run.parameters.get("repeat", 1))
        repetition = f"repetition {max(1, self._repetition)} of {repeat}, " if repeat > 1 else ""
        return f"{repetition}{rows:,} row{'s' if rows != 1 else ''}, {seconds}"

    def _fraction_done(self, run: RecordedRun) -> float | None:
        """Return the fraction of the repetitions that have ended; None for a single repetition."""
        repeat = int(run.parameters.get("repeat", 1))
        return max(0, self._repetition - 1) / repeat if repeat > 1 else None


def _status_without_result(parameters: Mapping[str, Any]) -> str:
    """Return "running" or "killed"; "unfinished" if it cannot be determined here."""
    try:
        process = Identity.parse(str(parameters.get("process", "")))
    except ValueError:  # written by an older version
        return "unfinished"
    return "running" if process.is_alive else "killed" if process.is_local else "unfinished"


class _LineCount:
    """Incremental line counter of a growing file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0  # bytes
        self._count = 0

    def sample(self) -> int:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                while data := file.read(1 << 20):
                    self._offset += len(data)
                    self._count += data.count(b"\n")
        except OSError:  # it does not exist yet, or has been removed
            pass
        return self._count


def _start_time(run: JSON) -> float:
    assert isinstance(run, dict)
    return float(run["began"])


class ReportPages:
    """Reports of runs, which `testbed report` writes to a temporary directory when they are first opened; that of a running
    run is written anew each time."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._numbers: dict[Path, int] = {}
        self._lock = asyncio.Lock()  # one report at a time, since drawing one occupies a core

    async def page(self, folder: Path) -> Path:
        """Return the report of a run as an HTML file. Raises TestbedError with the command's reason."""
        page = self._directory / f"{self._numbers.setdefault(folder, len(self._numbers))}.html"
        async with self._lock:
            result = folder / RESULT
            if page.exists() and result.exists() and page.stat().st_mtime_ns > result.stat().st_mtime_ns:
                return page
            words = ["report", "-o", str(page), "--", str(folder)]
            process = await asyncio.create_subprocess_exec(
                *own_command(words), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
            try:
                output, _ = await process.communicate()
            except asyncio.CancelledError:
                process.kill()
                await process.wait()
                raise
        if process.returncode:
            raise TestbedError(summarize(output.decode(errors="replace"), failed=True))
        return page

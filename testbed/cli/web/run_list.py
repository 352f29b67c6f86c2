"""Runs in a directory, with the progress of those that are under way; and their reports.

A run's folder is read again only while the run has not ended.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from heapq import nlargest
from pathlib import Path
from typing import Any, Final

from testbed.cli.consoles import in_words, printable
from testbed.cli.screen.key_commands import outcome, own_command
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
        self._under_way: dict[str, _Progress] = {}
        self._unreadable: set[str] = set()

    def close(self) -> None:
        for progress in self._under_way.values():
            progress.close()

    def folder(self, name: str) -> Path | None:
        """Folder of a run that `sample` has returned; None for any other name."""
        return self._directory / name if name in self._ended or name in self._under_way else None

    def sample(self) -> JSON:
        """Return the last runs, the latest first."""
        names = self._latest()
        self._forget(names)
        for name in names - self._ended.keys() - self._under_way.keys() - self._unreadable:
            if (self._directory / name / RUN).exists():
                self._under_way[name] = _Progress(self._directory / name)
        shown = dict(self._ended)
        for name, progress in list(self._under_way.items()):
            try:
                shown[name] = progress.sample()
            except TestbedError:  # damaged, or of a newer version: `testbed runs` says which
                self._unreadable.add(name)
            if name in self._unreadable or progress.has_ended:
                self._under_way.pop(name).close()
            if progress.has_ended:
                self._ended[name] = shown[name]
        return sorted(shown.values(), key=_began, reverse=True)

    def _latest(self) -> set[str]:
        """Return the names of the folders that were changed last: of thousands of runs only these are read."""
        changed = []
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(self._directory) as entries:
            for entry in entries:
                with suppress(OSError):  # removed meanwhile
                    if entry.is_dir():
                        changed.append((entry.stat().st_mtime_ns, entry.name))
        return {name for _, name in nlargest(_MAX_SHOWN, changed)}

    def _forget(self, names: set[str]) -> None:
        """Forget all other runs."""
        for name in self._under_way.keys() - names:
            self._under_way.pop(name).close()
        for name in self._ended.keys() - names:
            del self._ended[name]
        self._unreadable &= names


class _Progress:
    """A run until it has ended."""

    def __init__(self, folder: Path) -> None:
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
            "name": printable(self._folder.name),
            "began": float(run.parameters.get("began", 0)),
            "what": printable(
                " ".join(str(run.parameters.get(key) or "") for key in ("cluster", "workload", "protocol", "mode"))
            ),
            "status": status,
            "grade": str((run.result.get("verdict") or {}).get("grade", "")),
            "error": printable(str(run.result.get("error", ""))),
            "progress": "" if self.has_ended else self._words(run),
            "share": None if self.has_ended else self._share(run),
        }

    def _words(self, run: RecordedRun) -> str:
        rows = self._rows.sample()
        seconds = in_words(time.time() - float(run.parameters.get("began", time.time())))
        repeat = int(run.parameters.get("repeat", 1))
        of = f"repetition {max(1, self._repetition)} of {repeat}, " if repeat > 1 else ""
        return f"{of}{rows:,} row{'s' if rows != 1 else ''}, {seconds}"

    def _share(self, run: RecordedRun) -> float | None:
        """Share of the repetitions that are done; None for a single one, whose end nobody knows."""
        repeat = int(run.parameters.get("repeat", 1))
        return max(0, self._repetition - 1) / repeat if repeat > 1 else None


def _status_without_result(asked: Mapping[str, Any]) -> str:
    """Tell a run in progress from one that was killed; unfinished: this machine cannot know."""
    try:
        process = Identity.parse(str(asked.get("process", "")))
    except ValueError:  # written by an older version
        return "unfinished"
    return "running" if process.is_alive else "killed" if process.is_local else "unfinished"


class _LineCount:
    """Lines of a file that grows, each of which is read once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0  # bytes
        self._count = 0

    def sample(self) -> int:
        try:
            with self._path.open("rb") as file:
                file.seek(self._read)
                while data := file.read(1 << 20):
                    self._read += len(data)
                    self._count += data.count(b"\n")
        except OSError:  # it does not exist yet, or has been removed
            pass
        return self._count


def _began(run: JSON) -> float:
    assert isinstance(run, dict)
    return float(run["began"])


class ReportPages:
    """Reports of runs, drawn in a temporary directory by `testbed report` when they are first opened; of a run that goes on
    each time."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._turn = asyncio.Lock()  # drawing takes a processor

    async def page(self, folder: Path) -> Path:
        """Return the report of a run as an HTML file. Raises TestbedError with the command's reason."""
        page = self._directory / f"{folder.name}.html"
        async with self._turn:
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
            raise TestbedError(outcome(output.decode(errors="replace"), failed=True))
        return page

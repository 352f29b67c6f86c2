"""A file of JSON Lines to which several processes append, and from which nothing that was written gets lost.

Every line is written in one call under the file's lock. One that does not fit any more (a full disk) is taken back, so that
the file ends with a whole line, and whoever wrote it is told.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from testbed.errors import TestbedError, reason_of


class UnwritableError(TestbedError):
    """Results cannot be written; what was written before is whole."""


class Journal:
    """Appends documents to a file, which is opened by the process that writes first."""

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        self._opened = (-1, 0)  # descriptor, and the process that has opened it

    def write(self, document: Mapping[str, object]) -> None:
        """Append a line; what JSON cannot say is written as its repr. Raises UnwritableError."""
        line = json.dumps(document, default=repr, ensure_ascii=False).encode(errors="replace") + b"\n"
        try:
            self._append(line)
        except OSError as error:
            raise UnwritableError(f"{self._path} cannot be written: {reason_of(error)}") from error

    def close(self) -> None:
        descriptor, process = self._opened
        if process == os.getpid():
            os.close(descriptor)
        self._opened = (-1, 0)

    def _append(self, line: bytes) -> None:
        descriptor, process = self._opened
        if process != os.getpid():  # forked since: a lock belongs to what was opened, not to the process
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            self._opened = descriptor, os.getpid()
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            end = os.fstat(descriptor).st_size
            try:
                written = os.write(descriptor, line)
                if written < len(line):
                    os.write(descriptor, line[written:])  # says why not all of it was
            except OSError:
                with contextlib.suppress(OSError):  # why it could not be written is what counts
                    os.ftruncate(descriptor, end)
                raise
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)


class Lines:
    """A file of lines for one process that writes a lot: some thousand at a time, and the rest when it is closed."""

    _MANY = 2_000

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        self._lines: list[str] = []

    def put(self, line: str) -> None:
        lines = self._lines
        lines.append(line)
        if len(lines) >= self._MANY:
            self.close()

    def write(self, document: Mapping[str, object]) -> None:
        """A line of JSON."""
        self.put(json.dumps(document, ensure_ascii=False))

    def close(self) -> None:
        """Write what is left. Raises UnwritableError."""
        if not self._lines:
            return
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.writelines(line + "\n" for line in self._lines)
        except OSError as error:
            raise UnwritableError(f"{self._path} cannot be written: {reason_of(error)}") from error
        finally:
            self._lines.clear()


class Trail:
    """A file of lines for one process, each in the file as soon as it is written: what kills the process loses none."""

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        self._descriptor = -1

    def write(self, document: Mapping[str, object]) -> None:
        """A line of JSON. Raises UnwritableError."""
        line = json.dumps(document, ensure_ascii=False).encode(errors="replace") + b"\n"
        try:
            if self._descriptor < 0:
                self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            written = os.write(self._descriptor, line)
            if written < len(line):
                os.write(self._descriptor, line[written:])  # says why not all of it was
        except OSError as error:
            raise UnwritableError(f"{self._path} cannot be written: {reason_of(error)}") from error

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def read(path: Path) -> Iterator[Mapping[str, Any]]:
    """The documents in a file; nothing where there is none. A line that is not whole, as a killed process may leave one, is
    passed over."""
    try:
        file = path.open(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return
    with file:
        for line in file:
            try:
                document = json.loads(line)
            except ValueError:
                continue
            if isinstance(document, dict):
                yield document

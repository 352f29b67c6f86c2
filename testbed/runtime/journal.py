"""Files of JSON documents, one per line: `Journal` for several processes, `BufferedLines` and `UnbufferedLines` for one.

A line of a journal is written under the file's lock. If it does not fit (full disk), the file is truncated to its former
size, so that it ends with a complete line, and the writer gets an error.
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
from testbed.json_text import loads
from testbed.kernel.filesystem import open_regular


class UnwritableError(TestbedError):
    """A results file cannot be written; what was written before is complete."""


class BrokenFileError(TestbedError):
    """A results file is damaged, or is not a regular file."""


class Journal:
    """Appends documents to a file that several processes write. Each process opens the file at its first write."""

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        self._opened = (-1, 0)  # descriptor, and pid of the process that opened it

    def write(self, document: Mapping[str, object]) -> None:
        """Append a document as a line. Values that JSON cannot represent are written as their `repr`. Raises
        UnwritableError."""
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
        if process != os.getpid():  # forked since: flock belongs to the open file, which parent and child would share
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            self._opened = descriptor, os.getpid()
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            end = os.fstat(descriptor).st_size
            try:
                written = os.write(descriptor, line)
                if written < len(line):
                    os.write(descriptor, line[written:])  # raises with the reason
            except OSError:
                with contextlib.suppress(OSError):  # report the original error
                    os.ftruncate(descriptor, end)
                raise
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)


def write_atomically(path: Path, text: str) -> None:
    """Replace a results file atomically. Raises UnwritableError."""
    temporary = path.with_name(f".{path.name}.new")
    try:
        try:
            temporary.write_text(text, encoding="utf-8", errors="replace")
            os.replace(temporary, path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise UnwritableError(
            f"results cannot be written to {path}: {reason_of(error)}; earlier results are complete"
        ) from error


class BufferedLines:
    """A file to which one process writes many lines: buffers up to 2,000 of them."""

    _MAX_BUFFERED = 2_000

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        self._lines: list[str] = []

    def write_line(self, line: str) -> None:
        """Write a line, given without its line break. Raises UnwritableError."""
        self._lines.append(line)
        if len(self._lines) >= self._MAX_BUFFERED:
            self.close()

    def write(self, document: Mapping[str, object]) -> None:
        """Write a document as a line of JSON. Raises UnwritableError."""
        self.write_line(json.dumps(document, ensure_ascii=False))

    def close(self) -> None:
        """Write the buffered lines. Raises UnwritableError."""
        if not self._lines:
            return
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.writelines(line + "\n" for line in self._lines)
        except OSError as error:
            raise UnwritableError(f"{self._path} cannot be written: {reason_of(error)}") from error
        finally:
            self._lines.clear()


class UnbufferedLines:
    """A file to which one process writes lines without buffering, so that nothing is lost if the process is killed.

    The file may exist, and may end with an incomplete line of a killed process. A write after `close` reopens the file
    for that line.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        self._descriptor = -1
        self._is_closed = False

    def write(self, document: Mapping[str, object]) -> None:
        """Write a document as a line of JSON. Raises UnwritableError."""
        line = json.dumps(document, ensure_ascii=False).encode(errors="replace") + b"\n"
        try:
            if self._descriptor < 0:
                self._open()
            written = os.write(self._descriptor, line)
            if written < len(line):
                os.write(self._descriptor, line[written:])  # raises with the reason
        except OSError as error:
            raise UnwritableError(f"{self._path} cannot be written: {reason_of(error)}") from error
        if self._is_closed:
            self.close()

    def _open(self) -> None:
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        size = os.fstat(self._descriptor).st_size
        if size and os.pread(self._descriptor, 1, size - 1) != b"\n":
            os.write(self._descriptor, b"\n")

    def close(self) -> None:
        self._is_closed = True
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def read(path: Path) -> Iterator[Mapping[str, Any]]:
    """Read the documents in a file; none if the file does not exist.

    Invalid lines, such as the incomplete line of a killed process, are skipped. Raises BrokenFileError for a file that
    cannot be read or is not a regular file.
    """
    return (document for _, document in _documents(path) if document is not None)


def read_numbered(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Read the documents with their line numbers, from 1. Raises BrokenFileError for a damaged line, unless it is merely
    incomplete."""
    for number, document in _documents(path, is_strict=True):
        if document is not None:
            yield number, document


def broken_line(path: Path, number: int, reason: object) -> BrokenFileError:
    """Make the error for a damaged line. number: from 1."""
    return BrokenFileError(f"{path}, line {number} cannot be understood ({reason}): the file is damaged")


def _documents(path: Path, *, is_strict: bool = False) -> Iterator[tuple[int, Mapping[str, Any] | None]]:
    try:
        file = open_regular(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise BrokenFileError(f"{path} cannot be read: {reason_of(error)}") from error
    with file:
        for number, line in enumerate(file, 1):
            try:
                document = loads(line)
                if not isinstance(document, dict):
                    raise ValueError("not a JSON object")
            except ValueError as error:
                if is_strict and line.rstrip().endswith(b"}"):
                    raise broken_line(path, number, error) from error
                document = None
            yield number, document

"""Lines of tables and traces, and errors in them with file, line and the expected content.

This module opens no file: callers pass the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from testbed.errors import NotFoundError, TestbedError
from testbed.spec.problems import shown

MAX_LINES: Final = 10_000_000


class BrokenFileError(TestbedError, ValueError):
    """A table or trace that cannot be used. line: counted from 1; 0 for the file as a whole."""

    exit_code = 2

    def __init__(self, source: str, line: int, found: str, expected: str) -> None:
        self.source = source
        self.line = line
        where = f"{source}, line {line}" if line else source
        super().__init__(f"{where}: found {found}, expected {expected}")


def text_of(files: Mapping[str, str], path: str) -> str:
    """Return a file's text, which the caller has loaded. Raises NotFoundError."""
    if path not in files:
        raise NotFoundError(f"the text of the file {path} was not given")
    return files[path]


def lines(text: str) -> Iterator[tuple[int, str]]:
    """Iterate over number and content of every line; a newline at the end ends the last one."""
    rest = text.split("\n")
    if rest and not rest[-1]:
        rest.pop()
    for number, line in enumerate(rest, 1):
        yield number, line.rstrip("\r")


def number(source: str, line: int, text: str, expected: str) -> int:
    """Parse a non-negative whole number. Raises BrokenFileError."""
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise BrokenFileError(source, line, shown(text) if text else "an empty line", expected)
    return int(text)

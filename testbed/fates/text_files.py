"""Lines of tables and traces, and errors in them with file, line and the expected content.

This module opens no file: callers pass the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from testbed.errors import NotFoundError, TestbedError
from testbed.spec.problems import format_value

MAX_LINES: Final = 10_000_000


class BrokenFileError(TestbedError, ValueError):
    """A table or trace that cannot be used. line: counted from 1; 0 for the file as a whole."""

    exit_code = 2

    def __init__(self, source: str, line: int, actual: str, expected: str) -> None:
        self.source = source
        self.line = line
        location = f"{source}, line {line}" if line else source
        super().__init__(f"{location}: found {actual}, expected {expected}")


def text_of(files: Mapping[str, str], path: str) -> str:
    """Return the text of a file that the caller has loaded. Raises NotFoundError."""
    if path not in files:
        raise NotFoundError(f"the text of the file {path} is missing")
    return files[path]


def lines(text: str) -> Iterator[tuple[int, str]]:
    """Iterate over number and content of every line; a newline at the end does not start another line."""
    remaining = text.split("\n")
    if remaining and not remaining[-1]:
        remaining.pop()
    for parse_number, line in enumerate(remaining, 1):
        yield parse_number, line.rstrip("\r")


def parse_number(source: str, line: int, text: str, expected: str) -> int:
    """Parse a non-negative whole number. Raises BrokenFileError."""
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise BrokenFileError(source, line, format_value(text) if text else "an empty line", expected)
    return int(text)

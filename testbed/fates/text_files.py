"""Lines of tables and traces, and the error for an invalid line.

This module opens no file: callers pass the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from testbed.errors import NotFoundError, TestbedError
from testbed.spec.problems import format_value

MAX_LINES: Final = 10_000_000


class BrokenFileError(TestbedError, ValueError):
    """Invalid table or trace. source: name of the file. line: counted from 1; 0: the file as a whole."""

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
    """Iterate over the lines; yield number and content of each. A newline at the end does not start another line."""
    contents = text.split("\n")
    if not contents[-1]:
        contents.pop()
    for number, line in enumerate(contents, 1):
        yield number, line.rstrip("\r")


def parse_number(source: str, line: int, text: str, expected: str) -> int:
    """Parse a non-negative whole number. source, line, expected: for the error. Raises BrokenFileError."""
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise BrokenFileError(source, line, format_value(text) if text else "an empty line", expected)
    return int(text)

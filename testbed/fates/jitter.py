"""Jitter, the deviation of a frame's delay: uniform, normal, pareto, a table or a trace.

A table holds the quantiles of a distribution of mean 0 and spread 1 in units of 1/8192, in rising order or not; the draw
picks one, and the jitter is multiplied with it. That is netem's way and its file format (``/usr/lib/tc/*.dist``), and
"pareto" is its table: shape 3, cut off at +4. "normal" has 4096 quantiles in the middle of equal shares, the outermost
at 3.67 standard deviations. "uniform" is exact: every nanosecond from -jitter to +jitter is as likely.

Frames keep their order unless `reorder` is set, so that a frame waits for one before it that was delayed more: the mean
rises above the delay where frames are closer than the jitter. Uniform, in shares of the jitter: by 0.04 where frames are
one jitter apart, 0.16 at a half, 0.52 at a tenth, 0.83 at a hundredth; normal: 0.21, 0.48, 1.2, 2.1.

A trace has one duration per line (``1.5ms``, ``0``), which is added to the delay of the direction's n-th frame; after the
last it starts again.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Final

from testbed.errors import TestbedError
from testbed.fates import fate_hash
from testbed.fates.text_files import MAX_LINES, BrokenFileError, lines
from testbed.spec.problems import shown
from testbed.spec.units import parse_duration

SCALE: Final = 8192
"""NETEM_DIST_SCALE."""

SIZE: Final = 4096
_LARGEST: Final = 32767
_MAX_ENTRIES: Final = 65_536


class Jitter:
    """Nanoseconds added to the delay, drawn from a table or a uniform distribution."""

    __slots__ = ("_size", "_spread", "_table", "_width")

    def __init__(self, spread: int, table: Sequence[int] = ()) -> None:
        """table: empty for a uniform distribution."""
        self._spread = spread
        self._table = table
        self._size = len(table)
        self._width = 2 * spread + 1

    def at(self, start: int, n: int) -> int:
        """Return the jitter of a flow's n-th frame, which may be negative. start: of the flow's stream."""
        word = fate_hash.draw(start, n)
        if not self._size:
            return (word * self._width >> 64) - self._spread
        # Halves round up: otherwise every draw would be half a nanosecond early on average.
        return (self._spread * self._table[word * self._size >> 64] + SCALE // 2) >> 13


def table_of(distribution: str, source: str = "", text: str = "") -> tuple[int, ...]:
    """Return the table of a named distribution, empty for the uniform one. text: of a table's file, read from source. Raises
    BrokenFileError."""
    if distribution == "table":
        return parse_table(text, source)
    if distribution not in ("uniform", "", "normal", "pareto"):
        raise ValueError(f"no distribution is called {distribution!r}")
    return {"normal": normal_table, "pareto": pareto_table}.get(distribution, tuple)()


@functools.cache
def normal_table() -> tuple[int, ...]:
    """Compute quantiles of the normal distribution."""
    upper: list[int] = []
    x = 0.0
    for place in range(SIZE // 2, SIZE):
        share = (place + 0.5) / SIZE
        for _ in range(6):  # Newton's method from the neighbouring quantile: three rounds are enough
            x += (share - 0.5 * (1 + math.erf(x / math.sqrt(2)))) * math.sqrt(2 * math.pi) * math.exp(x * x / 2)
        upper.append(round(x * SCALE))
    return (*(-value for value in reversed(upper)), *upper)


@functools.cache
def pareto_table() -> tuple[int, ...]:
    """Compute quantiles of a Pareto distribution of shape 3, moved to mean 0 and scaled as in netem's table."""
    values = [(1 / (place / SIZE) ** (1 / 3) - 1.5) * 4 / 3 * SCALE for place in range(SIZE, 0, -1)]
    return tuple(min(round(value), _LARGEST) for value in values)


@functools.lru_cache(maxsize=64)
def parse_table(text: str, source: str) -> tuple[int, ...]:
    """Parse a table in netem's file format: whole numbers separated by white space, ``#`` before a comment. Raises
    BrokenFileError."""
    expected = f"whole numbers from -{_LARGEST + 1} to {_LARGEST}, which are the distribution's values times {SCALE}"
    table: list[int] = []
    for number, line in lines(text):
        for word in line.partition("#")[0].split():
            digits = word.removeprefix("-")
            if not (digits.isascii() and digits.isdigit() and len(digits) <= 5 and int(digits) <= _LARGEST + 1):
                raise BrokenFileError(source, number, shown(word), expected)
            if len(table) == _MAX_ENTRIES:
                raise BrokenFileError(source, number, "one entry more", f"at most {_MAX_ENTRIES:,} entries")
            table.append(int(word))
    if not table:
        raise BrokenFileError(source, 0, "no entry", expected)
    return tuple(table)


@functools.lru_cache(maxsize=64)
def parse_trace(text: str, source: str) -> tuple[int, ...]:
    """Parse a jitter trace, a duration with its unit in every line, to nanoseconds. Raises BrokenFileError."""
    trace: list[int] = []
    for number, line in lines(text):
        try:
            trace.append(parse_duration(line))
        except TestbedError:
            found = shown(line) if line.strip() else "an empty line"
            raise BrokenFileError(source, number, found, "a duration with its unit, such as '1.5ms', or 0") from None
        if number > MAX_LINES:
            raise BrokenFileError(source, number, "one line more", f"at most {MAX_LINES:,} lines")
    if not trace:
        raise BrokenFileError(source, 0, "no line", "a duration in every line")
    return tuple(trace)

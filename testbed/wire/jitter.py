"""How a frame's delay deviates: uniform, normal, pareto, a table or a trace.

A table holds the quantiles of a distribution of mean 0 and spread 1 in units of 1/8192, in rising order or not; the draw
picks one, and the jitter is multiplied with it. That is netem's way and its file format (``/usr/lib/tc/*.dist``), and
"pareto" is its table: shape 3, cut off at +4. "normal" has 4096 quantiles in the middle of equal shares, the outermost
at 3.67 standard deviations. "uniform" is exact: every nanosecond from -jitter to +jitter is as likely.

A trace holds one duration per line (``1.5ms``, ``0``): what the direction's n-th frame has on top of the delay, from the
beginning again after the last.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Final

from testbed.errors import TestbedError
from testbed.spec.problems import shown
from testbed.spec.units import parse_duration
from testbed.wire import hashing
from testbed.wire.text_files import MOST_LINES, BrokenFileError, lines

SCALE: Final = 8192
"""NETEM_DIST_SCALE."""

SIZE: Final = 4096
_LARGEST: Final = 32767
_MOST_ENTRIES: Final = 65_536


class Jitter:
    """Nanoseconds on top of the delay, drawn from a table or evenly."""

    __slots__ = ("_size", "_spread", "_table", "_width")

    def __init__(self, spread: int, table: Sequence[int] = ()) -> None:
        """table: empty for a uniform distribution."""
        self._spread = spread
        self._table = table
        self._size = len(table)
        self._width = 2 * spread + 1

    def at(self, start: int, n: int) -> int:
        """Of a flow's n-th frame. start: of the flow's stream. May be negative."""
        word = hashing.draw(start, n)
        if not self._size:
            return (word * self._width >> 64) - self._spread
        # Halves round up: otherwise every draw would be half a nanosecond early on average.
        return (self._spread * self._table[word * self._size >> 64] + SCALE // 2) >> 13


def jitter_of(distribution: str, spread: int, source: str = "", text: str = "") -> Jitter:
    """The jitter of a named distribution. text: the table's, read from source. Raises BrokenFileError."""
    if distribution == "table":
        return Jitter(spread, parse_table(text, source))
    if distribution == "normal":
        return Jitter(spread, normal_table())
    if distribution == "pareto":
        return Jitter(spread, pareto_table())
    if distribution not in ("uniform", ""):
        raise ValueError(f"no distribution is called {distribution!r}")
    return Jitter(spread)


@functools.cache
def normal_table() -> tuple[int, ...]:
    """Quantiles of the normal distribution."""
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
    """Quantiles of a Pareto distribution of shape 3, moved to mean 0 and stretched as in netem's table."""
    values = [(1 / (place / SIZE) ** (1 / 3) - 1.5) * 4 / 3 * SCALE for place in range(SIZE, 0, -1)]
    return tuple(min(round(value), _LARGEST) for value in values)


@functools.lru_cache(maxsize=64)
def parse_table(text: str, source: str) -> tuple[int, ...]:
    """A table in netem's file format: whole numbers between white space, ``#`` before a comment. Raises
    BrokenFileError."""
    expected = f"whole numbers from -{_LARGEST + 1} to {_LARGEST}, which are the distribution's values times {SCALE}"
    table: list[int] = []
    for number, line in lines(text):
        for word in line.partition("#")[0].split():
            digits = word.removeprefix("-")
            if not (digits.isascii() and digits.isdigit() and len(digits) <= 5 and int(digits) <= _LARGEST + 1):
                raise BrokenFileError(source, number, shown(word), expected)
            if len(table) == _MOST_ENTRIES:
                raise BrokenFileError(source, number, "one entry more", f"at most {_MOST_ENTRIES:,} entries")
            table.append(int(word))
    if not table:
        raise BrokenFileError(source, 0, "no entry", expected)
    return tuple(table)


@functools.lru_cache(maxsize=64)
def parse_trace(text: str, source: str) -> tuple[int, ...]:
    """A jitter trace, in nanoseconds: a duration with its unit in every line. Raises BrokenFileError."""
    trace: list[int] = []
    for number, line in lines(text):
        try:
            trace.append(parse_duration(line))
        except TestbedError:
            found = shown(line) if line.strip() else "an empty line"
            raise BrokenFileError(source, number, found, "a duration with its unit, such as '1.5ms', or 0") from None
        if number > MOST_LINES:
            raise BrokenFileError(source, number, "one line more", f"at most {MOST_LINES:,} lines")
    if not trace:
        raise BrokenFileError(source, 0, "no line", "a duration in every line")
    return tuple(trace)

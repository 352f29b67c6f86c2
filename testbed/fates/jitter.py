"""Jitter, the deviation of a frame's delay: uniform, normal, Pareto, a table or a trace.

A table has quantiles of a distribution with mean 0 and spread 1 in units of 1/8192, in any order. A draw selects one of
them, which is multiplied by the jitter. This is netem's method and file format (``/usr/lib/tc/*.dist``), and "pareto" is
netem's table: shape 3, cut off at +4. "normal" has 4096 quantiles, the outermost at 3.67 standard deviations. "uniform" is
exact: every whole number of nanoseconds from -jitter to +jitter has an equal probability.

Frames keep their order, except those that `reorder` chooses: a frame waits for an earlier one that was delayed more. So the
mean delay exceeds the configured one if frames are closer together than the jitter. The excess, in units of the jitter, is
for frames that are 1, 1/2, 1/10 and 1/100 of the jitter apart: uniform 0.04, 0.16, 0.52, 0.83; normal 0.21, 0.48, 1.2, 2.1.

A trace has one duration per line (``1.5ms``, ``0``). The n-th is added to the delay of the direction's n-th frame; after the
last line the trace starts again.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Final

from testbed.errors import TestbedError
from testbed.fates import fate_hash
from testbed.fates.text_files import MAX_LINES, BrokenFileError, lines
from testbed.spec.problems import format_value
from testbed.spec.units import parse_duration

SCALE: Final = 8192
"""Value of a table that stands for 1 (netem's NETEM_DIST_SCALE)."""

TABLE_SIZE: Final = 4096
_MAX_VALUE: Final = 32767
_MAX_ENTRIES: Final = 65_536


class Jitter:
    """Distribution of the nanoseconds added to the delay, by a table or uniform. spread: the jitter, ns."""

    __slots__ = ("_size", "_spread", "_table", "_width")

    def __init__(self, spread: int, table: Sequence[int] = ()) -> None:
        """table: empty for a uniform distribution."""
        self._spread = spread
        self._table = table
        self._size = len(table)
        self._width = 2 * spread + 1

    def at(self, start: int, n: int) -> int:
        """Return the jitter of a flow's n-th frame in nanoseconds, which may be negative. start: start of the flow's
        stream."""
        word = fate_hash.draw(start, n)
        if not self._size:
            return (word * self._width >> 64) - self._spread
        # Halves round up: otherwise every draw would be half a nanosecond early on average.
        return (self._spread * self._table[word * self._size >> 64] + SCALE // 2) >> 13


def table_of(distribution: str, source: str = "", text: str = "") -> tuple[int, ...]:
    """Return the table of a distribution; empty for "uniform". text: content of a table's file. source: the file's name.
    Raises BrokenFileError."""
    if distribution == "table":
        return parse_table(text, source)
    if distribution not in ("uniform", "", "normal", "pareto"):
        raise ValueError(f"unknown distribution {distribution!r}")
    return {"normal": normal_table, "pareto": pareto_table}.get(distribution, tuple)()


@functools.cache
def normal_table() -> tuple[int, ...]:
    """Compute quantiles of the normal distribution."""
    upper: list[int] = []
    x = 0.0
    for index in range(TABLE_SIZE // 2, TABLE_SIZE):
        share = (index + 0.5) / TABLE_SIZE
        for _ in range(6):  # Newton's method, starting at the previous quantile
            x += (share - 0.5 * (1 + math.erf(x / math.sqrt(2)))) * math.sqrt(2 * math.pi) * math.exp(x * x / 2)
        upper.append(round(x * SCALE))
    return (*(-value for value in reversed(upper)), *upper)


@functools.cache
def pareto_table() -> tuple[int, ...]:
    """Compute quantiles of a Pareto distribution of shape 3, shifted to mean 0 and scaled as in netem's table."""
    values = [(1 / (index / TABLE_SIZE) ** (1 / 3) - 1.5) * 4 / 3 * SCALE for index in range(TABLE_SIZE, 0, -1)]
    return tuple(min(round(value), _MAX_VALUE) for value in values)


@functools.lru_cache(maxsize=64)
def parse_table(text: str, source: str) -> tuple[int, ...]:
    """Parse a table in netem's file format: whole numbers separated by white space, ``#`` before a comment. Raises
    BrokenFileError."""
    expected = (
        f"whole numbers from -{_MAX_VALUE + 1} to {_MAX_VALUE}, which are the distribution's values times {SCALE}"
    )
    table: list[int] = []
    for number, line in lines(text):
        for word in line.partition("#")[0].split():
            digits = word.removeprefix("-")
            if not (digits.isascii() and digits.isdigit() and len(digits) <= 5 and int(digits) <= _MAX_VALUE + 1):
                raise BrokenFileError(source, number, format_value(word), expected)
            if len(table) == _MAX_ENTRIES:
                raise BrokenFileError(source, number, "one entry more", f"at most {_MAX_ENTRIES:,} entries")
            table.append(int(word))
    if not table:
        raise BrokenFileError(source, 0, "no entry", expected)
    return tuple(table)


@functools.lru_cache(maxsize=64)
def parse_trace(text: str, source: str) -> tuple[int, ...]:
    """Parse a jitter trace, which has a duration with its unit in every line; return nanoseconds. Raises
    BrokenFileError."""
    trace: list[int] = []
    for number, line in lines(text):
        try:
            trace.append(parse_duration(line))
        except TestbedError:
            actual = format_value(line) if line.strip() else "an empty line"
            raise BrokenFileError(source, number, actual, "a duration with its unit, such as '1.5ms', or 0") from None
        if number > MAX_LINES:
            raise BrokenFileError(source, number, f"line {MAX_LINES + 1:,}", f"at most {MAX_LINES:,} lines")
    if not trace:
        raise BrokenFileError(source, 0, "no line", "a duration in every line")
    return tuple(trace)

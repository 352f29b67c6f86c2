"""Columns of numbers from rows of JSON Lines. They are read in chunks, and a value takes 8 bytes of memory.

Rows with equal keys form a kind. Numbers are float64, which holds a clock's nanoseconds exactly for a hundred days;
other values are stored as indices into a table of texts.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import numpy
from numpy.typing import NDArray

from testbed.json_text import loads

Numbers = NDArray[numpy.float64]
Row = Mapping[str, Any]

MAX_SHOWN: Final = 200
"""Number of rows of a kind that are stored unconverted, for a table."""

_MAX_VALUE: Final = 1e18
_AMOUNT_SUFFIXES: Final = ("_ns", "_bytes", "_bit_s", "_per_s")
_CHUNK_LINES: Final = 10_000
_MAX_KINDS: Final = 100


@dataclass(slots=True)
class Kind:
    """Rows with equal keys. texts: for a column that is not all numbers, its texts and their indices. first: the first
    rows, unconverted."""

    keys: tuple[str, ...]
    count: int = 0
    first: list[Row] = field(default_factory=list)
    texts: dict[str, dict[str, int]] = field(default_factory=dict)
    _columns: dict[str, array[float]] = field(default_factory=dict)
    _is_valid: dict[str, bool] = field(default_factory=dict)

    def column(self, key: str) -> Numbers:
        """Return a column's numbers, in the order of the rows. Raises KeyError."""
        return numpy.frombuffer(self._columns[key], dtype=numpy.float64)

    def is_numeric(self, key: str) -> bool:
        """Whether the column can be drawn: all are finite numbers of sensible size, and amounts are not negative."""
        if key not in self._columns or key in self.texts:
            return False
        if key not in self._is_valid:
            column = self.column(key)
            least = 0.0 if key.endswith(_AMOUNT_SUFFIXES) else -_MAX_VALUE
            self._is_valid[key] = bool(((column >= least) & (column <= _MAX_VALUE)).all())
        return self._is_valid[key]

    def can_split(self, key: str) -> bool:
        """Whether the column can divide the rows into groups."""
        return key in self.texts or self.is_numeric(key)

    def distinct(self, key: str) -> list[float] | list[str]:
        """Return the distinct values of a column: numbers sorted, texts in order of appearance."""
        if key in self.texts:
            return list(self.texts[key])
        return [float(value) for value in numpy.unique(self.column(key))]

    def where(self, **values: float | str) -> NDArray[numpy.bool_]:
        """Return the mask of the rows with these values."""
        mask = numpy.ones(self.count, dtype=numpy.bool_)
        for key, value in values.items():
            mask &= self.column(key) == (self.texts[key][value] if isinstance(value, str) else value)
        return mask

    def add(self, rows: Sequence[Row]) -> None:
        """Append rows."""
        for key in self.keys:
            column = self._columns.setdefault(key, array("d"))
            values = list(map(itemgetter(key), rows))
            if key not in self.texts:
                previous_length = len(column)
                try:
                    column.extend(values)
                except (TypeError, OverflowError):
                    del column[previous_length:]
                    if previous_length:  # all previous values are numbers: convert them to texts
                        self._columns[key] = column = self._to_indices(key, [f"{value:g}" for value in column])
                else:
                    continue
            column.extend(self._to_indices(key, ["" if value is None else str(value) for value in values]))
        self.first += rows[: MAX_SHOWN - len(self.first)] if len(self.first) < MAX_SHOWN else []
        self.count += len(rows)

    def _to_indices(self, key: str, values: list[str]) -> array[float]:
        indices = self.texts.setdefault(key, {})
        for value in dict.fromkeys(values):
            indices.setdefault(value, len(indices))
        return array("d", [indices[value] for value in values])


def read_kinds(path: Path) -> list[Kind]:
    """Read the kinds of a file of rows, in order of appearance; none if there is no file.

    If almost every row has different keys, rows after the first `_MAX_KINDS` kinds are skipped.
    """
    kinds: dict[tuple[str, ...], Kind] = {}
    for rows in read_chunks(path):
        for keys, rows_of_kind in _by_keys(rows).items():
            if keys in kinds or len(kinds) < _MAX_KINDS:
                kinds.setdefault(keys, Kind(keys)).add(rows_of_kind)
    return list(kinds.values())


def _by_keys(rows: list[Row]) -> dict[tuple[str, ...], list[Row]]:
    """Group rows by their keys."""
    if len(set(map(tuple, rows))) == 1:  # the common case, three times as fast
        return {tuple(rows[0]): rows}
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row), []).append(row)
    return groups


def read_chunks(path: Path, without: bytes = b"") -> Iterator[list[Row]]:
    """Yield the documents of a file of JSON Lines in chunks; nothing if there is no file. An incomplete line, which a killed
    process may leave, is skipped. without: lines that contain these bytes are skipped."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        while lines := list(islice(file, _CHUNK_LINES)):
            if without:
                lines = [line for line in lines if without not in line]
            try:  # parsing all lines together takes two thirds of the time
                rows = loads(b"[" + b",".join(lines) + b"]")
            except ValueError:
                rows = [row for line in lines if (row := _parse_line(line)) is not None]
            yield [row for row in rows if type(row) is dict]


def _parse_line(line: bytes) -> object:
    try:
        return loads(line)
    except ValueError:
        return None

"""Columns of numbers from rows of JSON Lines, read in chunks: a million rows need as many numbers and no more memory.

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
"""Number of rows of a kind that are kept as they are, for a table."""

_MAX: Final = 1e18
_AMOUNTS: Final = ("_ns", "_bytes", "_bit_s", "_per_s")
_CHUNK: Final = 10_000
_MAX_KINDS: Final = 100


@dataclass(slots=True)
class Kind:
    """Rows with equal keys. texts: for a column that is not all numbers, its texts and their indices. first: the first
    rows, as they are."""

    keys: tuple[str, ...]
    count: int = 0
    first: list[Row] = field(default_factory=list)
    texts: dict[str, dict[str, int]] = field(default_factory=dict)
    _columns: dict[str, array[float]] = field(default_factory=dict)
    _sound: dict[str, bool] = field(default_factory=dict)

    def column(self, key: str) -> Numbers:
        """A column's numbers, in the order of the rows. Raises KeyError."""
        return numpy.frombuffer(self._columns[key], dtype=numpy.float64)

    def is_numeric(self, key: str) -> bool:
        """Whether the column can be drawn: all are finite numbers of sensible size, and amounts are not negative."""
        if key not in self._columns or key in self.texts:
            return False
        if key not in self._sound:
            column = self.column(key)
            least = 0.0 if key.endswith(_AMOUNTS) else -_MAX
            self._sound[key] = bool(((column >= least) & (column <= _MAX)).all())
        return self._sound[key]

    def can_split(self, key: str) -> bool:
        """Whether the column can divide the rows into groups."""
        return key in self.texts or self.is_numeric(key)

    def distinct(self, key: str) -> list[float] | list[str]:
        """Distinct values of a column: numbers sorted, texts in order of appearance."""
        if key in self.texts:
            return list(self.texts[key])
        return [float(value) for value in numpy.unique(self.column(key))]

    def where(self, **values: float | str) -> NDArray[numpy.bool_]:
        """Mask of the rows with these values."""
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
                before = len(column)
                try:
                    column.extend(values)
                except (TypeError, OverflowError):
                    del column[before:]
                    if before:  # so far all numbers: convert them to texts
                        self._columns[key] = column = self._numbered(key, [f"{value:g}" for value in column])
                else:
                    continue
            column.extend(self._numbered(key, ["" if value is None else str(value) for value in values]))
        self.first += rows[: MAX_SHOWN - len(self.first)] if len(self.first) < MAX_SHOWN else []
        self.count += len(rows)

    def _numbered(self, key: str, values: list[str]) -> array[float]:
        known = self.texts.setdefault(key, {})
        for value in dict.fromkeys(values):
            known.setdefault(value, len(known))
        return array("d", [known[value] for value in values])


def read_kinds(path: Path) -> list[Kind]:
    """Read the kinds of a file of rows, in order of appearance; none where there is no file.

    Where a workload gives every row its own keys, rows after the first hundred kinds are skipped.
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
    """Yield the documents of a file of JSON Lines in chunks; nothing where there is no file. An incomplete line is
    skipped, as a killed process may leave one. without: lines that contain this are skipped."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        while lines := list(islice(file, _CHUNK)):
            if without:
                lines = [line for line in lines if without not in line]
            try:  # all at once: takes two thirds of the time
                rows = loads(b"[" + b",".join(lines) + b"]")
            except ValueError:
                rows = [row for line in lines if (row := _parse_line(line)) is not None]
            yield [row for row in rows if type(row) is dict]


def _parse_line(line: bytes) -> object:
    try:
        return loads(line)
    except ValueError:
        return None

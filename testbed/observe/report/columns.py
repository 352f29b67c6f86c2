"""Rows as columns: a million rows of JSON Lines, read some thousand at a time, take as many numbers and no more.

Rows that have the same keys are of one kind. Numbers are float64, which holds a clock's nanoseconds exactly for a hundred
days; whatever else a column has are numbers of texts.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import numpy
from numpy.typing import NDArray

Numbers = NDArray[numpy.float64]
Row = Mapping[str, Any]

MOST_SHOWN: Final = 200
"""Rows of a kind that are kept as they are, for a table."""

_MOST: Final = 1e18
_AMOUNTS: Final = ("_ns", "_bytes", "_bit_s", "_per_s")
_CHUNK: Final = 10_000
_MOST_KINDS: Final = 100


@dataclass(slots=True)
class Kind:
    """Rows with the same keys. texts: of a column that is not all numbers, what its numbers stand for. first: some of the
    rows, as they are."""

    keys: tuple[str, ...]
    count: int = 0
    first: list[Row] = field(default_factory=list)
    texts: dict[str, dict[str, int]] = field(default_factory=dict)
    _columns: dict[str, array[float]] = field(default_factory=dict)
    _sound: dict[str, bool] = field(default_factory=dict)

    def column(self, key: str) -> Numbers:
        """Its numbers, in the order of the rows. Raises KeyError."""
        return numpy.frombuffer(self._columns[key], dtype=numpy.float64)

    def numeric(self, key: str) -> bool:
        """Whether it can be drawn: all are numbers, none without end or beyond measure, and no amount is less than none."""
        if key not in self._columns or key in self.texts:
            return False
        if key not in self._sound:
            column = self.column(key)
            least = 0.0 if key.endswith(_AMOUNTS) else -_MOST
            self._sound[key] = bool(((column >= least) & (column <= _MOST)).all())
        return self._sound[key]

    def splits(self, key: str) -> bool:
        """Whether its rows can be told apart by it."""
        return key in self.texts or self.numeric(key)

    def distinct(self, key: str) -> list[float] | list[str]:
        """A column's values, each once: numbers in their order, texts as they came."""
        if key in self.texts:
            return list(self.texts[key])
        return [float(value) for value in numpy.unique(self.column(key))]

    def where(self, **values: float | str) -> NDArray[numpy.bool_]:
        """Which rows have these values."""
        found = numpy.ones(self.count, dtype=numpy.bool_)
        for key, value in values.items():
            found &= self.column(key) == (self.texts[key][value] if isinstance(value, str) else value)
        return found

    def add(self, rows: Sequence[Row]) -> None:
        """More of them."""
        for key in self.keys:
            column = self._columns.setdefault(key, array("d"))
            values = list(map(itemgetter(key), rows))
            if key not in self.texts:
                before = len(column)
                try:
                    column.extend(values)
                except (TypeError, OverflowError):
                    del column[before:]
                    if before:  # numbers until now: they are texts like the others
                        self._columns[key] = column = self._numbered(key, [f"{value:g}" for value in column])
                else:
                    continue
            column.extend(self._numbered(key, ["" if value is None else str(value) for value in values]))
        self.first += rows[: MOST_SHOWN - len(self.first)] if len(self.first) < MOST_SHOWN else []
        self.count += len(rows)

    def _numbered(self, key: str, values: list[str]) -> array[float]:
        known = self.texts.setdefault(key, {})
        for value in dict.fromkeys(values):
            known.setdefault(value, len(known))
        return array("d", [known[value] for value in values])


def read_kinds(path: Path) -> list[Kind]:
    """Of a file of rows, the kind with the most keys first among those that came first; none where there is no file.

    Where a workload gives every row keys of its own, what comes after a hundred kinds is passed over.
    """
    kinds: dict[tuple[str, ...], Kind] = {}
    for rows in read_chunks(path):
        for keys, some in _sorted_out(rows).items():
            if keys in kinds or len(kinds) < _MOST_KINDS:
                kinds.setdefault(keys, Kind(keys)).add(some)
    return list(kinds.values())


def _sorted_out(rows: list[Row]) -> dict[tuple[str, ...], list[Row]]:
    """Rows by their keys."""
    if len(set(map(tuple, rows))) == 1:  # nearly always, and three times as fast
        return {tuple(rows[0]): rows}
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row), []).append(row)
    return found


def read_chunks(path: Path, without: bytes = b"") -> Iterator[list[Row]]:
    """The documents of a file of JSON Lines, some thousand at a time; nothing where there is none. A line that is not whole
    is passed over, as a killed process may leave one. without: lines with this in them need not be read."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        while lines := list(islice(file, _CHUNK)):
            if without:
                lines = [line for line in lines if without not in line]
            try:  # at once, which takes two thirds of the time
                rows = json.loads(b"[" + b",".join(lines) + b"]")
            except ValueError:
                rows = [row for line in lines if (row := _one(line)) is not None]
            yield [row for row in rows if type(row) is dict]


def _one(line: bytes) -> object:
    try:
        return json.loads(line)
    except ValueError:
        return None

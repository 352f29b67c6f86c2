"""Rows of JSON Lines as polars columns. The rows are read in chunks, and a number takes 8 bytes of memory.

Rows with equal keys form a kind. A column of numbers is float64, which represents a clock's nanoseconds exactly for a
hundred days; a column with any other value is text.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy
import polars
from numpy.typing import NDArray
from polars import selectors

from testbed.json_text import loads

Numbers = NDArray[numpy.float64]
Row = Mapping[str, Any]

MAX_SHOWN: Final = 200
"""Number of rows of a kind that are also kept unconverted, for a table."""

_MAX_VALUE: Final = 1e18
_AMOUNT_SUFFIXES: Final = ("_ns", "_bytes", "_bit_s", "_per_s")
_CHUNK_LINES: Final = 20_000
_MAX_KINDS: Final = 100


@dataclass(frozen=True, slots=True)
class Kind:
    """Rows with equal keys. data: their columns. first_rows: the first rows, unconverted."""

    data: polars.DataFrame
    first_rows: Sequence[Row]

    @property
    def keys(self) -> list[str]:
        return self.data.columns

    @property
    def count(self) -> int:
        """Number of rows."""
        return self.data.height

    def column(self, key: str) -> Numbers:
        """Return a column of numbers, in the order of the rows."""
        return self.data[key].to_numpy()

    def is_numeric(self, key: str) -> bool:
        """Whether the column can be drawn: all values are numbers up to 1e18, and those of times, sizes and rates are not
        negative."""
        if self.data.schema.get(key) != polars.Float64:
            return False
        min_value = 0.0 if key.endswith(_AMOUNT_SUFFIXES) else -_MAX_VALUE
        return self.data[key].is_between(min_value, _MAX_VALUE).all()

    def can_split(self, key: str) -> bool:
        """Whether the column can divide the rows into groups."""
        return self.data.schema.get(key) == polars.String or self.is_numeric(key)

    def distinct(self, key: str) -> list[float] | list[str]:
        """Return the distinct values of a column: numbers sorted, texts in order of appearance."""
        values = self.data[key].unique(maintain_order=True)
        return (values.sort() if self.is_numeric(key) else values).to_list()

    def where(self, **values: float | str) -> polars.DataFrame:
        """Return the rows with these values."""
        return self.data.filter(**values) if values else self.data


def read_kinds(path: Path) -> list[Kind]:
    """Read the kinds of rows in a file, in order of appearance; none if there is no file. Rows of further kinds after the
    first `_MAX_KINDS` are skipped."""
    kinds: dict[frozenset[str], tuple[list[polars.DataFrame], list[Row]]] = {}
    for lines in _read_lines(path):
        frame = _parse_uniform(lines)
        groups = _by_keys(_parse(lines if frame is None else lines[:MAX_SHOWN]))
        for keys, rows in groups.items():
            if keys in kinds or len(kinds) < _MAX_KINDS:
                frames, first_rows = kinds.setdefault(keys, ([], []))
                frames.append(_to_frame(rows) if frame is None else frame)
                first_rows += rows[: MAX_SHOWN - len(first_rows)]
    return [Kind(_join(frames), first_rows) for frames, first_rows in kinds.values()]


def _parse_uniform(lines: Sequence[bytes]) -> polars.DataFrame | None:
    """Parse lines whose rows have equal keys and, in each column, values of one type, as most files have; None for any
    others."""
    text = b"".join(lines)
    # Number of rows from which polars infers keys and types; all rows (None) take three times as long.
    for inferred in (100, None):
        try:
            frame = polars.read_ndjson(text, infer_schema_length=inferred)
        except polars.exceptions.PolarsError:
            continue
        # Without null values, each row has all keys. Other keys, which polars would skip, would need more colons.
        is_complete = inferred is None or text.count(b":") == frame.height * frame.width
        if is_complete and frame.height == len(lines) and all(map(_is_plain, frame)):
            return frame.cast({selectors.numeric() | selectors.boolean(): polars.Float64})
    return None


def _is_plain(column: polars.Series) -> bool:
    return not column.has_nulls() and (column.dtype.is_numeric() or column.dtype in (polars.Boolean, polars.String))


def _by_keys(rows: Iterable[Row]) -> dict[frozenset[str], list[Row]]:
    """Group rows by their keys."""
    groups: dict[frozenset[str], list[Row]] = {}
    for row in rows:
        groups.setdefault(frozenset(row), []).append(row)
    return groups


def _to_frame(rows: Sequence[Row]) -> polars.DataFrame:
    return polars.DataFrame({_text(key): _to_series([row[key] for row in rows]) for key in rows[0]})


def _to_series(values: Sequence[Any]) -> polars.Series:
    try:
        return polars.Series(numpy.array(array("d", values)))
    except (TypeError, OverflowError):
        return polars.Series(["" if value is None else _text(value) for value in values], dtype=polars.String)


def _text(value: object) -> str:
    """Format a value as text that can be encoded; text from JSON may contain lone surrogates."""
    return str(value).encode(errors="replace").decode()


def _join(frames: Sequence[polars.DataFrame]) -> polars.DataFrame:
    """Join frames with equal keys. A column that is text in any of them is text in all."""
    texts = {key for frame in frames for key, dtype in frame.schema.items() if dtype == polars.String}
    return polars.concat(
        polars.DataFrame({
            key: [f"{value:g}" for value in frame[key]] if key in texts and frame.schema[key] != polars.String
            else frame[key]
            for key in frames[0].columns
        })
        for frame in frames
    )  # fmt: skip


def read_chunks(path: Path) -> Iterator[list[Row]]:
    """Yield the objects of a file of JSON Lines in chunks; nothing if there is no file. Invalid lines, such as the
    incomplete one of a killed process, are skipped."""
    return map(_parse, _read_lines(path))


def _read_lines(path: Path) -> Iterator[list[bytes]]:
    """Yield the lines of a file in chunks; nothing if there is no file."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        while lines := list(islice(file, _CHUNK_LINES)):
            yield lines


def _parse(lines: Sequence[bytes]) -> list[Row]:
    try:  # parsing all lines together takes two thirds of the time
        rows = loads(b"[" + b",".join(lines) + b"]")
    except ValueError:
        rows = [row for line in lines if (row := _parse_line(line)) is not None]
    return [row for row in rows if type(row) is dict]


def _parse_line(line: bytes) -> object:
    try:
        return loads(line)
    except ValueError:
        return None

"""Rows as columns: the values of the rows, also beside malformed lines."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from testbed.observe.report import columns
from testbed.observe.report.columns import read_kinds

VALUES = st.one_of(
    st.integers(-(2**52), 2**52),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    st.none(),
    st.text(max_size=3),
)  # fmt: skip
ROWS = st.lists(st.dictionaries(st.sampled_from(["node", "a_ns", "b", "c"]), VALUES, min_size=1), max_size=40)


def write_rows(path: Path, text: str) -> Path:
    (path / "rows.jsonl").write_text(text)
    return path / "rows.jsonl"


@given(rows=ROWS)
def test_columns_have_the_keys_of_rows_by_kind(tmp_path_factory, rows) -> None:
    path = write_rows(tmp_path_factory.mktemp("rows"), "".join(json.dumps(row) + "\n" for row in rows))
    kinds_read = {frozenset(kind.keys): kind for kind in read_kinds(path)}
    assert sum(kind.count for kind in kinds_read.values()) == len(rows)
    for keys, kind in kinds_read.items():
        own_rows = [row for row in rows if row.keys() == keys]
        assert kind.first_rows == own_rows
        for key in keys:
            values = [row[key] for row in own_rows]
            for column_value, value in zip(kind.data[key], values, strict=True):
                if isinstance(column_value, float):
                    assert column_value == float(value)
                elif isinstance(value, str | None):
                    assert column_value == (value or "")
                else:
                    assert type(value)(json.loads(column_value.lower())) == value


def test_a_column_with_some_text_is_all_text(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(columns, "_CHUNK_LINES", 2)
    (kind,) = read_kinds(write_rows(tmp_path, '{"a": 1}\n{"a": 2}\n{"a": "x"}\n{"a": 2}\n'))
    assert list(kind.data["a"]) == ["1", "2", "x", "2"]
    assert kind.where(a="2").height == 2


def test_incomplete_lines_are_skipped(tmp_path: Path) -> None:
    (kind,) = read_kinds(write_rows(tmp_path, '{"a": 1}\n{"a": \n[3]\n7\n\n{"a": 2}\n{"a": 3'))
    assert list(kind.column("a")) == [1, 2]


def test_a_missing_file_has_no_rows(tmp_path: Path) -> None:
    assert read_kinds(tmp_path / "rows.jsonl") == []


def test_a_clock_of_nanoseconds_is_exact(tmp_path: Path) -> None:
    clock = 48_131_413_876_001
    (kind,) = read_kinds(write_rows(tmp_path, f'{{"clock_ns": {clock}}}\n'))
    assert int(kind.column("clock_ns")[0]) == clock


def test_the_number_of_kinds_of_rows_is_limited(tmp_path: Path) -> None:
    kinds = read_kinds(write_rows(tmp_path, "".join(json.dumps({f"key{number}": 1}) + "\n" for number in range(500))))
    assert len(kinds) == 100


def test_impossible_values_are_not_plotted(tmp_path: Path) -> None:
    row = {
        "good_ns": 1,
        "less_ns": -1,
        "less": -1,
        "much_ns": 1e300,
        "endless_ns": float("inf"),
        "none_ns": float("nan"),
    }
    (kind,) = read_kinds(write_rows(tmp_path, json.dumps(row)))
    assert [key for key in row if kind.is_numeric(key)] == ["good_ns", "less"]

"""Rows of results as tables in the terminal. The units stand in the keys: ``p50_ns`` is a time, ``rate_bit_s`` a rate."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

_MOST = 60  # rows
_WIDE = 200  # characters
_HIDDEN = ("clock_ns", "rank")
_STEPS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """One table for all rows that have the same keys; beside each other where there is one kind only."""
    kinds: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        kinds.setdefault(tuple(key for key in row if key not in _HIDDEN), []).append(row)
    for keys, some in kinds.items():
        print_table(
            [_heading(key) for key in keys], ([_cell(key, row.get(key)) for key in keys] for row in some[:_MOST])
        )
        if len(some) > _MOST:
            _console().print(f"and {len(some) - _MOST:,} more in rows.jsonl")


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    _console().print(table)


def _console() -> Console:
    """As wide as the terminal is; a file or a pipe has room for any table."""
    return Console(width=None if sys.stdout.isatty() else _WIDE)


def _heading(key: str) -> str:
    for unit in ("_ns", "_bytes", "_bit_s", "_per_s"):
        if key.endswith(unit):
            return key.removesuffix(unit).replace("_", " ") + ("/s" if unit == "_per_s" else "")
    return key.replace("_", " ")


def _cell(key: str, value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if key.endswith("_ns"):
        return _time(value)
    if key.endswith("_bit_s"):
        return f"{_scaled(value)}bit/s"
    if key.endswith("_per_s"):
        return _scaled(value).strip()
    if key.endswith("_bytes"):
        return f"{value:,} B"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _time(value: float) -> str:
    for least, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if abs(value) >= least:
            return f"{value / least:.4g} {unit}"
    return f"{value:.4g} ns"


def _scaled(value: float) -> str:
    for least, prefix in _STEPS:
        if value >= least:
            return f"{value / least:.4g} {prefix}"
    return f"{value:.4g} "

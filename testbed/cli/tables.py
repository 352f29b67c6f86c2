"""Rows of results as tables in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from testbed.observe.quantities import cell, heading

_MOST = 60  # rows
_WIDE = 200  # characters
_HIDDEN = ("clock_ns", "rank")


def print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """One table for all rows that have the same keys; beside each other where there is one kind only."""
    kinds: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        kinds.setdefault(tuple(key for key in row if key not in _HIDDEN), []).append(row)
    for keys, some in kinds.items():
        print_table([heading(key) for key in keys], ([cell(key, row.get(key)) for key in keys] for row in some[:_MOST]))
        if len(some) > _MOST:
            _console().print(f"and {len(some) - _MOST:,} more in rows.jsonl")


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, name in enumerate(headings):
        table.add_column(name, justify="left" if number == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    _console().print(table)


def _console() -> Console:
    """As wide as the terminal is; a file or a pipe has room for any table."""
    return Console(width=None if sys.stdout.isatty() else _WIDE)

"""Tables in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from testbed.cli.consoles import printable
from testbed.observe.format.quantities import format_value, heading

_MAX_ROWS = 60
_PIPE_WIDTH = 200  # characters
_HIDDEN = ("clock_ns", "rank")  # keys of rows


class _PlainConsole(Console):
    """A console that raises BrokenPipeError for a closed pipe, which `main` handles; rich's own console exits with 1."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a table for each set of keys, in the order of their first rows; at most 60 rows of each."""
    kinds: dict[frozenset[str], list[Mapping[str, Any]]] = {}
    for row in rows:
        kinds.setdefault(frozenset(row).difference(_HIDDEN), []).append(row)
    for rows_of_kind in kinds.values():
        keys = [key for key in rows_of_kind[0] if key not in _HIDDEN]
        print_table(
            [heading(key) for key in keys],
            ([format_value(key, row.get(key)) for key in keys] for row in rows_of_kind[:_MAX_ROWS]),
        )
        if len(rows_of_kind) > _MAX_ROWS:
            console().print(f"and {len(rows_of_kind) - _MAX_ROWS:,} more in rows.jsonl")


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table, the first column left-aligned, the others right-aligned."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, name in enumerate(headings):
        table.add_column(Text(printable(name)), justify="left" if number == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(text)) for text in row))
    console().print(table)


def console() -> Console:
    """Return a console as wide as the terminal, or 200 columns wide for a file or a pipe."""
    return _PlainConsole(width=None if sys.stdout.isatty() else _PIPE_WIDTH)

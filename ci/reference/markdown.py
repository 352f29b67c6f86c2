"""Markdown that all generated parts use: tables, and texts that stand in their cells."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def cell(text: str) -> str:
    """Format a text as one line of a table's cell."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "\\<")


def code(value: object) -> str:
    """Format a value as code; an empty one as nothing."""
    text = str(value).replace("|", "\\|")
    return f"`{text}`" if text else ""


def first_sentence(documented: object) -> str:
    """Return the first line of an object's docstring."""
    return cell((inspect.getdoc(documented) or "").partition("\n\n")[0])

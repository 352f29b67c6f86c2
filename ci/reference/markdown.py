"""Markdown of all generated parts: tables, and texts for their cells."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def cell(text: str) -> str:
    """Format a text as a table's cell: on one line, escaped."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "\\<")


def code(value: object) -> str:
    """Format a value as code for a table's cell; an empty one as nothing."""
    text = str(value).replace("|", "\\|")
    return f"`{text}`" if text else ""


def first_paragraph(documented: object) -> str:
    """Return the first paragraph of an object's docstring, as a table's cell."""
    return cell((inspect.getdoc(documented) or "").partition("\n\n")[0])

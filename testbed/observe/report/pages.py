"""Pages: self-contained HTML files, rendered from the folder `templates`.

The templates escape all text except `Markup`, which only this package makes: its SVG images and rendered templates.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from testbed.errors import TestbedError, reason_of

TEMPLATES: Final = Environment(
    loader=PackageLoader("testbed.observe.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
    lstrip_blocks=True, keep_trailing_newline=True,
)  # fmt: skip


class UnwritableReportError(TestbedError):
    """The report cannot be written to its path."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table. caption: its subject. left: indexes of the left-aligned columns, which contain text. headed: whether the
    first cell of each row is the row's heading. note: a sentence below the table; may be empty."""

    caption: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: frozenset[int] = frozenset({0})
    headed: bool = True
    note: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a section: a table, or a text of several lines. name: name of the table, unique in the page, or label of the
    text. summary: title of a collapsed part; empty: the part is always shown."""

    content: Table | str
    name: str
    summary: str = ""


def render(template: str, **values: object) -> Markup:
    """Render a template. values: its variables."""
    return Markup(TEMPLATES.get_template(template).render(values))


def require_writable(output: Path) -> None:
    """Raise UnwritableReportError if a page cannot be written to `output`. To find out, a missing file and missing folders
    are created, and then removed."""
    missing: list[Path] = []
    try:
        missing += [folder for folder in output.parents if not folder.exists()]
        output.parent.mkdir(parents=True, exist_ok=True)
        is_new = not output.exists()
        if is_new or output.is_file() or output.is_dir():  # opening a pipe would wait for its reader
            output.open("ab").close()
        if is_new:
            os.unlink(os.path.realpath(output))
    except OSError as error:
        raise UnwritableReportError(f"the report cannot be written to {output}: {reason_of(error)}") from error
    finally:
        for folder in missing:
            with suppress(OSError):  # it was not created, or another process has written into it
                folder.rmdir()


def write_page(text: str, output: Path) -> int:
    """Write a page; return its size in bytes. Raises UnwritableReportError."""
    encoded = text.encode(errors="backslashreplace")
    try:
        if output.parent != Path():
            output.parent.mkdir(parents=True, exist_ok=True)
        output.write_bytes(encoded)
    except OSError as error:
        raise UnwritableReportError(f"the report cannot be written to {output}: {reason_of(error)}") from error
    return len(encoded)

"""The parts of a page as HTML, so that whoever has no pointer, no colours or no eyes for them can read them, too."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True, slots=True)
class Table:
    """caption: what it tells. rows: the first cell of each is its heading, where `headed`. left: columns of text."""

    caption: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: frozenset[int] = frozenset({0})
    headed: bool = True
    note: str = ""


def table(of: Table, name: str) -> str:
    """It scrolls where it is wide, and the keyboard reaches it. name: unique in the page."""

    def cells(row: Sequence[str]) -> str:
        return "".join(
            f'<th scope="row">{escape(text)}</th>'
            if place == 0 and of.headed
            else f"<td{'' if place in of.left else ' class=number'}>{escape(text)}</td>"
            for place, text in enumerate(row)
        )

    head = "".join(
        f'<th scope="col"{"" if place in of.left else " class=number"}>{escape(text)}</th>'
        for place, text in enumerate(of.headings)
    )
    body = "\n".join(f"<tr>{cells(row)}</tr>" for row in of.rows)
    note = f'<p class="note">{escape(of.note)}</p>' if of.note else ""
    return (
        f'<div class="scrolls" role="region" aria-labelledby="{name}" tabindex="0"><table>'
        f'<caption id="{name}">{escape(of.caption)}</caption>'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>{note}"
    )


def details(summary: str, content: str, *, opened: bool = False) -> str:
    """What is shown when somebody asks for it."""
    return f"<details{' open' if opened else ''}><summary>{escape(summary)}</summary>{content}</details>"


def section(name: str, title: str, parts: Iterable[str]) -> str:
    return (
        f'<section id="{name}" aria-labelledby="{name}-title"><h2 id="{name}-title">{escape(title)}</h2>\n'
        + "\n".join(parts)
        + "</section>"
    )


def preformatted(text: str, label: str) -> str:
    return (
        f'<pre class="scrolls" tabindex="0" role="region" aria-label="{escape(label, quote=True)}">{escape(text)}</pre>'
    )


def pairs(of: Iterable[tuple[str, str]]) -> str:
    """Terms and what they are."""
    return "<dl>" + "".join(f"<div><dt>{escape(term)}</dt><dd>{escape(said)}</dd></div>" for term, said in of) + "</dl>"

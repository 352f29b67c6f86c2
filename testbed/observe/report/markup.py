"""Parts of an HTML page, accessible without a pointer, without colours and by screen readers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources


@dataclass(frozen=True, slots=True)
class Table:
    """A table. caption: its subject. headed: the first cell of each row is its heading. left: indices of the left-aligned
    columns, which have text."""

    caption: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: frozenset[int] = frozenset({0})
    headed: bool = True
    note: str = ""


def table(content: Table, name: str) -> str:
    """Render a table that scrolls if it is too wide, also by keyboard. name: unique in the page."""

    def cells(row: Sequence[str]) -> str:
        return "".join(
            f'<th scope="row">{escape(text)}</th>'
            if column == 0 and content.headed
            else f"<td{'' if column in content.left else ' class=number'}>{escape(text)}</td>"
            for column, text in enumerate(row)
        )

    head = "".join(
        f'<th scope="col"{"" if column in content.left else " class=number"}>{escape(text)}</th>'
        for column, text in enumerate(content.headings)
    )
    body = "\n".join(f"<tr>{cells(row)}</tr>" for row in content.rows)
    note = f'<p class="note">{escape(content.note)}</p>' if content.note else ""
    return (
        f'<div class="scrolls" role="region" aria-labelledby="{name}" tabindex="0"><table>'
        f'<caption id="{name}">{escape(content.caption)}</caption>'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>{note}"
    )


def details(summary: str, content: str, *, opened: bool = False) -> str:
    """Render content that is hidden until opened."""
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


def description_list(items: Iterable[tuple[str, str]]) -> str:
    """Render terms and their descriptions."""
    return (
        "<dl>"
        + "".join(f"<div><dt>{escape(term)}</dt><dd>{escape(description)}</dd></div>" for term, description in items)
        + "</dl>"
    )


def style() -> str:
    """Return the style sheet of the pages."""
    return resources.files(__package__).joinpath("style.css").read_text(encoding="utf-8")


def complete_page(
    title: str, brand: str, first: tuple[str, str], links: Mapping[str, str], content: str, footer: str
) -> str:
    """Render a self-contained page. first: name and description of its first section, for the skip link. links: titles of
    sections, by name. content, footer: markup."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    navigation = "".join(f'<li><a href="#{name}">{escape(text)}</a></li>' for name, text in links.items())
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}"><link rel="icon" href="data:,">'
        f"<title>{escape(title)} · {brand}</title><style>{style()}</style></head>\n<body>"
        f'<a class="skip" href="#{first[0]}">Skip to {first[1]}</a>'
        f'<header><p class="brand">{brand}</p><h1>{escape(title)}</h1>'
        f'<nav aria-label="Parts of the report"><ul>{navigation}</ul></nav></header>\n<main>'
        f"{content}</main>\n<footer><p>{footer}</p></footer></body></html>\n"
    )

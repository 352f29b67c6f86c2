"""Output of the commands, and options that several of them share.

Text from files, programs or frames cannot act on the terminal: control characters are escaped.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping

import click

_KEPT = "\n\t"
_COLOUR = re.compile(r"(\x1b\[(?:3[123]|0)m)")
_ACTING = ("Cc", "Cf", "Cs", "Zl", "Zp")  # categories: control, format, surrogate, line and paragraph separator

FORMAT = 1  # of every JSON document that the command prints; documents.py describes them

name_option = click.option(
    "--name", metavar="CLUSTER", help="Which cluster; not needed while only one is up.", default=None
)
cluster_argument = click.argument("cluster", required=False, metavar="[CLUSTER]")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON; 'testbed schema COMMAND' describes it.")


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print text of any origin. The colours of `click.style` are kept: they move and hide nothing."""
    if not text.isprintable():
        text = "".join(part if _COLOUR.fullmatch(part) else printable(part) for part in _COLOUR.split(text))
    click.echo(text, err=err, nl=nl)


def printable(text: str) -> str:
    r"""Escape control characters as ``\x1b``; line breaks and tabs are kept."""
    return text if text.isprintable() else "".join(map(_escape, text))


def to_json(document: object, indent: int | None = None) -> str:
    """Format as JSON, with characters that act on a terminal escaped."""
    text = json.dumps(document, indent=indent, ensure_ascii=False)
    return (
        text
        if text.isprintable()
        else "".join(json.dumps(character)[1:-1] if _is_acting(character) else character for character in text)
    )


def _is_acting(character: str) -> bool:
    return character not in _KEPT and unicodedata.category(character) in _ACTING


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode() if _is_acting(character) else character


def print_json(kind: str, document: Mapping[str, object], *, line: bool = False) -> None:
    """Print a document with its kind and format version. line: on one line, as one of several."""
    echo(to_json({"format": FORMAT, "kind": kind, **document}, indent=None if line else 2))


def cluster_named(cluster: str | None, name: str | None) -> str | None:
    """The cluster named by an argument or by --name."""
    if cluster is not None and name is not None and cluster != name:
        raise click.UsageError(f"one cluster: {cluster}, or --name {name}")
    return cluster if cluster is not None else name

"""Options and output that several commands share."""

from __future__ import annotations

import json
from collections.abc import Mapping

import click

FORMAT = 1  # of every JSON document that the command prints; documents.py describes them

name_option = click.option(
    "--name", metavar="CLUSTER", help="Which cluster; not needed while only one is up.", default=None
)
cluster_argument = click.argument("cluster", required=False, metavar="[CLUSTER]")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON; 'testbed schema COMMAND' describes it.")


def print_json(kind: str, document: Mapping[str, object], *, line: bool = False) -> None:
    """Print a document with its kind and the version of its form. line: as one of several, in a line of its own."""
    text = json.dumps({"format": FORMAT, "kind": kind, **document}, indent=None if line else 2, ensure_ascii=False)
    click.echo(text)


def chosen(cluster: str | None, name: str | None) -> str | None:
    """The cluster that is meant where it may be named by an argument or by --name."""
    if cluster is not None and name is not None and cluster != name:
        raise click.UsageError(f"one cluster: {cluster}, or --name {name}")
    return cluster if cluster is not None else name

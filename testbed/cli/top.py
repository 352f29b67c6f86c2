"""``top``: a cluster while it runs, on a whole screen, with keys to make its links worse."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from testbed.cli.options import chosen, cluster_argument, json_option, name_option, print_json

if TYPE_CHECKING:
    from testbed.cluster.state import Store
    from testbed.observe.live.snapshot import Snapshot

_LEAST = 0.1  # s between two looks
_WIDE = 200  # characters of what is printed where no terminal is


@click.command("top", short_help="Watch a cluster: nodes, links, faults, events; inject by keys.")
@cluster_argument
@click.option("--interval", default="1s", show_default=True, metavar="TIME", help="Between two looks.")
@click.option("--once", is_flag=True, help="Print one snapshot, with the rates of one interval.")
@name_option
@json_option
def top_command(cluster: str | None, interval: str, once: bool, name: str | None, as_json: bool) -> None:
    """Watch a cluster in the terminal: nodes with their programs, links with what is declared and injected and what went
    through and was lost, faults, events.

    \b
    arrows, j, k  select     i    inject on the selected link or node: --loss 5% --delay 2ms
    tab           panel      d u  link down, up       f  flap      h H  heal, heal all
    s S           sort       p    pause               ?  help      q    quit

    Without a terminal, with --once or with --json one snapshot is printed.
    """
    from testbed.cluster.state import Store

    seconds = _seconds(interval)
    store, wanted = Store(), chosen(cluster, name)
    if once or as_json or not _terminal():
        _print_once(store, wanted, seconds, as_json=as_json)
        return
    from rich.console import Console

    from testbed.cli.screen.watching import watch
    from testbed.observe.live.gathering import Gathering

    if wanted is not None or store.names():
        store.existing(wanted)  # which one is to be said, and said right; only where none is up one is waited for
    gathering = Gathering(store, wanted)
    try:
        watch(gathering, seconds, Console(), sys.stdin.fileno())
    finally:
        gathering.close()


def _terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") not in (None, "", "dumb", "unknown")


def _print_once(store: Store, name: str | None, seconds: float, *, as_json: bool) -> None:
    snapshot = _snapshot(store, name, seconds)
    if as_json:
        print_json("top", asdict(snapshot))
        return
    from rich.console import Console

    from testbed.cli.screen.frame import page

    console = Console(width=None if sys.stdout.isatty() else _WIDE)
    console.print(page(snapshot, console.width))


def _snapshot(store: Store, name: str | None, seconds: float) -> Snapshot:
    """Of two looks, so that there are rates. NotFoundError says why there is nothing to be seen."""
    from testbed.errors import NotFoundError
    from testbed.observe.live.gathering import Gathering
    from testbed.observe.live.snapshot import Absent

    name = store.existing(name)
    gathering = Gathering(store, name)
    try:
        gathering.look()
        time.sleep(seconds)  # what is measured is what happens meanwhile
        snapshot = gathering.look()
    finally:
        gathering.close()
    if isinstance(snapshot, Absent):
        raise NotFoundError(snapshot.why)
    return snapshot


def _seconds(interval: str) -> float:
    from testbed.spec.units import UnitError, parse_duration

    try:
        seconds = parse_duration(interval) / 1e9
    except UnitError as error:
        raise click.BadParameter(str(error), param_hint="--interval") from error
    if seconds < _LEAST:
        raise click.BadParameter(f"at least {1000 * _LEAST:.0f}ms", param_hint="--interval")
    return seconds

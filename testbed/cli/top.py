"""Command ``top``: a full-screen view of a running cluster, with keys to inject faults."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from testbed.cli.consoles import cluster_argument, cluster_named, json_option, name_option, print_json

if TYPE_CHECKING:
    from testbed.cluster.records.state import Store
    from testbed.observe.live.snapshot import Snapshot

_MIN = 0.1  # s
_WIDE = 200  # columns where there is no terminal


@click.command("top", short_help="Watch a cluster: nodes, links, faults, events; inject by keys.")
@cluster_argument
@click.option("--interval", default="1s", show_default=True, metavar="TIME", help="Time between two snapshots.")
@click.option("--once", is_flag=True, help="Print one snapshot, with the rates of one interval.")
@name_option
@json_option
def top_command(cluster: str | None, interval: str, once: bool, name: str | None, as_json: bool) -> None:
    """Watch a cluster in the terminal: nodes with their programs, links with declared and injected impairments, traffic
    and drops, faults, events.

    \b
    arrows, j, k  select     i    inject on the selected link or node: --loss 5% --delay 2ms
    tab           panel      d u  link down, up       f  flap      h H  heal, heal all
    s S           sort       p    pause               ?  help      q    quit

    Without a terminal, with --once or with --json one snapshot is printed.
    """
    from testbed.cluster.records.state import Store

    seconds = _seconds(interval)
    store, wanted = Store(), cluster_named(cluster, name)
    if once or as_json or not _terminal():
        _print_once(store, wanted, seconds, as_json=as_json)
        return
    from rich.console import Console

    from testbed.cli.screen.live_view import watch
    from testbed.observe.live.snapshots import SnapshotSampler

    if wanted is not None or store.names():
        store.existing(wanted)  # raises for an unknown or ambiguous name; waits only if no cluster is up
    sampler = SnapshotSampler(store, wanted)
    try:
        watch(sampler, seconds, Console(), sys.stdin.fileno())
    finally:
        sampler.close()


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
    """Take a snapshot with rates, from two readings. Raises NotFoundError with the reason if there is none."""
    from testbed.errors import NotFoundError
    from testbed.observe.live.snapshot import Absent
    from testbed.observe.live.snapshots import SnapshotSampler

    name = store.existing(name)
    sampler = SnapshotSampler(store, name)
    try:
        sampler.sample()
        time.sleep(seconds)  # the interval that the rates cover
        snapshot = sampler.sample()
    finally:
        sampler.close()
    if isinstance(snapshot, Absent):
        raise NotFoundError(snapshot.why)
    return snapshot


def _seconds(interval: str) -> float:
    from testbed.spec.units import UnitError, parse_duration

    try:
        seconds = parse_duration(interval) / 1e9
    except UnitError as error:
        raise click.BadParameter(str(error), param_hint="--interval") from error
    if seconds < _MIN:
        raise click.BadParameter(f"at least {1000 * _MIN:.0f}ms", param_hint="--interval")
    return seconds

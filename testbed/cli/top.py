"""Command ``top``: a view of a running cluster, in the terminal or in a browser, from which faults can be injected."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click

from testbed.cli.consoles import cluster_argument, cluster_named, echo, json_option, name_option, print_json

if TYPE_CHECKING:
    from testbed.cli.screen.live_view import Sampler
    from testbed.cluster.records.state import Store

_MIN_INTERVAL = 0.1  # s
_PIPE_WIDTH = 200  # columns without a terminal
_WEB_PACKAGES = ("starlette", "uvicorn", "websockets")


@click.command("top", short_help="Watch a cluster, in the terminal or a browser; inject faults.")
@cluster_argument
@click.option("--interval", default="1s", show_default=True, metavar="TIME", help="Time between two snapshots.")
@click.option("--once", is_flag=True, help="Print one snapshot, with the rates of one interval.")
@click.option("--web", is_flag=True, help="Show it in a browser: print the address of the view, and serve it.")
@click.option("--port", type=click.IntRange(0, 65535), metavar="N", help="Port of --web; default: a free one.")
@name_option
@json_option
def top_command(
    cluster: str | None, interval: str, once: bool, web: bool, port: int | None, name: str | None, as_json: bool
) -> None:
    """Watch a cluster in the terminal: nodes with their programs, links with declared and injected impairments, traffic
    and drops, faults, events.

    \b
    arrows, j, k  select     i    inject on the selected link or node: --loss 5% --delay 2ms
    tab           panel      d u  link down, up       f  flap      h H  heal, heal all
    s S           sort       p    pause               ?  help      q    quit

    Without a terminal, with --once or with --json one snapshot is printed.

    With --web a browser on this machine shows a picture of the cluster, with tables, commands and runs, at the printed
    address, until Ctrl-C.
    """
    from testbed.cluster.records.state import Store

    check_web_options(web, once, as_json, port)
    seconds = seconds_between(interval)
    store, requested = Store(), cluster_named(cluster, name)
    if not web and (once or as_json or not is_terminal()):
        _print_once(store, requested, seconds, as_json=as_json)
        return
    from testbed.observe.live.snapshots import SnapshotSampler

    _check_name(store, requested)
    sampler = SnapshotSampler(store, requested)
    try:
        if web:
            serve_view(sampler, seconds, port or 0)
        else:
            watch_in_terminal(sampler, seconds)
    finally:
        sampler.close()


def watch_in_terminal(sampler: Sampler, interval: float, command_prefix: Sequence[str] = ()) -> None:
    """Show the view in the terminal until the user quits. command_prefix: as for `live_view.watch`."""
    from rich.console import Console

    from testbed.cli.screen.live_view import watch

    watch(sampler, interval, Console(), sys.stdin.fileno(), command_prefix)


def _check_name(store: Store, requested: str | None) -> None:
    """Raise NotFoundError for an unknown or ambiguous name. A view waits only if no cluster is up."""
    if requested is not None or store.names():
        store.existing_name(requested)


def check_web_options(web: bool, once: bool, as_json: bool, port: int | None) -> None:
    """Check the options of a view in a browser. Raises click.UsageError, UnsupportedError if its packages are missing."""
    if port is not None and not web:
        raise click.UsageError("--port goes with --web")
    if not web:
        return
    if once or as_json:
        raise click.UsageError("--web cannot be combined with --once or --json")
    from testbed.errors import UnsupportedError

    if missing := [name for name in _WEB_PACKAGES if find_spec(name) is None]:
        raise UnsupportedError(
            f"the view in a browser needs packages that are not installed ({', '.join(missing)}): "
            "pip install 'netns-testbed[web]'"
        )


def serve_view(sampler: Sampler, interval: float, port: int, file: str = "", cluster: str = "") -> None:
    """Serve the view in a browser until Ctrl-C. file, cluster: machines file and name of a cluster on several machines;
    empty for a cluster on this one."""
    from testbed.cli.run_command import RUNS
    from testbed.cli.web.command_forms import OfferedCommands
    from testbed.cli.web.view_server import serve

    commands = OfferedCommands(file, cluster)
    serve(sampler, interval, port, RUNS, lambda address: echo(f"the view is at {address}\nCtrl-C ends it"), commands)


def is_terminal() -> bool:
    """Whether standard input and output are a terminal that can show a full-screen view."""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") not in (None, "", "dumb", "unknown")


def _print_once(store: Store, name: str | None, seconds: float, *, as_json: bool) -> None:
    from testbed.observe.live.snapshots import SnapshotSampler

    sampler = SnapshotSampler(store, store.existing_name(name))
    try:
        print_snapshot(sampler, seconds, as_json=as_json)
    finally:
        sampler.close()


def print_snapshot(sampler: Sampler, seconds: float, *, as_json: bool) -> None:
    """Print one snapshot, with the rates of an interval. Raises NotFoundError with the reason if there is none."""
    from testbed.errors import NotFoundError
    from testbed.observe.live.snapshot import Absent

    sampler.sample()
    time.sleep(seconds)  # the interval that the rates cover
    snapshot = sampler.sample()
    if isinstance(snapshot, Absent):
        raise NotFoundError(snapshot.why)
    if as_json:
        print_json("top", asdict(snapshot))
        return
    from rich.console import Console

    from testbed.cli.screen.frame import page

    console = Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    console.print(page(snapshot, console.width))


def seconds_between(interval: str) -> float:
    """Parse --interval; return seconds. Raises click.BadParameter."""
    from testbed.spec.units import UnitError, parse_duration

    try:
        seconds = parse_duration(interval) / 1e9
    except UnitError as error:
        raise click.BadParameter(str(error), param_hint="--interval") from error
    if seconds < _MIN_INTERVAL:
        raise click.BadParameter(f"at least {1000 * _MIN_INTERVAL:.0f}ms", param_hint="--interval")
    return seconds

"""``up``, ``down`` and ``gc``: the beginning and the end of clusters."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING

import click

from testbed.cli.options import json_option, name_option, print_json
from testbed.spec.layout import Impairment, Layout

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

    from testbed.cluster.lifecycle import Progress
    from testbed.kernel.datapaths import Asked

_SILENT_SECONDS = 1.0


@click.command("up")
@click.argument("source", metavar="FILE|NAME")
@click.option("--name", metavar="CLUSTER", help="The cluster's name; by default the description's.", default=None)
@click.option("--dry-run", is_flag=True, help="Print the plan, change nothing.")
@click.option(
    "--replace", "replace_other", is_flag=True, help="Take down a cluster of that name from another file first."
)
@click.option(
    "--datapath",
    type=click.Choice(["auto", "netem", "tc", "relay"]),
    default="auto",
    show_default=True,
    help="Who shall carry impaired links; only what is asked for by name may be approximate.",
)
@click.option(
    "--fates",
    type=click.Path(dir_okay=False, resolve_path=True),
    default=None,
    help="Let the relay append every fate that is not a pass to this file; 'inject --replay' repeats them.",
)
@click.option("--unimpaired", is_flag=True, help="Leave out the declared delays, rates and losses of links.")
@json_option
def up_command(
    source: str,
    name: str | None,
    dry_run: bool,
    replace_other: bool,
    datapath: Asked,
    fates: str | None,
    unimpaired: bool,
    as_json: bool,
) -> None:
    """Bring a cluster up: FILE is a description in TOML, NAME one that comes with testbed or star-N for any N.

    A cluster that is up already from the same file is converged: only the difference is made.
    """
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # looking for them costs as much as 20 nodes
    gc.disable()  # so does collecting the garbage of a process that is about to end

    from testbed.cluster.bringing_up import bring_up
    from testbed.cluster.names import check_cluster
    from testbed.cluster.state import Store
    from testbed.cluster.status import carriers_in_words, summary
    from testbed.spec.loading import load
    from testbed.spec.resolving import resolve

    begun = time.monotonic()
    if name is not None:
        check_cluster(name)
    loaded = load(source)
    layout = resolve(loaded.description)
    if unimpaired:
        layout = _without_impairments(layout)
    cluster = name or layout.name
    with _progress("bringing up " + cluster) as progress:
        outcome = bring_up(
            Store(),
            layout,
            name=cluster,
            origin=loaded.origin,
            lasting=True,
            replace_other=replace_other,
            dry_run=dry_run,
            progress=progress,
            asked="relay" if fates and datapath == "auto" else datapath,
            log=fates or "",
        )
    state = outcome.state
    operations = [str(operation) for operation in outcome.operations]
    if as_json:
        carriers = [
            {"name": link, "datapath": carrier, "notes": list(state.notes.get(link, ()))}
            for link, carrier in state.datapaths.items()
        ]
        print_json(
            "up",
            {
                "cluster": cluster,
                "origin": loaded.origin,
                "dry_run": dry_run,
                "operations": operations,
                "impaired": carriers,
            },
        )
    elif dry_run:
        click.echo("\n".join(operations) if operations else f"{cluster} is as described: nothing to do")
    elif not operations:
        click.echo(f"{cluster} is up as described: nothing to do")
    else:
        took = time.monotonic() - begun
        count = f"{len(operations)} operation" + ("s" if len(operations) != 1 else "")
        click.echo(f"{cluster} is up: {summary(layout)} ({count}, {took:.2f} s)")
    if not as_json:
        for line in carriers_in_words(state):
            click.echo(f"  {line}")


def _without_impairments(layout: Layout) -> Layout:
    links = tuple(replace(link, forward=Impairment(), backward=Impairment()) for link in layout.links)
    return replace(layout, links=links)


@click.command("down")
@name_option
@click.option("--grace", type=click.FloatRange(min=0), default=1.0, show_default=True, metavar="SECONDS",
              help="How long programs get between SIGTERM and SIGKILL.")  # fmt: skip
@click.option("--all", "everything", is_flag=True, help="Every cluster of yours that is up.")
@json_option
def down_command(name: str | None, grace: float, everything: bool, as_json: bool) -> None:
    """Take a cluster down: end its programs, remove all that was made for it."""
    from testbed.cluster.removal import down
    from testbed.cluster.state import Store

    if everything and name is not None:
        raise click.UsageError("--all and --name exclude each other")
    store = Store()
    chosen = store.names() if everything else [store.existing(name)]
    with _progress("taking down " + ", ".join(chosen)) as progress:
        for number, cluster in enumerate(chosen):
            progress(number, len(chosen))
            down(store, cluster, grace)
    if as_json:
        print_json("down", {"clusters": chosen})
    else:
        for cluster in chosen:
            click.echo(f"{cluster} is down")


@click.command("gc")
@json_option
def gc_command(as_json: bool) -> None:
    """Remove what clusters left whose owner has died, and nothing else; runs that were killed leave directories, too.

    Clusters that are up stay. What cannot be judged from here (another boot, another pid namespace) is reported.
    """
    from testbed.cluster.collecting import collect
    from testbed.cluster.state import Store

    with _progress("collecting"):
        findings = collect(Store())
    if as_json:
        shown = [{"what": item.what, "removed": item.removed, "reason": item.reason} for item in findings]
        print_json("gc", {"findings": shown})
        return
    for item in findings:
        click.echo(f"{'removed' if item.removed else 'left'} {item.what}: {item.reason}")
    if not findings:
        click.echo("nothing to collect")


@contextmanager
def _progress(what: str) -> Iterator[Progress]:
    """Progress on standard error, once a thing has taken more than a second: a bar in a terminal, else a line at times."""
    begun = told = time.monotonic()
    with ExitStack() as stack:
        bars: list[Bar] = []

        def say(_number: int, _frame: FrameType | None) -> None:
            """Whatever it is that takes so long, another command's lock or a program that does not end: it is going on."""
            if not bars:
                click.echo(f"{what} ...", err=True)

        signal.signal(signal.SIGALRM, say)
        signal.setitimer(signal.ITIMER_REAL, _SILENT_SECONDS)
        stack.callback(signal.setitimer, signal.ITIMER_REAL, 0)

        def show(done: int, total: int) -> None:
            nonlocal told
            now = time.monotonic()
            if now - begun < _SILENT_SECONDS:
                return
            if not sys.stderr.isatty():
                if now - told >= _SILENT_SECONDS:
                    click.echo(f"{what}: {done} of {total} done", err=True)
                    told = now
                return
            if not bars:
                from rich.console import Console
                from rich.progress import Progress as RichProgress

                bars.append(stack.enter_context(RichProgress(console=Console(stderr=True), transient=True)))
                bars[0].add_task(what, total=total)
            bars[0].update(bars[0].task_ids[0], completed=done)

        yield show

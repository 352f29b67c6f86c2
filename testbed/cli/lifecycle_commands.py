"""Commands ``up``, ``down``, ``gc`` and ``nics``: bring clusters up, take them down, remove their remains, share NICs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from testbed.cli.collector import collector_off
from testbed.cli.consoles import (
    cluster_argument,
    cluster_named,
    echo,
    json_option,
    name_option,
    print_json,
    print_warnings,
    stop_descriptor,
)
from testbed.cli.progress_display import step_progress
from testbed.registry import DEFAULT_PROTOCOL
from testbed.spec.layout import Impairment, Layout

if TYPE_CHECKING:
    from testbed.cluster.lifecycle import ApplyResult
    from testbed.cluster.records.state import Store
    from testbed.spec.layout import ConfiguredDatapath


@click.command("up")
@click.argument("source", metavar="FILE|NAME")
@click.option("--name", metavar="CLUSTER", help="Name of the cluster; default: the description's.", default=None)
@click.option("--dry-run", is_flag=True, help="Print the plan, change nothing.")
@click.option(
    "--replace",
    "replace_other",
    is_flag=True,
    help="First take down a cluster of that name from another file, or this file's cluster under a former name.",
)
@click.option(
    "--datapath",
    type=click.Choice(["auto", "netem", "tc", "relay"]),
    default="auto",
    show_default=True,
    help="Datapath of impaired links; only a datapath selected by name may be approximate.",
)
@click.option(
    "--fates",
    type=click.Path(dir_okay=False, resolve_path=True),
    default=None,
    help="Let the relay append every fate other than a pass to this file; 'inject --replay' repeats them.",
)
@click.option("--unimpaired", is_flag=True, help="Leave out the declared delays, rates and losses of links.")
@json_option
@collector_off()
def up_command(
    source: str,
    name: str | None,
    dry_run: bool,
    replace_other: bool,
    datapath: ConfiguredDatapath,
    fates: str | None,
    unimpaired: bool,
    as_json: bool,
) -> None:
    """Bring a cluster up: FILE is a description in TOML, NAME one that comes with testbed or star-N for any N.

    A cluster that is already up from the same file is converged: only the differences are applied.
    """
    from testbed.cluster.plan.namespace_names import check_cluster
    from testbed.cluster.records.state import Store
    from testbed.cluster.records.status import summary
    from testbed.cluster.startup import bring_up, former_names
    from testbed.spec.loader import load
    from testbed.spec.resolver import resolve

    start_time = time.monotonic()
    if name is not None:
        check_cluster(name)
    store = Store()
    with step_progress("bringing up " + (name or source)) as progress:
        loaded = load(source)
        layout = resolve(loaded.description)
        if unimpaired:
            layout = _without_impairments(layout)
        cluster = name or layout.name
        result = bring_up(
            store,
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
    former = former_names(store, layout, loaded.origin)
    if replace_other and not dry_run:  # only after the new cluster is up, so that a failure changes nothing
        _take_down_former(store, former)
        former = []
    seconds = time.monotonic() - start_time
    warnings = loaded.description.warnings()
    if as_json:
        _print_up_json(result, cluster, loaded.origin, former, warnings, dry_run=dry_run)
    else:
        _print_up(result, cluster, summary(layout), seconds, dry_run=dry_run)
    print_warnings(warnings)
    for former_name in former:
        echo(
            f"warning: {former_name} is still up: it was brought up from this file before the file named its cluster "
            f"{layout.name}; 'testbed down {former_name}' or 'testbed up --replace {source}' takes it down",
            err=True,
        )


def _take_down_former(store: Store, former: Sequence[str]) -> None:
    from testbed.cluster.removal import down

    for former_name in former:
        down(store, former_name)
        echo(f"{former_name}, the cluster's former name, is down", err=True)


def _print_up_json(
    result: ApplyResult, cluster: str, origin: str, former: Sequence[str], warnings: Sequence[str], *, dry_run: bool
) -> None:
    state = result.state
    impaired_links = [
        {"name": link, "datapath": datapath, "notes": list(state.notes.get(link, ()))}
        for link, datapath in state.datapaths.items()
    ]
    print_json(
        "up",
        {
            "cluster": cluster,
            "origin": origin,
            "dry_run": dry_run,
            "operations": [str(operation) for operation in result.operations],
            "impaired": impaired_links,
            "former": former,
            "warnings": warnings,
        },
    )


def _print_up(result: ApplyResult, cluster: str, layout_summary: str, seconds: float, *, dry_run: bool) -> None:
    """Print the result of `up`. seconds: duration of the command."""
    from testbed.cluster.records.status import describe_datapaths

    operations = [str(operation) for operation in result.operations]
    if not operations and not result.changed:
        as_described = "is as described" if dry_run else "is up as described"
        echo(f"{cluster} {as_described}: nothing to do")
    elif dry_run:
        echo("\n".join(operations) or "no kernel operation: only the relay gets new impairments")
    else:
        count = f"{len(operations)} operation" + ("s" if len(operations) != 1 else "")
        status = "changed" if result.changed else "up"
        echo(f"{cluster} is {status}: {layout_summary} ({count}, {seconds:.2f} s)")
    for line in describe_datapaths(result.state):
        echo(f"  {line}")


def _without_impairments(layout: Layout) -> Layout:
    links = tuple(replace(link, forward=Impairment(), backward=Impairment()) for link in layout.links)
    return replace(layout, links=links)


_MAX_GRACE = 86_400  # seconds; in milliseconds, it fits the 31 bits of poll's time-out


def _check_grace(_ctx: click.Context, _param: click.Parameter, seconds: float) -> float:
    if not 0 <= seconds <= _MAX_GRACE:  # also false for nan
        raise click.BadParameter(f"{seconds:g} is not in the range 0 to {_MAX_GRACE:,} seconds")
    return seconds


@click.command("down")
@cluster_argument
@name_option
@click.option("--grace", type=float, default=1.0, show_default=True, metavar="SECONDS", callback=_check_grace,
              help="Time between SIGTERM and SIGKILL.")  # fmt: skip
@click.option("--all", "all_clusters", is_flag=True, help="Every running cluster of yours.")
@json_option
@collector_off()
def down_command(cluster: str | None, name: str | None, grace: float, all_clusters: bool, as_json: bool) -> None:
    """Take a cluster down: stop its programs, and remove all its objects."""
    from testbed.cluster.records.state import Store
    from testbed.cluster.removal import down

    requested = cluster_named(cluster, name)
    if all_clusters and requested is not None:
        raise click.UsageError("--all and a cluster's name exclude each other")
    store = Store()
    names = store.names() if all_clusters else [store.existing_name(requested)]
    with step_progress("taking down " + ", ".join(names)) as progress:
        for number, cluster_name in enumerate(names):
            progress(number, len(names))
            down(store, cluster_name, grace)
    if as_json:
        print_json("down", {"clusters": names})
    else:
        for cluster_name in names:
            echo(f"{cluster_name} is down")


@click.command("gc")
@json_option
def gc_command(as_json: bool) -> None:
    """Remove the remains of clusters whose owner has died, and directories of killed runs; nothing else.

    Clusters that are up stay. Remains of owners that cannot be checked here (another boot or pid namespace) are reported.
    """
    from testbed.cluster.garbage import collect
    from testbed.cluster.records.state import Store

    with step_progress("collecting"):
        findings = collect(Store())
    if as_json:
        shown = [{"what": item.what, "removed": item.removed, "reason": item.reason} for item in findings]
        print_json("gc", {"findings": shown})
        return
    for item in findings:
        echo(f"{'removed' if item.removed else 'left'} {item.what}: {item.reason}")
    if not findings:
        echo("nothing to collect")


@click.command("nics", short_help="Share the NICs of a cluster, for scripts that attach.")
@click.option("--protocol", default=DEFAULT_PROTOCOL, show_default=True, metavar="NAME", help="Protocol of the NICs.")
@click.option(
    "--functions",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    metavar="N",
    help="Maximum number of attached processes per node.",
)
@cluster_argument
@name_option
def nics_command(protocol: str, functions: int, cluster: str | None, name: str | None) -> None:
    """Share every node's first NIC until Ctrl-C: an agent process runs its firmware, and scripts attach to it.

    \b
    testbed nics --functions 2 &
    testbed exec n1 -- python my.py     the script calls testbed.attach

    'testbed status' shows the agents and the attached processes. An agent that dies is restarted; 'testbed events'
    reports it.
    """
    from testbed.cluster.records.state import Store
    from testbed.cluster.running_cluster import RunningCluster
    from testbed.controller.shared_nics import share_nics

    store = Store()
    running = RunningCluster(store, store.choose(cluster_named(cluster, name)))
    stop = stop_descriptor()
    with share_nics(running, protocol, functions=functions) as sharing:
        echo(f"the NICs of {running.name} are shared: Ctrl-C ends it", err=True)
        sharing.supervise(stop)

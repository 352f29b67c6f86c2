"""Commands ``machines inject``, ``link``, ``partition``, ``load`` and ``heal``: faults in a cluster spread over machines."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from testbed.cli.consoles import json_option, seconds_of
from testbed.cli.fault_commands import (
    for_option,
    groups_of,
    impairment_options,
    print_healed,
    print_injection,
    rate_of,
    share_of,
)
from testbed.cli.machine_group import file_argument, running_workers

if TYPE_CHECKING:
    from testbed.machines.spread_faults import Compose, SpreadInjected

cluster_argument = click.argument("cluster")


def _inject(file: Path, cluster: str, compose: Compose, duration: str | None, as_json: bool) -> None:
    """Inject a composed fault, and print it. duration: value of --for."""
    from testbed.machines import spread_faults

    seconds = seconds_of(duration)
    with running_workers(file) as running:
        _print(cluster, spread_faults.inject(running, cluster, compose, seconds), as_json)


def _print(cluster: str, injected: SpreadInjected, as_json: bool) -> None:
    print_injection(cluster, injected.injection, dict(sorted(injected.datapaths.items())), injected.took, as_json)


@click.command("inject")
@file_argument
@cluster_argument
@click.argument("target", nargs=-1, required=True, metavar="LINK|NODE|@TAG|all ...")
@partial(impairment_options, files=False)
@click.option("--rule", "rules", multiple=True, metavar="'RULE'", help="A fault rule: 'drop udp and nth(3)'.")
@click.option(
    "--direction", metavar="A-B|out|in", default="", help="From A to B, out of the node or into it; default: both."
)
@for_option
@json_option
def inject_command(
    file: Path,
    cluster: str,
    target: tuple[str, ...],
    rules: Sequence[str],
    direction: str,
    duration: str | None,
    as_json: bool,
    **impairments: Any,
) -> None:
    """Impair links of a running cluster, within and between machines, as 'testbed inject' does on one.

    When the command returns, the impairment is in force on every machine, for the next frame that enters the link.
    """
    from testbed.cluster.faults import fault_injection
    from testbed.spec.elements import Impairments

    keys = Impairments(**{key: value for key, value in impairments.items() if value is not None}).explicit()
    compose = partial(fault_injection.compose_impairment, target=target, keys=keys, rules=rules, direction=direction)
    _inject(file, cluster, compose, duration, as_json)


@click.command("link")
@file_argument
@cluster_argument
@click.argument("target", metavar="LINK|NODE|@TAG|all")
@click.argument("action", type=click.Choice(["down", "up", "flap"]))
@for_option
@json_option
def link_command(file: Path, cluster: str, target: str, action: str, duration: str | None, as_json: bool) -> None:
    """Unplug cables at both ends (down), plug them in again (up), or both (flap: down for one second, or --for)."""
    from testbed.cluster.faults import fault_injection
    from testbed.machines import spread_faults

    if action == "up":
        if duration is not None:
            raise click.UsageError("--for goes with 'down' and 'flap'")
        with running_workers(file) as running:
            print_healed(cluster, spread_faults.heal_cut(running, cluster, target), as_json)
        return
    down_time = duration or ("1s" if action == "flap" else None)
    _inject(file, cluster, lambda layout, _: fault_injection.compose_cut(layout, target), down_time, as_json)


@click.command("partition")
@file_argument
@cluster_argument
@click.argument("groups", nargs=-1, required=True, metavar="NODE[,NODE...] / NODE[,NODE...] ...")
@for_option
@json_option
def partition_command(file: Path, cluster: str, groups: Sequence[str], duration: str | None, as_json: bool) -> None:
    """Block all traffic between groups of nodes, wherever they are, as 'testbed partition' does on one machine."""
    from testbed.cluster.faults import fault_injection

    node_groups = groups_of(groups)
    _inject(file, cluster, lambda layout, _: fault_injection.compose_partition(layout, node_groups), duration, as_json)


@click.command("load")
@file_argument
@cluster_argument
@click.argument("nodes", nargs=-1, required=True, metavar="NODE | RECEIVER | SENDER... RECEIVER")
@click.option("--cpu", metavar="SHARE", help="Load this share of a processor: 50%, 200% for two.")
@click.option("--rate", metavar="RATE", help="Let each sender send at this rate: 500mbit.")
@for_option
@json_option
def load_command(
    file: Path,
    cluster: str,
    nodes: Sequence[str],
    cpu: str | None,
    rate: str | None,
    duration: str | None,
    as_json: bool,
) -> None:
    """Load a node's processors (--cpu), or send datagrams to the last node from the others (--rate). If only the receiver is
    named, all other nodes send."""
    from testbed.machines import spread_faults

    if (cpu is None) == (rate is None) or (cpu is not None and len(nodes) != 1):
        raise click.UsageError("give --cpu and one node, or --rate, the senders and, last, the receiver")
    seconds = seconds_of(duration)
    with running_workers(file) as running:
        if cpu is not None:
            injected = spread_faults.load_processor(running, cluster, nodes[0], share_of(cpu), seconds)
        else:
            assert rate is not None
            injected = spread_faults.load_link(running, cluster, nodes[:-1], nodes[-1], rate_of(rate), seconds)
    _print(cluster, injected, as_json)


@click.command("heal")
@file_argument
@cluster_argument
@click.argument("numbers", nargs=-1, type=int, metavar="[NUMBER...]")
@json_option
def heal_command(file: Path, cluster: str, numbers: Sequence[int], as_json: bool) -> None:
    """Lift all injections of a cluster, or those with these numbers; 'testbed machines status' shows them."""
    from testbed.machines import spread_faults

    with running_workers(file) as running:
        print_healed(cluster, spread_faults.heal(running, cluster, numbers), as_json)

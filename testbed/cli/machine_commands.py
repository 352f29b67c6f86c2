"""Commands ``machines check``, ``up``, ``down``, ``exec``, ``shell``, ``status`` and ``gc``: clusters spread over machines.
Commands for faults are in `machine_fault_commands`; ``run``, ``capture`` and ``top`` in `machine_run_commands`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from testbed.cli.consoles import echo, json_option, print_json, print_warnings, to_seconds
from testbed.cli.machine_group import file_argument, reachable_workers, running_workers

if TYPE_CHECKING:
    from testbed.machines.machine_check import MachineFinding
    from testbed.machines.node_placement import Constraints
    from testbed.machines.spread import SpreadPlan
    from testbed.spec.layout import ConfiguredDatapath, Layout
    from testbed.spec.machines import Machine

_MAX_SHOWN = 8  # nodes or switches of a machine; --json has all


@click.command("check")
@file_argument
@click.argument("cluster", required=False)
@click.argument("target", metavar="[LINK|NODE|@TAG|all]", required=False)
@click.option(
    "--seconds",
    callback=to_seconds,
    metavar="SECONDS",
    help="Time of probing; default: as long as the impairments need, 2 to 20.",
)
@json_option
@click.pass_context
def check_command(
    ctx: click.Context, file: Path, cluster: str | None, target: str | None, seconds: float | None, as_json: bool
) -> None:
    """Check the machines of FILE, or the links of a cluster on them.

    \b
    testbed machines check lab.toml            log in to each machine, and report its features, as 'doctor' does
    testbed machines check lab.toml star       every direction of a link that is impaired, as 'testbed check' does
    testbed machines check lab.toml star all   all links

    Links between machines are probed, too, except for their rate. Exit code 1 if a machine cannot be used; for a cluster
    the exit codes are those of 'testbed check'.
    """
    if cluster is not None:
        ctx.exit(_check_links(file, cluster, target, seconds, as_json))
    if seconds is not None:
        raise click.UsageError("--seconds needs a cluster whose links are probed")
    from testbed.machines.machine_check import check
    from testbed.spec.machines import load

    machines = load(file).machines
    findings = check(machines)
    if as_json:
        print_json("machines-check", {"machines": [_document(finding) for finding in findings]})
    else:
        for index, finding in enumerate(findings):
            if index:
                echo()
            _print(finding)
    if any(finding.problem for finding in findings):
        raise SystemExit(1)


def _check_links(file: Path, cluster: str, target: str | None, seconds: float | None, as_json: bool) -> int:
    """Check the links of a cluster; return the exit code."""
    from testbed.cli.check import print_verdict, slow_factor
    from testbed.controller.runs.run_options import check_seconds
    from testbed.controller.spread_check import check
    from testbed.controller.verdict.thresholds import Table
    from testbed.errors import DescriptionError

    if problems := check_seconds("seconds", seconds):
        raise DescriptionError("the check", problems)
    table = Table(slow=slow_factor())
    with running_workers(file) as running:
        verdict = check(running, cluster, target, seconds, table=table)
    return print_verdict(cluster, verdict, None, as_json)


def _document(finding: MachineFinding) -> dict[str, object]:
    machine = finding.machine
    return {
        "name": machine.name,
        "address": machine.address or machine.name,
        "usable": not finding.problem,
        "problem": finding.problem,
        "report": None if finding.report is None else asdict(finding.report),
    }


def _print(finding: MachineFinding) -> None:
    machine, report = finding.machine, finding.report
    verdict = click.style("no", fg="red") if finding.problem else click.style("yes", fg="green")
    echo(f"{machine.name}: {verdict}" + (f", {finding.problem}" if finding.problem else ""))
    if report is None:
        return
    from testbed.cli.doctor import print_capabilities

    underlay = f", underlay MTU {report.underlay_mtu:,}" if report.underlay_mtu else ""
    echo(
        f"  {report.host_name}: {report.cores} cores, {report.memory / 2**30:.1f} GiB, Linux {report.kernel}, "
        f"Python {report.python}, testbed {report.version}{underlay}"
    )
    print_capabilities(report.capabilities, "  ")


@click.command("up")
@file_argument
@click.argument("source", metavar="FILE|NAME")
@click.option("--name", metavar="CLUSTER", help="Name of the cluster; default: the description's.", default=None)
@click.option(
    "--pin", "pins", multiple=True, metavar="NODES=MACHINE", help="Place nodes (a name, or @TAG) on a machine."
)
@click.option("--exclude", "exclusions", multiple=True, metavar="NODES=MACHINE", help="Keep nodes off a machine.")
@click.option("--dry-run", is_flag=True, help="Print the placement, change nothing.")
@click.option("--datapath", type=click.Choice(["auto", "netem", "tc", "relay"]), default="auto", show_default=True,
              help="Datapath of impaired links within a machine; the relay carries those between machines.")  # fmt: skip
@json_option
def up_command(
    file: Path,
    source: str,
    name: str | None,
    pins: tuple[str, ...],
    exclusions: tuple[str, ...],
    dry_run: bool,
    datapath: ConfiguredDatapath,
    as_json: bool,
) -> None:
    """Spread a cluster over the machines of FILE so that the total rate of links between machines is small."""
    from testbed.cluster.plan.namespace_names import check_cluster
    from testbed.machines import spread
    from testbed.spec import machines
    from testbed.spec.loader import load
    from testbed.spec.resolver import resolve

    loaded = load(source)
    layout = resolve(loaded.description)
    cluster = check_cluster(name or layout.name)
    constraints = constraints_of(layout, machines.load(file).machines, pins, exclusions)
    with running_workers(file) as running:
        plan = spread.plan_spread(running, layout, cluster, constraints)
        results = {} if dry_run else spread.up(running, plan, cluster, loaded.origin, datapath)
    print_warnings(loaded.description.warnings())
    operations = {machine: result["operations"] for machine, result in results.items()}
    if as_json:
        changed = [machine for machine, result in results.items() if result["changed"]]
        print_json("machines-up", {"cluster": cluster, "dry_run": dry_run, "operations": operations, **_plan_document(plan),
                                   "changed": changed})  # fmt: skip
        return
    if not dry_run:
        echo(f"{cluster} is up on {', '.join(operations)}: {sum(operations.values())} operations")
    _print_plan(plan)


def constraints_of(
    layout: Layout, machines: Sequence[Machine], pins: Sequence[str], exclusions: Sequence[str]
) -> Constraints:
    """Parse pins and exclusions, each NODES=MACHINE. Raises NotFoundError, ConflictError, click.BadParameter."""
    from testbed.errors import ConflictError
    from testbed.machines.node_placement import Constraints

    pinned: dict[str, str] = {}
    excluded: dict[str, set[str]] = {}
    for text in pins:
        names, machine = _names_on(layout, machines, text, "--pin")
        for name in names:
            if pinned.setdefault(name, machine) != machine:
                raise ConflictError(f"{name} is pinned to two machines: {pinned[name]} and {machine}")
    for text in exclusions:
        names, machine = _names_on(layout, machines, text, "--exclude")
        for name in names:
            excluded.setdefault(name, set()).add(machine)
    return Constraints(pinned, excluded)


def _names_on(layout: Layout, machines: Sequence[Machine], text: str, option: str) -> tuple[list[str], str]:
    """Parse NODES=MACHINE; return the names and the machine. NODES may also be a switch."""
    from testbed.errors import NotFoundError, did_you_mean
    from testbed.spec.selection import nodes_of

    target, equals, machine = text.rpartition("=")
    if not equals or not target:
        raise click.BadParameter(f"{text!r} is not of the form NODES=MACHINE", param_hint=option)
    known = [known_machine.name for known_machine in machines]
    if machine not in known:
        raise NotFoundError(f"{option} {text}: the file has no machine {machine!r}{did_you_mean(machine, known)}")
    if target in {switch.name for switch in layout.switches}:
        return [target], machine
    return nodes_of(layout, [target]), machine


def _plan_document(plan: SpreadPlan) -> dict[str, object]:
    return {
        "machines": {machine: sorted(plan.placement.on(machine)) for machine in plan.parts},
        "cut": {"links": list(plan.placement.cut), "rate": plan.placement.rate},
        "underlays": [asdict(underlay) for underlay in plan.underlays],
    }


def _join_names(names: Sequence[str]) -> str:
    more = len(names) - _MAX_SHOWN
    return ", ".join(names[:_MAX_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _print_plan(plan: SpreadPlan) -> None:
    from testbed.spec.units import format_duration, format_rate

    for machine, part in plan.parts.items():
        nodes = _join_names([node.name for node in part.nodes])
        switches = _join_names([switch.name for switch in part.switches])
        echo(f"  {machine}: {nodes or 'no nodes'}" + (f"; {switches}" if switches else ""))
    cut = plan.placement.cut
    if not cut:
        echo("  no link crosses between machines")
        return
    echo(f"  {len(cut)} of the links cross between machines, with {format_rate(plan.placement.rate)} together")
    for underlay in plan.underlays:
        loss = f", {underlay.loss:.0%} lost" if underlay.loss else ""
        echo(f"  {' - '.join(underlay.machines)}: round trip {format_duration(underlay.round_trip)}{loss}")


@click.command("down")
@file_argument
@click.argument("cluster")
@json_option
def down_command(file: Path, cluster: str, as_json: bool) -> None:
    """Take a cluster down on every machine of FILE.

    If a machine cannot be reached, the cluster is taken down on the others, and the exit code is 1; 'testbed machines gc'
    removes its part once the machine is back.
    """
    from testbed.errors import NotFoundError
    from testbed.machines import spread

    with reachable_workers(file) as (running, unreachable):
        try:
            stopped = spread.down(running, cluster)
        except NotFoundError:
            if not unreachable:
                raise
            stopped = []
    if as_json:
        print_json("machines-down", {"cluster": cluster, "machines": stopped, "unreachable": unreachable})
    elif stopped:
        echo(f"{cluster} is down on {', '.join(stopped)}")
    for sentence in unreachable.values():
        echo(f"testbed: {sentence}: its part of {cluster} stays until 'testbed machines gc'", err=True)
    if unreachable:
        raise SystemExit(1)


@click.command("exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@file_argument
@click.argument("cluster")
@click.argument("node")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True, metavar="-- COMMAND [ARGUMENT]...")
def exec_command(file: Path, cluster: str, node: str, command: tuple[str, ...]) -> None:
    """Run a program in a node, named or by its tag (@TAG), on whichever machine has the node.

    Standard input and output are forwarded over the connection to the machine's worker. If both are a terminal, the program
    gets a terminal there. The exit code is the program's.
    """
    _attach(file, cluster, node, command[1:] if command[0] == "--" else command)


@click.command("shell")
@file_argument
@click.argument("cluster")
@click.argument("node")
def shell_command(file: Path, cluster: str, node: str) -> None:
    """Open a shell ($SHELL of the account there, else /bin/sh) in a node, on whichever machine has the node."""
    command = ["sh", "-c", 'exec "${SHELL:-/bin/sh}"']
    _attach(file, cluster, node, command, debian_chroot=node)  # shown by Debian's shell prompts


def _attach(file: Path, cluster: str, node: str, command: Sequence[str], **environment: str) -> None:
    """Run a program in a node, with this process's streams or terminal, and exit with its code."""
    from testbed.errors import NotFoundError, TestbedError
    from testbed.machines.program_client import run_attached
    from testbed.machines.spread_faults import machine_of, spread_state
    from testbed.spec.selection import SELECTOR, node_of

    if not command:
        raise click.UsageError("which program? Write: testbed machines exec FILE CLUSTER NODE -- COMMAND [ARGUMENT]...")
    with reachable_workers(file) as (running, unreachable):
        try:
            state = spread_state(running, cluster)
            name = node_of(state.layout, node) if node.startswith(SELECTOR) else node
            worker = running[machine_of(state, cluster, name)]
        except NotFoundError as error:
            if unreachable:
                raise TestbedError("\n".join(unreachable.values())) from error
            raise
        code = run_attached(worker, cluster, name, command, environment)
    raise SystemExit(code if code >= 0 else 128 - code)


@click.command("status")
@file_argument
@click.argument("cluster")
@json_option
def status_command(file: Path, cluster: str, as_json: bool) -> None:
    """Show a cluster's nodes and links, machine by machine. Exit code 1 if a machine cannot be reached."""
    from testbed.machines import spread

    with reachable_workers(file) as (running, unreachable):
        parts = spread.status(running, cluster)
    if as_json:
        print_json("machines-status", {"cluster": cluster, "machines": parts, "unreachable": unreachable})
    else:
        for machine, part in parts.items():
            _print_status(machine, part)
        for machine, sentence in unreachable.items():
            echo(f"{machine}: {click.style('unreachable', fg='red')}: {sentence}")
    if unreachable:
        raise SystemExit(1)


def _print_status(machine: str, part: Mapping[str, Any]) -> None:
    echo(f"{machine}: {len(part['nodes'])} nodes, {len(part['links'])} links")
    for node in part["nodes"]:
        programs = f", programs {', '.join(map(str, node['programs']))}" if node["programs"] else ""
        echo(f"  {node['name']}: {'up' if node['exists'] else 'GONE'}{programs}")
    for link in part["links"]:
        if not (link["exists"] and link["up"]):
            echo(f"  {link['name']}: {'down' if link['exists'] else 'GONE'}")
    for number, what in part["injected"]:
        echo(f"  {number}: {what}")
    for sentence in part["missing"]:
        echo(f"  {sentence}")


@click.command("gc")
@file_argument
@json_option
def gc_command(file: Path, as_json: bool) -> None:
    """Remove the remains of clusters on every machine of FILE, as 'testbed gc' does on one.

    They include a part of a cluster whose other parts are all gone, as on a machine that was unreachable while the cluster
    was taken down.
    """
    from testbed.machines import spread

    with running_workers(file) as running:
        findings = spread.collect(running)
    if as_json:
        print_json("machines-gc", {"machines": findings})
        return
    for machine, machine_findings in findings.items():
        for finding in machine_findings:
            echo(f"{machine}: {'removed' if finding['removed'] else 'left'} {finding['what']}: {finding['reason']}")
    if not any(findings.values()):
        echo("nothing to collect")

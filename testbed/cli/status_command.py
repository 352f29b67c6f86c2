"""Command ``status``: nodes, links and counters of running clusters."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from testbed.cli.collector import collector_off
from testbed.cli.consoles import cluster_argument, cluster_named, echo, format_age, json_option, name_option, print_json
from testbed.errors import TestbedError, reason_of
from testbed.spec.layout_json import impairment_to_json
from testbed.spec.selection import SELECTOR

if TYPE_CHECKING:
    from testbed.cluster.faults.injections import Injection
    from testbed.cluster.records.state import SharedNics
    from testbed.cluster.records.status import AgentStatus, ClusterStatus, DirectionCounters, LinkStatus
    from testbed.spec.layout import Impairment


@click.command("status")
@cluster_argument
@name_option
@json_option
@collector_off()
def status_command(cluster: str | None, name: str | None, as_json: bool) -> None:
    """Show the nodes, links and counters of a cluster that is up; without a name, of all clusters."""
    from testbed.cluster.records.state import Store
    from testbed.cluster.records.status import status

    store, requested = Store(), cluster_named(cluster, name)
    names = [store.existing_name(requested)] if requested is not None else store.names()
    statuses: list[ClusterStatus] = []
    failures: list[TestbedError] = []
    for cluster_name in names:
        try:
            statuses.append(status(store.choose(cluster_name)))
        except TestbedError as error:  # the other clusters are still shown
            failures.append(error)
        except OSError as error:
            failures.append(TestbedError(f"cluster {cluster_name} cannot be examined: {reason_of(error)}"))
    if as_json:
        print_json("status", {"clusters": [_document(shown) for shown in statuses]})
    elif not names:
        echo("no cluster is up; 'testbed up star-4' brings one up")
    else:
        for shown in statuses:
            _print(shown)
    if failures:
        raise failures[0]


def _document(status: ClusterStatus) -> Mapping[str, object]:
    state = status.state
    by_end = {(end.owner, end.port): link.link.name for link in status.links for end in (link.link.a, link.link.b)}
    node_statuses = {node.name: node for node in status.nodes}
    return {
        "name": state.name,
        "origin": state.origin,
        "phase": state.phase,
        "lasting": state.lasting,
        "owner": state.owner.pid,
        "created": state.created,
        "nodes": [
            {
                "name": node.name,
                "tags": list(node.tags),
                "namespace": state.namespaces.get(node.name, ""),
                "exists": node_statuses[node.name].exists,
                "programs": list(node_statuses[node.name].programs),
                "agent": _agent_document(node_statuses[node.name].agent),
                "nics": [
                    {
                        "name": nic.name,
                        "mac": nic.mac,
                        "mtu": nic.mtu,
                        "addresses": list(nic.addresses),
                        "link": by_end.get((node.name, nic.name), ""),
                    }
                    for nic in node.nics
                ],
            }
            for node in state.layout.nodes
        ],
        "switches": [
            {
                "name": switch.name,
                "kind": switch.kind,
                "learns": switch.learns,
                "ports": [
                    {"number": number, "link": by_end.get((switch.name, str(number)), "")} for number in switch.ports
                ],
            }
            for switch in state.layout.switches
        ],
        "links": [
            {
                "name": link.link.name,
                "tags": list(link.link.tags),
                "a": str(link.link.a),
                "b": str(link.link.b),
                "datapath": link.datapath,
                "notes": list(state.notes.get(link.link.name, ())),
                "exists": link.exists,
                "up": link.up,
                "forward": _direction_document(link.forward, link.forward_impairment),
                "backward": _direction_document(link.backward, link.backward_impairment),
            }
            for link in status.links
        ],
        "shared": _shared_document(state.nics),
        "injected": [
            {
                "number": injection.number,
                "what": injection.what,
                "links": sorted(injection.links),
                "seconds_left": _remaining_seconds(injection) if injection.until else None,
            }
            for injection in state.injected
        ],
    }


def _shared_document(nics: SharedNics | None) -> Mapping[str, object] | None:
    if nics is None:
        return None
    return {"protocol": nics.protocol, "functions": nics.functions, "owner": nics.owner.pid}


def _agent_document(agent: AgentStatus | None) -> Mapping[str, object] | None:
    if agent is None:
        return None
    hosts = [{"function": function, "pid": pid} for function, pid in sorted(agent.hosts.items())]
    return {"pid": agent.pid, "hosts": hosts, "lost": agent.lost}


def _remaining_seconds(injection: Injection) -> float:
    return max(0.0, (injection.until - time.monotonic_ns()) / 1e9)


def _direction_document(direction: DirectionCounters, impairment: Impairment) -> Mapping[str, object]:
    return {
        "frames": direction.frames,
        "bytes": direction.bytes,
        "dropped": direction.dropped,
        "impairment": impairment_to_json(impairment),
    }


def _print(status: ClusterStatus) -> None:
    """Print the cluster as a tree: nodes with their NICs, each with its link and counters, and the links of switches."""
    from testbed.cluster.records.status import summary

    state = status.state
    age = format_age(time.time() - state.created)
    ends = "until taken down" if state.lasting else f"until process {state.owner.pid} ends"
    echo(f"{state.name} ({state.origin}): {summary(state.layout)}, up for {age}, {ends}")
    if state.phase != "up":
        advice = "'testbed gc' removes it" if state.abandoned else "'testbed up' repairs it, 'testbed down' removes it"
        progress = (
            f"process {state.owner.pid} is {state.phase} it"
            if state.owner.is_alive
            else f"left {state.phase}: {advice}"
        )
        echo(f"   {progress}")
    for sentence in status.missing if state.phase == "up" else ():
        echo(f"   {sentence}")
    by_end: dict[tuple[str, str], LinkStatus] = {}
    for link in status.links:
        by_end[link.link.a.owner, link.link.a.port] = link
        by_end[link.link.b.owner, link.link.b.port] = link
    rows: list[tuple[str, str, str, str]] = []
    node_statuses = {node.name: node for node in status.nodes}
    for node in state.layout.nodes:
        node_status = node_statuses[node.name]
        programs = f"  {len(node_status.programs)} running" if node_status.programs else ""
        programs += f"  {_format_agent(node_status.agent)}" if node_status.agent is not None else ""
        name = f"{node.name}{_tags(node.tags)}"
        first = f"{name}{programs}" if node_status.exists else f"{name}  GONE"
        if not node.nics:
            rows.append((first, "", "", ""))
        for number, nic in enumerate(node.nics):
            rows.append(_nic_row(first if number == 0 else "", node.name, nic.name, nic.addresses, by_end))
    rows += [
        (
            str(link.link.a),
            f"-- {link.link.b}{_tags(link.link.tags)}",
            _condition(link),
            _traffic(link.forward, link.backward),
        )
        for link in status.links
        if _is_trunk(status, link)
    ]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
    for number, row in enumerate(rows):
        branch = "└─" if number == len(rows) - 1 else "├─"
        cells = "  ".join(cell.ljust(width) for cell, width in zip(row[:3], widths, strict=True))
        echo(f"{branch} {cells}  {row[3]}".rstrip())
    if state.nics is not None:
        functions = f"{state.nics.functions} functions" if state.nics.functions > 1 else "1 function"
        echo(f"   NICs shared for {state.nics.protocol}, {functions} each, until process {state.nics.owner.pid} ends")
    for injection in state.injected:
        remaining = f", {format_age(_remaining_seconds(injection))} left" if injection.until else ""
        echo(f"   injected {injection.number}: {injection.what}{remaining}")


def _format_agent(agent: AgentStatus) -> str:
    """Format an agent: ``agent 4711, 2 attached``."""
    if not agent.pid:
        return "agent GONE"
    text = f"agent {agent.pid}, {len(agent.hosts)} attached"
    return f"{text}, {agent.lost} frames lost" if agent.lost else text


def _is_trunk(status: ClusterStatus, link: LinkStatus) -> bool:
    """Whether a link joins two switches."""
    switches = {switch.name for switch in status.state.layout.switches}
    return link.link.a.owner in switches and link.link.b.owner in switches


def _nic_row(
    first: str, node: str, nic: str, addresses: tuple[str, ...], by_end: Mapping[tuple[str, str], LinkStatus]
) -> tuple[str, str, str, str]:
    shown = " ".join(address.partition("/")[0] for address in addresses)
    link = by_end.get((node, nic))
    if link is None:
        return first, f"{nic} {shown}", "", ""
    end, peer = (link.link.a, link.link.b) if link.link.a.owner == node else (link.link.b, link.link.a)
    out, back = (link.forward, link.backward) if end is link.link.a else (link.backward, link.forward)
    return first, f"{nic} {shown} -- {peer}{_tags(link.link.tags)}", _condition(link), _traffic(out, back)


def _tags(tags: Sequence[str]) -> str:
    """Format tags as selectors: ``" @client @rack1"``."""
    return "".join(f" {SELECTOR}{tag}" for tag in tags)


def _condition(link: LinkStatus) -> str:
    """Format a link's state and impairments: ``up, by relay: delay 2ms, loss 5%``."""
    condition = "up" if link.up else "down" if link.exists else "GONE"
    if link.datapath == "direct":
        return condition
    from testbed.cluster.faults.fault_injection import describe_impairments
    from testbed.cluster.faults.injections import shorten_rule

    forward, backward = [
        describe_impairments(
            {key: value for key, value in impairment_to_json(impairment).items() if key != "rules"},
            [shorten_rule(rule) for rule in impairment.rules],
        )
        for impairment in (link.forward_impairment, link.backward_impairment)
    ]
    impairments = forward if forward == backward else f"-> {forward or 'nothing'}; <- {backward or 'nothing'}"
    return f"{condition}, by {link.datapath}: {impairments}"


def _traffic(out: DirectionCounters, back: DirectionCounters) -> str:
    dropped = out.dropped + back.dropped
    return f"out {out.frames} in {back.frames} frames" + (f", {dropped} dropped" if dropped else "")

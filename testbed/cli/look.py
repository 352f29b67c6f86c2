"""``status``: what a running cluster looks like."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from testbed.cli.options import json_option, name_option, print_json
from testbed.errors import TestbedError
from testbed.spec.layout_json import impairment_to_json
from testbed.spec.selecting import SELECTOR

if TYPE_CHECKING:
    from testbed.cluster.injections import Injection
    from testbed.cluster.shared_nics import SharedNics
    from testbed.cluster.status import AgentStatus, ClusterStatus, Direction, LinkStatus
    from testbed.spec.layout import Impairment


@click.command("status")
@name_option
@json_option
def status_command(name: str | None, as_json: bool) -> None:
    """Show the nodes, links and counters of a cluster that is up; without --name, of all."""
    from testbed.cluster.state import Store
    from testbed.cluster.status import status

    store = Store()
    names = [store.existing(name)] if name is not None else store.names()
    found: list[ClusterStatus] = []
    failures: list[TestbedError] = []
    for each in names:
        try:
            found.append(status(store.choose(each)))
        except TestbedError as error:  # the others are to be seen all the same
            failures.append(error)
    if as_json:
        print_json("status", {"clusters": [_document(each) for each in found]})
    elif not names:
        click.echo("no cluster is up; 'testbed up star-4' brings one up")
    else:
        for shown in found:
            _print(shown)
    if failures:
        raise failures[0]


def _document(found: ClusterStatus) -> Mapping[str, object]:
    state = found.state
    by_end = {(end.owner, end.port): each.link.name for each in found.links for end in (each.link.a, each.link.b)}
    seen = {node.name: node for node in found.nodes}
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
                "there": seen[node.name].there,
                "programs": list(seen[node.name].programs),
                "agent": _agent(seen[node.name].agent),
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
                "name": each.link.name,
                "tags": list(each.link.tags),
                "a": str(each.link.a),
                "b": str(each.link.b),
                "datapath": each.datapath,
                "notes": list(state.notes.get(each.link.name, ())),
                "there": each.there,
                "up": each.up,
                "forward": _direction(each.forward, each.forward_impairment),
                "backward": _direction(each.backward, each.backward_impairment),
            }
            for each in found.links
        ],
        "shared": _shared(state.nics),
        "injected": [
            {
                "number": one.number,
                "what": one.what,
                "links": sorted(one.links),
                "seconds_left": _left(one) if one.until else None,
            }
            for one in state.injected
        ],
    }


def _shared(nics: SharedNics | None) -> Mapping[str, object] | None:
    if nics is None:
        return None
    return {"protocol": nics.protocol, "functions": nics.functions, "owner": nics.owner.pid}


def _agent(agent: AgentStatus | None) -> Mapping[str, object] | None:
    if agent is None:
        return None
    hosts = [{"function": function, "pid": pid} for function, pid in sorted(agent.hosts.items())]
    return {"pid": agent.pid, "hosts": hosts, "lost": agent.lost}


def _left(injection: Injection) -> float:
    return max(0.0, (injection.until - time.monotonic_ns()) / 1e9)


def _direction(direction: Direction, impairment: Impairment) -> Mapping[str, object]:
    return {
        "frames": direction.frames,
        "bytes": direction.bytes,
        "dropped": direction.dropped,
        "impairment": impairment_to_json(impairment),
    }


def _print(found: ClusterStatus) -> None:
    """The cluster as a tree: each node with its NICs, each with its link and what went through it."""
    from testbed.cluster.status import summary

    state = found.state
    age = _duration(time.time() - state.created)
    ends = "until taken down" if state.lasting else f"until process {state.owner.pid} ends"
    click.echo(f"{state.name} ({state.origin}): {summary(state.layout)}, up for {age}, {ends}")
    if state.phase != "up":
        mend = "'testbed gc' removes it" if state.abandoned else "'testbed up' puts it right, 'testbed down' removes it"
        at_work = (
            f"process {state.owner.pid} is {state.phase} it" if state.owner.alive else f"left {state.phase}: {mend}"
        )
        click.echo(f"   {at_work}")
    elif not (state.steward is not None and state.steward.alive):
        if "relay" in state.datapaths.values():
            click.echo(
                "   its relay is GONE, and links that it should carry pass nothing: 'testbed up' starts it again"
            )
        if state.nics is not None:
            click.echo("   the agents of its NICs are GONE, and nobody can attach: 'testbed up' starts them again")
    by_end: dict[tuple[str, str], LinkStatus] = {}
    for link in found.links:
        by_end[link.link.a.owner, link.link.a.port] = link
        by_end[link.link.b.owner, link.link.b.port] = link
    rows: list[tuple[str, str, str, str]] = []
    seen = {node.name: node for node in found.nodes}
    for node in state.layout.nodes:
        there = seen[node.name]
        programs = f"  {len(there.programs)} running" if there.programs else ""
        programs += f"  {_agent_in_words(there.agent)}" if there.agent is not None else ""
        name = f"{node.name}{_tags(node.tags)}"
        first = f"{name}{programs}" if there.there else f"{name}  GONE"
        if not node.nics:
            rows.append((first, "", "", ""))
        for number, nic in enumerate(node.nics):
            rows.append(_nic_row(first if number == 0 else "", node.name, nic.name, nic.addresses, by_end))
    trunks = [link for link in found.links if _is_trunk(found, link)]
    for link in trunks:
        rows.append(
            (
                str(link.link.a),
                f"-- {link.link.b}{_tags(link.link.tags)}",
                _condition(link),
                _traffic(link.forward, link.backward),
            )
        )
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
    for number, row in enumerate(rows):
        branch = "└─" if number == len(rows) - 1 else "├─"
        cells = "  ".join(cell.ljust(width) for cell, width in zip(row[:3], widths, strict=True))
        click.echo(f"{branch} {cells}  {row[3]}".rstrip())
    if state.nics is not None:
        each = f"{state.nics.functions} functions" if state.nics.functions > 1 else "1 function"
        click.echo(f"   NICs shared for {state.nics.protocol}, {each} each, until process {state.nics.owner.pid} ends")
    for one in state.injected:
        left = f", {_duration(_left(one))} left" if one.until else ""
        click.echo(f"   injected {one.number}: {one.what}{left}")


def _agent_in_words(agent: AgentStatus) -> str:
    """ "agent 4711, 2 attached"."""
    if not agent.pid:
        return "agent GONE"
    said = f"agent {agent.pid}, {len(agent.hosts)} attached"
    return f"{said}, {agent.lost} frames lost" if agent.lost else said


def _is_trunk(found: ClusterStatus, link: LinkStatus) -> bool:
    switches = {switch.name for switch in found.state.layout.switches}
    return link.link.a.owner in switches and link.link.b.owner in switches


def _nic_row(
    first: str, node: str, nic: str, addresses: tuple[str, ...], by_end: Mapping[tuple[str, str], LinkStatus]
) -> tuple[str, str, str, str]:
    shown = " ".join(address.partition("/")[0] for address in addresses)
    link = by_end.get((node, nic))
    if link is None:
        return first, f"{nic} {shown}", "", ""
    mine, other = (link.link.a, link.link.b) if link.link.a.owner == node else (link.link.b, link.link.a)
    out, back = (link.forward, link.backward) if mine is link.link.a else (link.backward, link.forward)
    return first, f"{nic} {shown} -- {other}{_tags(link.link.tags)}", _condition(link), _traffic(out, back)


def _tags(tags: Sequence[str]) -> str:
    """As selectors have them: " @client @rack1"."""
    return "".join(f" {SELECTOR}{tag}" for tag in tags)


def _condition(link: LinkStatus) -> str:
    """ "up", and what is in force: "up, by relay: delay 2ms, loss 5%"."""
    condition = "up" if link.up else "down" if link.there else "GONE"
    if link.datapath == "direct":
        return condition
    from testbed.cluster.injecting import described

    forward, backward = [
        described({key: value for key, value in impairment_to_json(one).items() if key != "rules"}, one.rules)
        for one in (link.forward_impairment, link.backward_impairment)
    ]
    what = forward if forward == backward else f"-> {forward or 'nothing'}; <- {backward or 'nothing'}"
    return f"{condition}, by {link.datapath}: {what}"


def _traffic(out: Direction, back: Direction) -> str:
    dropped = out.dropped + back.dropped
    return f"out {out.frames} in {back.frames} frames" + (f", {dropped} dropped" if dropped else "")


def _duration(seconds: float) -> str:
    whole = max(0, round(seconds))
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"

"""Snapshots of a cluster on two machines, merged: each direction of a link between them from where it arrives."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

from testbed.cli.screen.live_view import arguments
from testbed.cli.screen.view import Command
from testbed.observe.format.event_format import FormattedEvent
from testbed.observe.live.machine_snapshots import from_json, merge_snapshots
from testbed.observe.live.snapshot import Direction, Fault, Link, Nic, Node, Program, Snapshot, Switch

HERE, THERE, UNSEEN = Direction(frames=5, dropped={"loss": 1}), Direction(frames=7), Direction(frames=99)


def part(node: str, link: Link, *switches: str, events: tuple[FormattedEvent, ...] = ()) -> Snapshot:
    """A part with one node, whose NIC is on the link between the machines."""
    nic = Nic("eth0", "02:00:00:00:00:01", ("10.0.0.1/24",), link.name, UNSEEN, UNSEEN)
    nodes = (Node(node, "up", (nic,), (Program(5, "cat"),)),) if node else ()
    fault = Fault(1, "loss 5% on n1", (f"only on {node or 'a'}",))
    return Snapshot("star", "here", 0, 3.0, 1.0, "", "up", nodes=nodes, links=(link,), faults=(fault,), events=events,
                    switches=tuple(Switch(name, "bridge") for name in switches))  # fmt: skip


CROSSING = Link("n1--s1", "n1:eth0", "s1:1", "up", "relay")
A = part("", replace(CROSSING, forward=HERE, backward=UNSEEN), "s1", events=(FormattedEvent(9, "heal", "", "1"),))
B = part("n1", replace(CROSSING, forward=UNSEEN, backward=THERE), events=(FormattedEvent(4, "inject", "n1", "1"),))


def test_directions_between_machines_are_those_of_the_machine_where_they_arrive() -> None:
    for by_machine in ({"a": A, "b": B}, {"b": B, "a": A}):
        merged = merge_snapshots(by_machine)
        (link,), (node,) = merged.links, merged.nodes
        assert (link.forward, link.backward) == (HERE, THERE)
        assert (node.nics[0].out, node.nics[0].back) == (HERE, THERE)
        assert merged.summary == f"1 node, 1 switch, 1 link on {', '.join(by_machine)}"
        (fault,) = merged.faults
        assert fault.links == ("only on a", "only on n1")
        assert [(event.kind, event.where) for event in merged.events] == [("inject", "n1 on b"), ("heal", "on a")]


def test_a_link_is_down_if_it_is_at_one_end_and_warnings_name_their_machine() -> None:
    b_down = replace(B, links=(replace(B.links[0], state="down"),), warning="the relay is gone", phase="changing")
    for by_machine in ({"a": A, "b": b_down}, {"b": b_down, "a": A}):
        merged = merge_snapshots(by_machine, ["machine c is lost"])
        assert merged.links[0].state == "down"
        assert merged.warning == "machine c is lost; machine b: the relay is gone"
        assert merged.phase == "changing"


def test_a_snapshot_comes_back_from_json() -> None:
    for snapshot in (A, B):
        assert from_json(json.loads(json.dumps(asdict(snapshot)))) == snapshot


def test_commands_on_a_spread_cluster_are_those_of_machines() -> None:
    assert arguments("star", Command(("heal", "1")), ("machines", "lab.toml")) == [
        "machines", "heal", "lab.toml", "star", "1",
    ]  # fmt: skip
    assert arguments("star", Command(("heal", "1"))) == ["heal", "--name", "star", "1"]

"""Merged snapshots of a cluster on two machines: each direction of a link between them is taken from its receiver."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

from testbed.cli.screen.live_view import arguments
from testbed.cli.screen.view import Command
from testbed.observe.format.event_format import FormattedEvent
from testbed.observe.live.machine_snapshots import from_json, merge_snapshots
from testbed.observe.live.snapshot import Direction, Fault, Link, Nic, Node, Program, Snapshot, Switch

LOCAL, REMOTE, STALE = Direction(frames=5, dropped={"loss": 1}), Direction(frames=7), Direction(frames=99)


def snapshot_of(node: str, link: Link, *switches: str, events: tuple[FormattedEvent, ...] = ()) -> Snapshot:
    """Return a machine's snapshot with one node, whose NIC is on the link between the machines."""
    nic = Nic("eth0", "02:00:00:00:00:01", ("10.0.0.1/24",), link.name, STALE, STALE)
    nodes = (Node(node, "up", (nic,), (Program(5, "cat"),)),) if node else ()
    fault = Fault(1, "loss 5% on n1", (f"only on {node or 'a'}",))
    return Snapshot("star", "here", 0, 3.0, 1.0, "", "up", nodes=nodes, links=(link,), faults=(fault,), events=events,
                    switches=tuple(Switch(name, "bridge") for name in switches))  # fmt: skip


CROSSING = Link("n1--s1", "n1:eth0", "s1:1", "up", "relay")
A = snapshot_of(
    "", replace(CROSSING, forward=LOCAL, backward=STALE), "s1", events=(FormattedEvent(9, "heal", "", "1"),)
)
B = snapshot_of(
    "n1", replace(CROSSING, forward=STALE, backward=REMOTE), events=(FormattedEvent(4, "inject", "n1", "1"),)
)


def test_a_direction_between_machines_is_taken_from_the_receiving_machine() -> None:
    for by_machine in ({"a": A, "b": B}, {"b": B, "a": A}):
        merged = merge_snapshots(by_machine)
        (link,), (node,) = merged.links, merged.nodes
        assert (link.forward, link.backward) == (LOCAL, REMOTE)
        assert (node.nics[0].out, node.nics[0].back) == (LOCAL, REMOTE)
        assert merged.summary == f"1 node, 1 switch, 1 link on {', '.join(by_machine)}"
        (fault,) = merged.faults
        assert fault.links == ("only on a", "only on n1")
        assert [(event.kind, event.where) for event in merged.events] == [("inject", "n1 on b"), ("heal", "on a")]


def test_a_link_is_down_if_one_end_is_and_warnings_name_their_machine() -> None:
    b_down = replace(B, links=(replace(B.links[0], state="down"),), warning="the relay is gone", phase="changing")
    for by_machine in ({"a": A, "b": b_down}, {"b": b_down, "a": A}):
        merged = merge_snapshots(by_machine, ["machine c is lost"])
        assert merged.links[0].state == "down"
        assert merged.warning == "machine c is lost; machine b: the relay is gone"
        assert merged.phase == "changing"


def test_a_snapshot_survives_json() -> None:
    for snapshot in (A, B):
        assert from_json(json.loads(json.dumps(asdict(snapshot)))) == snapshot


def test_a_spread_cluster_uses_the_commands_of_machines() -> None:
    assert arguments("star", Command(("heal", "1")), ("machines", "lab.toml")) == [
        "machines", "heal", "lab.toml", "star", "1",
    ]  # fmt: skip
    assert arguments("star", Command(("heal", "1"))) == ["heal", "--name", "star", "1"]

"""Synthetic snapshots of clusters."""

from __future__ import annotations

from testbed.observe.format.event_format import FormattedEvent
from testbed.observe.live.snapshot import Direction, Fault, Link, Nic, Node, Program, Snapshot, Switch

SECOND = 10**9
NOON = 1_795_262_400 * SECOND  # in November 2026


def two_nodes() -> Snapshot:
    """Return a snapshot of two nodes at a switch, of which the second has a lossy link."""
    unimpaired = Direction(frames=1_200, bytes=1_640_000, rate=98.4, bits=1_180_000.0)
    impaired_direction = Direction(
        frames=9_000,
        bytes=13_500_000,
        rate=812.0,
        bits=9_744_000.0,
        dropped={"loss": 451, "queue": 12},
        drop_rate=43.0,
        fates={"corrupted": 7},
        declared="delay 1ms",
        injected="loss 5%",
    )
    links = (
        Link("n1:eth0--s1:1", "n1:eth0", "s1:1", "up", "direct", unimpaired, unimpaired),
        Link("n2:eth0--s1:2", "n2:eth0", "s1:2", "up", "relay", impaired_direction, unimpaired),
    )
    nodes = (
        Node(
            "n1",
            "up",
            (Nic("eth0", "02:00:00:00:00:01", ("10.0.0.1/16",), links[0].name, unimpaired, unimpaired),),
            (Program(4711, "iperf3", 0.42, 5_300_000), Program(4712, "sh", 0.0, 900_000)),
            ("client",),
        ),
        Node(
            "n2",
            "up",
            (Nic("eth0", "02:00:00:00:00:02", ("10.0.0.2/16",), links[1].name, impaired_direction, unimpaired),),
        ),
    )
    return Snapshot(
        "pair",
        "pair.toml",
        NOON,
        192.0,
        1.0,
        "2 nodes, 1 switch, 2 links",
        "up",
        "",
        nodes,
        links,
        (Fault(3, "loss 5% on n2 (n2-s1)", (links[1].name,), 7.2),),
        (Program(4000, "testbed-relay", 0.08, 40_000_000),),
        (
            FormattedEvent(NOON - 9 * SECOND, "inject", links[1].name, "3: loss 5% on n2 (n2-s1), in 80 ms"),
            FormattedEvent(NOON - 8 * SECOND, "relay behind", links[1].name, "forward: 4 frames more than 1 ms late"),
        ),
        (Switch("s1", "ethernet"),),
    )


def star(nodes: int) -> Snapshot:
    """Return a snapshot of a star, in which each node has more traffic than the node before."""
    links = tuple(
        Link(
            f"n{i}:eth0--s1:{i}",
            f"n{i}:eth0",
            f"s1:{i}",
            "up",
            "relay",
            Direction(frames=i, bytes=100 * i, rate=float(i), bits=800.0 * i),
            Direction(),
        )
        for i in range(1, nodes + 1)
    )
    members = tuple(
        Node(
            f"n{i}",
            "up",
            (Nic("eth0", "02:00:00:00:00:00", (f"10.0.0.{i}/16",), link.name, link.forward, link.backward),),
        )
        for i, link in enumerate(links, 1)
    )
    switches = (Switch("s1", "ethernet"),)
    return Snapshot("star", "", NOON, 1.0, 1.0, f"{nodes} nodes", "up", nodes=members, links=links, switches=switches)

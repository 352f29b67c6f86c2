"""The panels: what each has for rows and columns, by which it can be sorted, and what stands behind the selected row.

Pure: of a snapshot. A column that does not fit is left out, the least important first; what it would have said of the
selected row is in the detail below the table.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from testbed.cli.screen.quantities import duration, scaled, share, size
from testbed.observe.live.snapshot import Direction, Snapshot

_NOBODY: Final = ""


@dataclass(frozen=True, slots=True)
class Column:
    """importance: the least goes first where there is no room; 0 stays always. wide: it takes what room is left."""

    title: str
    importance: int
    right: bool = False
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """key: by which it is known again. target: what `inject` and `link` are told, empty where nothing can be injected.
    alarm: something is wrong with it. order: by which it can be sorted, in the order of the panel's sorts. detail: what
    stands below the table while it is selected."""

    key: str
    cells: tuple[str, ...]
    target: str = _NOBODY
    alarm: bool = False
    changed: bool = False
    order: tuple[float, ...] = ()
    detail: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Panel:
    """sorts: names of what rows can be sorted by, beside the order in which they come; the highest first."""

    name: str
    columns: tuple[Column, ...]
    rows: Callable[[Snapshot], Sequence[Row]]
    sorts: tuple[str, ...] = ()
    none: str = "none"


def _nodes(snapshot: Snapshot) -> list[Row]:
    rows = []
    for node in snapshot.nodes:
        out = [nic.out for nic in node.nics]
        back = [nic.back for nic in node.nics]
        cpu, memory = sum(one.cpu for one in node.programs), sum(one.memory for one in node.programs)
        drops = sum(one.drops for one in (*out, *back))
        dropping = sum(one.drop_rate for one in (*out, *back))
        bits = sum(one.bits for one in (*out, *back))
        busiest = max(node.programs, key=lambda one: (one.cpu, one.pid), default=None)
        addresses = [address.partition("/")[0] for nic in node.nics for address in nic.addresses]
        cells = (
            node.name,
            addresses[0] if addresses else "",
            node.state,
            str(len(node.programs) or ""),
            share(cpu) if node.programs else "",
            size(memory) if node.programs else "",
            scaled(sum(one.rate for one in out)),
            scaled(sum(one.rate for one in back)),
            scaled(sum(one.bits for one in out)),
            scaled(sum(one.bits for one in back)),
            scaled(drops) if drops else "",
            busiest.name if busiest else "",
            " ".join(f"@{tag}" for tag in node.tags),
        )
        programs = sorted(node.programs, key=lambda one: -one.cpu)
        nics = ", ".join(f"{nic.name} {' '.join(nic.addresses)} {nic.mac}" for nic in node.nics)
        detail = (
            nics or "no NIC",
            "programs: " + (", ".join(f"{one.name} ({one.pid}) {share(one.cpu)} {size(one.memory)}" for one in programs)
                            or "none"),
        )  # fmt: skip
        changed = any(one.injected for one in (*out, *back))
        rows.append(
            Row(
                node.name,
                cells,
                node.name,
                node.state != "up" or dropping > 0,
                changed,
                (bits, drops, cpu, memory),
                detail,
            )
        )
    return rows


def _links(snapshot: Snapshot) -> list[Row]:
    rows = []
    for link in snapshot.links:
        for one, way, ends in (
            (link.forward, "forward", (link.a, link.b)),
            (link.backward, "backward", (link.b, link.a)),
        ):
            causes = _causes(one.dropped)
            cells = (
                " → ".join(ends),
                link.state,
                link.datapath,
                scaled(one.rate),
                scaled(one.bits),
                scaled(one.drop_rate) if one.drop_rate else "",
                causes,
                one.injected,
                one.declared,
            )
            rows.append(
                Row(
                    f"{link.name} {way}",
                    cells,
                    link.name,
                    link.state != "up" or one.drop_rate > 0,
                    bool(one.injected),
                    (one.bits, one.drops, one.rate),
                    _direction(one, causes),
                )
            )
    return rows


def _direction(one: Direction, causes: str) -> tuple[str, str]:
    met = ", ".join(f"{count:,} {name}" for name, count in one.met.items())
    said = [f"{one.frames:,} frames, {size(one.bytes)} bytes", f"dropped {causes or 'none'}", met]
    force = f"declared: {one.declared or 'nothing'}; injected: {one.injected or 'nothing'}"
    return "; ".join(part for part in said if part), force


def _causes(dropped: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {cause.replace('_', ' ')}" for cause, count in dropped.items())


def _nics(snapshot: Snapshot) -> list[Row]:
    rows = []
    for node in snapshot.nodes:
        for nic in node.nics:
            drops = nic.out.drops + nic.back.drops
            agent = ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in nic.agent.items() if count)
            cells = (
                f"{node.name}:{nic.name}",
                f"{nic.out.frames:,}",
                size(nic.out.bytes),
                f"{nic.back.frames:,}",
                size(nic.back.bytes),
                f"{drops:,}" if drops else "",
                agent,
                nic.mac,
                nic.link,
            )
            detail = (f"{nic.mac} {' '.join(nic.addresses)}, link {nic.link or 'none'}", f"agent: {agent or 'none'}")
            order = (float(nic.out.frames + nic.back.frames), float(drops))
            rows.append(Row(f"{node.name}:{nic.name}", cells, node.name, order=order, detail=detail))
    return rows


def _faults(snapshot: Snapshot) -> list[Row]:
    return [
        Row(
            str(fault.number),
            (
                str(fault.number),
                fault.what,
                "" if fault.seconds_left is None else duration(fault.seconds_left),
                ", ".join(fault.links),
            ),
            detail=(fault.what, ", ".join(fault.links)),
        )
        for fault in snapshot.faults
    ]


def _events(snapshot: Snapshot) -> list[Row]:
    rows = []
    for number, event in enumerate(snapshot.events):
        cells = (clock(event.time), event.kind, event.where, event.what)
        alarm = event.kind.endswith(("died", "behind", "untold", "off")) or event.kind.startswith("not ")
        rows.append(
            Row(f"{event.time} {number}", cells, alarm=alarm, detail=(f"{event.kind}: {event.where}", event.what))
        )
    return rows[::-1]


def clock(nanoseconds: int) -> str:
    """A time of the day: 22:50:01.234."""
    return f"{time.strftime('%H:%M:%S', time.localtime(nanoseconds // 10**9))}.{nanoseconds // 10**6 % 1000:03}"


PANELS: Final = (
    Panel(
        "Nodes",
        (
            Column("node", 0),
            Column("address", 7),
            Column("state", 10),
            Column("programs", 5, right=True),
            Column("CPU", 9, right=True),
            Column("memory", 8, right=True),
            Column("out fr/s", 6, right=True),
            Column("in fr/s", 6, right=True),
            Column("out bit/s", 9, right=True),
            Column("in bit/s", 9, right=True),
            Column("dropped", 8, right=True),
            Column("busiest", 3),
            Column("tags", 2, wide=True),
        ),
        _nodes,
        ("traffic", "drops", "CPU", "memory"),
        "no nodes",
    ),
    Panel(
        "Links",
        (
            Column("from → to", 0),
            Column("state", 10),
            Column("by", 3),
            Column("frames/s", 6, right=True),
            Column("bit/s", 9, right=True),
            Column("drops/s", 8, right=True),
            Column("dropped", 4),
            Column("injected", 7, wide=True),
            Column("declared", 5, wide=True),
        ),
        _links,
        ("traffic", "drops", "frames"),
        "no links",
    ),
    Panel(
        "NICs",
        (
            Column("NIC", 0),
            Column("frames out", 9, right=True),
            Column("bytes out", 6, right=True),
            Column("frames in", 9, right=True),
            Column("bytes in", 6, right=True),
            Column("dropped", 8, right=True),
            Column("agent", 7, wide=True),
            Column("MAC", 3),
            Column("link", 2, wide=True),
        ),
        _nics,
        ("frames", "drops"),
        "no NICs",
    ),
    Panel(
        "Faults",
        (
            Column("number", 0, right=True),
            Column("what", 0, wide=True),
            Column("left", 5),
            Column("links", 2, wide=True),
        ),
        _faults,
        (),
        "nothing is injected",
    ),
    Panel(
        "Events",
        (Column("time", 0), Column("event", 0), Column("where", 3), Column("what", 0, wide=True)),
        _events,
        (),
        "nothing has happened",
    ),
)


def ordered(panel: Panel, snapshot: Snapshot, sort: int, *, reverse: bool = False) -> list[Row]:
    """The rows of a panel. sort: 0 is the order in which they come, others are of `sorts`, counted from 1."""
    rows = list(panel.rows(snapshot))
    if sort:
        rows.sort(key=lambda row: -row.order[sort - 1])
    return rows[::-1] if reverse else rows

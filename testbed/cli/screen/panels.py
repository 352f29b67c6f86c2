"""Panels: the rows and columns of each, its sort orders, and the details of the selected row.

Pure functions of a snapshot. Columns that do not fit are left out, the least important first; their content for the
selected row is in the detail below the table.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from testbed.cli.consoles import format_age
from testbed.observe.live.snapshot import Direction, Program, Snapshot

_DECIMAL_PREFIXES: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_BINARY_PREFIXES: Final = ((1 << 40, "T"), (1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K"))


def format_decimal(value: float) -> str:
    """Format with three digits, in powers of 1000: 0, 17, 1.23k, 45.6M."""
    for scale, prefix in _DECIMAL_PREFIXES:
        if value >= 0.9995 * scale:
            return _three_digits(value / scale) + prefix
    return f"{value:.0f}" if value >= 9.95 or value == int(value) else f"{value:.1f}"


def format_bytes(count: int) -> str:
    """Format bytes in powers of 1024: 812, 1.23K, 45.6M."""
    for scale, prefix in _BINARY_PREFIXES:
        if count >= 0.9995 * scale:
            return _three_digits(count / scale) + prefix
    return str(count)


def format_share(value: float) -> str:
    """Format as a percentage of one processor: 0%, 7%, 153%."""
    return f"{100 * value:.0f}%"


def _three_digits(value: float) -> str:
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


_NO_TARGET: Final = ""


@dataclass(frozen=True, slots=True)
class Column:
    """A column. importance: columns with the lowest importance are hidden first; 0: never hidden. right: whether its cells
    are right-aligned. wide: whether it is shortened if space is scarce, and gets spare space."""

    title: str
    importance: int
    right: bool = False
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """A row. key: identifies it across snapshots. cells: texts by column. target: argument for `inject` and `link`; empty if
    it has none. alarm: whether it has a problem. changed: whether a fault is injected. order: sort keys, in the order of the
    panel's sorts. detail: lines shown below the table while the row is selected."""

    key: str
    cells: tuple[str, ...]
    target: str = _NO_TARGET
    alarm: bool = False
    changed: bool = False
    order: tuple[float, ...] = ()
    detail: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel. rows: returns its rows of a snapshot. sorts: names of the sort orders other than the natural order; the
    highest value is first. none: text shown without rows."""

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
        cpu, memory = sum(program.cpu for program in node.programs), sum(program.memory for program in node.programs)
        drops = sum(direction.drops for direction in (*out, *back))
        dropping = sum(direction.drop_rate for direction in (*out, *back))
        bits = sum(direction.bits for direction in (*out, *back))
        busiest = max(node.programs, key=lambda program: (program.cpu, program.pid), default=None)
        addresses = [address.partition("/")[0] for nic in node.nics for address in nic.addresses]
        cells = (
            node.name,
            addresses[0] if addresses else "",
            node.state,
            str(len(node.programs) or ""),
            format_share(cpu) if node.programs else "",
            format_bytes(memory) if node.programs else "",
            format_decimal(sum(direction.rate for direction in out)),
            format_decimal(sum(direction.rate for direction in back)),
            format_decimal(sum(direction.bits for direction in out)),
            format_decimal(sum(direction.bits for direction in back)),
            format_decimal(drops) if drops else "",
            busiest.name if busiest else "",
            " ".join(f"@{tag}" for tag in node.tags),
        )
        programs = sorted(node.programs, key=lambda program: -program.cpu)
        nics = ", ".join(f"{nic.name} {' '.join(nic.addresses)} {nic.mac}" for nic in node.nics)
        detail = (
            nics or "no NIC",
            f"programs: {', '.join(map(_program, programs)) or 'none'}",
        )
        changed = any(direction.injected for direction in (*out, *back))
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


def _program(program: Program) -> str:
    return f"{program.name} ({program.pid}) {format_share(program.cpu)} {format_bytes(program.memory)}"


def _links(snapshot: Snapshot) -> list[Row]:
    rows = []
    for link in snapshot.links:
        for counters, name_of_direction, ends in (
            (link.forward, "forward", (link.a, link.b)),
            (link.backward, "backward", (link.b, link.a)),
        ):
            causes = _causes(counters.dropped)
            cells = (
                " → ".join(ends),
                link.state,
                link.datapath,
                format_decimal(counters.rate),
                format_decimal(counters.bits),
                format_decimal(counters.drop_rate) if counters.drop_rate else "",
                causes,
                counters.injected,
                counters.declared,
            )
            rows.append(
                Row(
                    f"{link.name} {name_of_direction}",
                    cells,
                    link.name,
                    link.state != "up" or counters.drop_rate > 0,
                    bool(counters.injected),
                    (counters.bits, counters.drops, counters.rate),
                    _direction(counters, causes),
                )
            )
    return rows


def _direction(direction: Direction, causes: str) -> tuple[str, str]:
    fates = ", ".join(f"{count:,} {name}" for name, count in direction.fates.items())
    parts = [
        f"{direction.frames:,} frames, {format_bytes(direction.bytes)} bytes",
        f"dropped {causes or 'none'}",
        fates,
    ]
    impairments = f"declared: {direction.declared or 'nothing'}; injected: {direction.injected or 'nothing'}"
    return "; ".join(part for part in parts if part), impairments


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
                format_bytes(nic.out.bytes),
                f"{nic.back.frames:,}",
                format_bytes(nic.back.bytes),
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
                "" if fault.seconds_left is None else format_age(fault.seconds_left),
                ", ".join(fault.links),
            ),
            detail=(fault.what, ", ".join(fault.links)),
        )
        for fault in snapshot.faults
    ]


def _events(snapshot: Snapshot) -> list[Row]:
    rows = []
    for number, event in enumerate(snapshot.events):
        cells = (format_time(event.time), event.kind, event.where, event.what)
        alarm = event.kind.endswith(("died", "behind", "untold", "off")) or event.kind.startswith("not ")
        rows.append(
            Row(f"{event.time} {number}", cells, alarm=alarm, detail=(f"{event.kind}: {event.where}", event.what))
        )
    return rows[::-1]


def format_time(nanoseconds: int) -> str:
    """Format a time of day: 22:50:01.234."""
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


def sort_rows(panel: Panel, snapshot: Snapshot, sort: int, *, reverse: bool = False) -> list[Row]:
    """Return a panel's rows, sorted. sort: 0: the natural order; n: the n-th of the panel's `sorts`."""
    rows = list(panel.rows(snapshot))
    if sort:
        rows.sort(key=lambda row: -row.order[sort - 1])
    return rows[::-1] if reverse else rows

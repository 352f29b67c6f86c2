"""Parts of the page as JSON: pure functions of a snapshot and a viewer's choices. A viewer is sent the parts that have
changed. Tables are the panels of the terminal's screen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, Literal, TypeAlias, TypedDict

from testbed.cli.consoles import format_age, printable
from testbed.cli.screen.panels import PANELS, Panel, Row, format_bytes, format_decimal, format_share, sort_rows
from testbed.observe.arrangement import SWITCH, Graph, Position, arrange, curves
from testbed.observe.live.snapshot import Absent, Direction, Fault, Link, Node, Snapshot, Switch

JSON: TypeAlias = "str | int | float | bool | Sequence[JSON] | Mapping[str, JSON] | None"
Parts: TypeAlias = dict[str, JSON]

_PANELS: Final = {panel.name: panel for panel in PANELS}
_MAX_EVENTS: Final = 60
_CHARACTER_WIDTH: Final = 7.2  # in units of the picture, as the following
_NODE_HEIGHT: Final = 26.0
_MIN_NODE_WIDTH: Final = 38.0
_MAX_NODE_WIDTH: Final = 96.0


class Choices(TypedDict, total=False):
    """Choices of a viewer. panel: the table below the picture, empty for none. sort: its sort order, see `sort_rows`.
    reverse: whether the order is reversed. kind, name: the selected element. paused: whether the snapshot shown is kept."""

    panel: str
    sort: int
    reverse: bool
    kind: Literal["node", "switch", "link", ""]
    name: str
    paused: bool


def parts_of(snapshot: Snapshot | Absent, choices: Choices) -> Parts:
    """Return all parts for one viewer, by name."""
    if isinstance(snapshot, Absent):
        return {"absent": snapshot.why}
    return {
        "absent": "",
        "head": _head(snapshot),
        "picture": picture(snapshot),
        "nodes": [_node(node) for node in snapshot.nodes],
        "links": [_link(link) for link in snapshot.links],
        "faults": [_fault(fault) for fault in snapshot.faults],
        "events": _events(snapshot),
        "panel": _table(snapshot, choices),
        "details": _details(snapshot, choices),
    }


def needs_agents(choices: Choices) -> bool:
    """Whether counters of the agents of shared NICs are shown."""
    return choices.get("panel") == "NICs" or choices.get("kind") == "node"


def _head(snapshot: Snapshot) -> JSON:
    directions = [direction for link in snapshot.links for direction in (link.forward, link.backward)]
    drops = sum(direction.drop_rate for direction in directions)
    return {
        "cluster": snapshot.cluster,
        "origin": snapshot.origin,
        "summary": snapshot.summary,
        "age": format_age(snapshot.age),
        "warning": snapshot.warning,
        "frames": format_decimal(sum(direction.rate for direction in directions)),
        "bits": format_decimal(sum(direction.bits for direction in directions)),
        "drops": format_decimal(drops),
        "dropping": drops > 0,
        "faults": len(snapshot.faults),
        "carriers": [
            f"{printable(program.name).removeprefix('testbed-')} {format_share(program.cpu)}"
            for program in snapshot.carriers[:3]
        ],
    }


# The picture


def picture(snapshot: Snapshot) -> JSON:
    """Return the positions of nodes, switches and links; this part changes only with the cluster's layout."""
    return _picture(
        snapshot.cluster,
        tuple(node.name for node in snapshot.nodes),
        tuple((switch.name, switch.kind) for switch in snapshot.switches),
        tuple((link.name, _owner(link.a), _owner(link.b)) for link in snapshot.links),
    )


@lru_cache(maxsize=4)
def _picture(
    cluster: str,
    nodes: tuple[str, ...],
    switches: tuple[tuple[str, str], ...],
    links: tuple[tuple[str, str, str], ...],
) -> JSON:
    width = max((len(name) * _CHARACTER_WIDTH + 14 for name in nodes), default=0.0)
    node_size = (max(_MIN_NODE_WIDTH, min(_MAX_NODE_WIDTH, width)), _NODE_HEIGHT)
    graph = Graph(nodes, [name for name, _ in switches], [(a, b) for _, a, b in links])
    positions = arrange(graph, node_size)
    control_points = list(curves(graph, positions))
    points = [
        *positions.values(),
        *(
            _middle(positions[a], control_point, positions[b])
            for (_, a, b), control_point in zip(links, control_points, strict=True)
            if control_point
        ),
    ]
    xs, ys = zip(*points, strict=True) if points else ((0.0,), (0.0,))
    return {
        "cluster": cluster,
        "nodeSize": node_size,
        "switchSize": SWITCH,
        "box": [min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys)],
        "nodes": [[name, *_round(positions[name])] for name in nodes],
        "switches": [[name, *_round(positions[name]), kind] for name, kind in switches],
        "links": [
            [name, a, b, None if control_point is None else _round(control_point), _node_above(graph, positions, a, b)]
            for (name, a, b), control_point in zip(links, control_points, strict=True)
        ],
    }


def _node_above(graph: Graph, positions: Mapping[str, Position], a: str, b: str) -> str:
    """Return the node below which the label of its link fits: one that has no other link, if all nodes are in one row. Empty
    if neither end is such a node. a, b: ends of the link."""
    heights = {positions[node][1] for node in graph.nodes}
    nodes = [end for end in (a, b) if end not in graph.switches]
    is_leaf = len(nodes) == 1 and sum(nodes[0] in link for link in graph.links) == 1
    return nodes[0] if is_leaf and len(heights) == 1 else ""


def _middle(a: Position, control_point: Position, b: Position) -> Position:
    """Return the point in the middle of a quadratic Bézier curve."""
    return (a[0] + 2 * control_point[0] + b[0]) / 4, (a[1] + 2 * control_point[1] + b[1]) / 4


def _round(position: Position) -> list[float]:
    return [round(coordinate, 1) for coordinate in position]


def _owner(end: str) -> str:
    return end.partition(":")[0]


def _node(node: Node) -> JSON:
    cpu = sum(program.cpu for program in node.programs)
    busiest = max(node.programs, key=lambda program: (program.cpu, program.pid), default=None)
    dropping = any(direction.drop_rate > 0 for nic in node.nics for direction in (nic.out, nic.back))
    tooltip = [f"{node.name} {node.state}"]
    tooltip += [f"{nic.name} {' '.join(nic.addresses)}" for nic in node.nics]
    tooltip += [
        f"{printable(program.name)} {format_share(program.cpu)} {format_bytes(program.memory)}"
        for program in node.programs[:8]
    ]
    return {
        "up": node.state == "up",
        "cpu": round(cpu, 2),
        "programs": len(node.programs),
        "busiest": printable(busiest.name) if busiest else "",
        "dropping": dropping,
        "tooltip": "\n".join(tooltip),
    }


def _link(link: Link) -> JSON:
    return {
        "state": link.state,
        "datapath": link.datapath,
        "forward": _direction(link.forward),
        "backward": _direction(link.backward),
    }


def _direction(direction: Direction) -> JSON:
    return {
        "bits": round(direction.bits),
        "load": f"{format_decimal(direction.bits)}bit/s",
        "drops": format_decimal(direction.drop_rate) if direction.drop_rate else "",
        "declared": direction.declared,
        "injected": direction.injected,
    }


def _fault(fault: Fault) -> JSON:
    return {
        "number": fault.number,
        "what": fault.what,
        "left": "" if fault.seconds_left is None else format_age(fault.seconds_left),
        "links": fault.links,
    }


def _events(snapshot: Snapshot) -> JSON:
    """Return the last events, the latest first."""
    rows = _PANELS["Events"].rows(snapshot)[:_MAX_EVENTS]
    return [{"cells": [printable(cell) for cell in row.cells], "alarm": row.alarm} for row in rows]


# Tables


def _table(snapshot: Snapshot, choices: Choices) -> JSON:
    panel = _PANELS.get(choices.get("panel", ""))
    if panel is None:
        return None
    sort = max(0, min(choices.get("sort", 0), len(panel.sorts)))
    rows = sort_rows(panel, snapshot, sort, reverse=choices.get("reverse", False))
    return {
        "name": panel.name,
        "columns": _columns(panel),
        "rows": [_row(row) for row in rows],
        "none": panel.none,
        "sort": panel.sorts[sort - 1] if sort else "",
        "sorts": panel.sorts,
    }


def _columns(panel: Panel) -> JSON:
    return [{"title": column.title, "right": column.right} for column in panel.columns]


def _row(row: Row) -> dict[str, JSON]:
    return {
        "key": row.key,
        "cells": [printable(cell) for cell in row.cells],
        "target": row.target,
        "alarm": row.alarm,
        "changed": row.changed,
    }


# The selected element


def _details(snapshot: Snapshot, choices: Choices) -> JSON:
    """Return facts and tables on the selected element; None if none is selected, or it does not exist."""
    name = choices.get("name", "")
    match choices.get("kind"):
        case "node":
            return next((_node_details(node, snapshot) for node in snapshot.nodes if node.name == name), None)
        case "link":
            return next((_link_details(link, snapshot) for link in snapshot.links if link.name == name), None)
        case "switch":
            return next(
                (_switch_details(switch, snapshot) for switch in snapshot.switches if switch.name == name), None
            )
    return None


def _node_details(node: Node, snapshot: Snapshot) -> JSON:
    facts = [
        ("state", node.state),
        *((nic.name, " ".join((*nic.addresses, nic.mac))) for nic in node.nics),
        ("tags", " ".join(f"@{tag}" for tag in node.tags)),
    ]
    programs: list[JSON] = [
        {
            "key": str(program.pid),
            "cells": [
                printable(program.name),
                str(program.pid),
                format_share(program.cpu),
                format_bytes(program.memory),
            ],
        }
        for program in sorted(node.programs, key=lambda program: -program.cpu)
    ]
    titles = [("program", False), ("pid", True), ("CPU", True), ("memory", True)]
    tables: list[JSON] = [
        _part_of_panel("NICs", snapshot, node.name),
        {
            "name": "Programs",
            "columns": [{"title": title, "right": right} for title, right in titles],
            "rows": programs,
        },
    ]
    return _element("node", node.name, facts, tables)


def _link_details(link: Link, snapshot: Snapshot) -> JSON:
    facts = [
        ("ends", f"{link.a} – {link.b}"),
        ("state", link.state),
        ("datapath", link.datapath),
        ("declared", _join_directions(link.forward.declared, link.backward.declared)),
        ("injected", _join_directions(link.forward.injected, link.backward.injected)),
        ("other fates", _join_directions(_other_fates(link.forward), _other_fates(link.backward))),
        ("tags", " ".join(f"@{tag}" for tag in link.tags)),
    ]
    return _element("link", link.name, facts, [_part_of_panel("Links", snapshot, link.name)])


def _switch_details(switch: Switch, snapshot: Snapshot) -> JSON:
    links = [link.name for link in snapshot.links if switch.name in (_owner(link.a), _owner(link.b))]
    facts = [("kind", switch.kind), ("links", str(len(links)))]
    return _element("switch", switch.name, facts, [_part_of_panel("Links", snapshot, *links)])


def _element(kind: str, name: str, facts: Sequence[tuple[str, str]], tables: Sequence[JSON]) -> JSON:
    shown = [[title, printable(text)] for title, text in facts if text]
    return {"kind": kind, "name": name, "facts": shown, "tables": tables}


def _part_of_panel(name: str, snapshot: Snapshot, *targets: str) -> JSON:
    """Return the rows of a panel with these targets, without the columns that are empty in all of them."""
    panel = _PANELS[name]
    rows = [row for row in panel.rows(snapshot) if row.target in targets]
    shown_columns = [index for index in range(len(panel.columns)) if any(row.cells[index] for row in rows)]
    return {
        "name": name,
        "columns": [
            {"title": panel.columns[index].title, "right": panel.columns[index].right} for index in shown_columns
        ],
        "rows": [{**_row(row), "cells": [printable(row.cells[index]) for index in shown_columns]} for row in rows],
    }


def _join_directions(forward: str, backward: str) -> str:
    """Join the texts on both directions of a link; equal texts appear once."""
    if forward == backward:
        return forward
    return "; ".join(f"{arrow} {text}" for arrow, text in (("→", forward), ("←", backward)) if text)


def _other_fates(direction: Direction) -> str:
    """Format the fates other than a pass and a drop."""
    return ", ".join(f"{count:,} {name}" for name, count in direction.fates.items())

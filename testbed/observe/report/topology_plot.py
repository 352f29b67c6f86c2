"""Picture of a cluster: nodes, switches, and links between them with their declared and injected impairments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from textwrap import wrap
from typing import Final

from markupsafe import Markup

from testbed.observe.arrangement import SWITCH, Graph, Position, arrange, curves
from testbed.observe.report.pages import Table, render
from testbed.observe.report.plots import Plot
from testbed.spec.graphviz import describe_impairment
from testbed.spec.kinds import DEFAULT
from testbed.spec.layout import Layout, Link

_BOX: Final = (58.0, 26.0)  # width and height of a node
_MAX_LABELLED_LINKS: Final = 12  # with more impaired links, none is labelled
_MAX_ROWS: Final = 40  # links in the table
_LINE_HEIGHT: Final = 12.5  # of labels
_CHARACTER_WIDTH: Final = 6.6  # on average


def topology(layout: Layout, injected: Mapping[str, Sequence[str]], name: str, title: str) -> Plot:
    """Draw a cluster. injected: impairments that were injected, as text, by link. name: unique in the page."""
    centres = positions(layout)
    declared = {link.name: _declared(link) for link in layout.links}
    counts = [_quantity(len(layout.nodes), "node"), _quantity(len(layout.switches), "switch"),
             _quantity(len(layout.links), "link")]  # fmt: skip
    impaired = sum(1 for text in declared.values() if text)
    alt_text = (
        f"Picture of cluster {layout.name}: {', '.join(counts)}; {_quantity(impaired, 'link')} impaired by its "
        f"description, {_quantity(len(injected), 'link')} by injection."
    )
    svg = _svg(layout, centres, declared, injected, alt_text)
    caption = f"{', '.join(counts)}."
    caption += " Thick: impairments are declared." if impaired else ""
    caption += " Dashed: impairments were injected during the run." if injected else ""
    return Plot(name, title, svg, caption, alt_text, _table(layout, declared, injected))


def _quantity(count: int, noun: str) -> str:
    plural = noun + ("es" if noun.endswith("ch") else "s")
    return f"{count or 'no'} {noun if count == 1 else plural}"


def _declared(link: Link) -> str:
    if link.forward == link.backward:
        return describe_impairment(link.forward)
    directions = (("→", describe_impairment(link.forward)), ("←", describe_impairment(link.backward)))
    return "; ".join(f"{arrow} {text}" for arrow, text in directions if text)


def _table(layout: Layout, declared: Mapping[str, str], injected: Mapping[str, Sequence[str]]) -> Table:
    """Return a table of impairments, with one row for all links without any."""
    unimpaired = [link.name for link in layout.links if not declared[link.name] and link.name not in injected]
    impaired = [
        [link.name, declared[link.name] or "none", "; ".join(injected.get(link.name, ())) or "none"]
        for link in layout.links
        if link.name not in unimpaired
    ]
    rows = impaired[:_MAX_ROWS]
    if unimpaired:
        rows.append([_quantity(len(unimpaired), "other") if impaired else "all links", "none", "none"])
    hidden = max(len(impaired) - _MAX_ROWS, 0)
    note = f"{_quantity(hidden, 'more link')} {'is' if hidden == 1 else 'are'} impaired." if hidden else ""
    headings = ["link", "declared", "injected during the run"]
    return Table("Link impairments", headings, rows, frozenset({0, 1, 2}), note=note)


# Positions


def positions(layout: Layout) -> dict[str, Position]:
    """Return the centres of all nodes and switches, by name."""
    return arrange(_graph(layout), _BOX)


def _graph(layout: Layout) -> Graph:
    return Graph(
        [node.name for node in layout.nodes],
        [switch.name for switch in layout.switches],
        [(link.a.owner, link.b.owner) for link in layout.links],
    )


# Drawing


@dataclass(frozen=True, slots=True)
class _Box:
    """A node or switch. name: as shown, perhaps shortened. x, y: centre of the box. radius: of its corners."""

    kind: str
    name: str
    tooltip: str
    x: float
    y: float
    size: tuple[float, float]
    radius: float


@dataclass(frozen=True, slots=True)
class _Label:
    """A label of several lines. x, y: middle of the first line's baseline."""

    lines: Sequence[str]
    x: float
    y: float

    @property
    def bottom(self) -> float:
        return self.y + _LINE_HEIGHT * len(self.lines)


def _svg(
    layout: Layout,
    centres: Mapping[str, Position],
    declared: Mapping[str, str],
    injected: Mapping[str, Sequence[str]],
    alt_text: str,
) -> Markup:
    links = [
        (link, declared[link.name], injected.get(link.name, ()), _path(link, centres, control_point))
        for link, control_point in zip(layout.links, curves(_graph(layout), centres), strict=True)
    ]
    texts = [(link, [*filter(None, [declaration]), *injections]) for link, declaration, injections, _ in links]
    labels = [_label(link, layout, centres, lines) for link, lines in texts if lines]
    if len(labels) > _MAX_LABELLED_LINKS:
        labels = []
    boxes = []
    for switch in layout.switches:
        kind = "" if switch.kind == DEFAULT.name else f" ({switch.kind})"
        boxes.append(_box(switch.name, centres[switch.name], SWITCH, "switch", f"switch {switch.name}{kind}"))
    for node in layout.nodes:
        boxes.append(_box(node.name, centres[node.name], _BOX, "node", f"node {node.name} {node.address}".strip()))
    left = min(x for x, _ in centres.values()) - 100
    right = max(x for x, _ in centres.values()) + 100
    top = min(y for _, y in centres.values()) - 46
    bottom = max([max(y for _, y in centres.values()) + 34, *(label.bottom for label in labels)])
    return render(
        "topology.svg", alt_text=alt_text, view=f"{left:.0f} {top:.0f} {right - left:.0f} {bottom - top:.0f}",
        width=round(min(960, max(320, 1.15 * (right - left)))), links=links, boxes=boxes, labels=labels,
        line_height=_LINE_HEIGHT,
    )  # fmt: skip


def _label(link: Link, layout: Layout, centres: Mapping[str, Position], texts: Sequence[str]) -> _Label:
    """Return the label of a link. It is below the node of a link between a node and a switch if all nodes are in one row;
    otherwise it is above the middle of a horizontal link, or centred on that of any other link."""
    nodes = {node.name for node in layout.nodes}
    ends = [end.owner for end in (link.a, link.b) if end.owner in nodes]
    rows = {round(centres[node][1]) for node in nodes}
    texts = [_short(text, link) for text in texts]
    if len(ends) == 1 and layout.switches and len(rows) == 1:
        x, y = centres[ends[0]]
        return _Label([line for text in texts for line in wrap(text, 13)][:6], x, y + _BOX[1] / 2 + 15)
    (x1, y1), (x2, y2) = centres[link.a.owner], centres[link.b.owner]
    lines = [line for text in texts for line in wrap(text, 30)][:4]
    text_height = _LINE_HEIGHT * (len(lines) - 1)  # above a horizontal link, centred on any other
    return _Label(lines, (x1 + x2) / 2, (y1 + y2) / 2 - (text_height + 8 if y1 == y2 else text_height / 2 - 4))


def _short(text: str, link: Link) -> str:
    """Remove the name of the link or of an end from a label: ``loss 10%`` for ``loss 10% on n1``."""
    a, b = link.a.owner, link.b.owner
    for target in (a, b, str(link.a), str(link.b), f"{a}--{b}", f"{b}--{a}", link.name):
        text = text.removesuffix(f" on {target}").removesuffix(f": {target}")
    return text


def _box(name: str, center: Position, size: tuple[float, float], kind: str, tooltip: str) -> _Box:
    width, height = size
    max_characters = int((width - 6) / _CHARACTER_WIDTH)
    shown_name = name if len(name) <= max_characters else name[: max_characters - 1] + "…"
    return _Box(kind, shown_name, tooltip, *center, size, height / 2 if kind == "switch" else 5)


def _path(link: Link, centres: Mapping[str, Position], control_point: Position | None) -> str:
    """Return the SVG path of a link."""
    (x1, y1), (x2, y2) = centres[link.a.owner], centres[link.b.owner]
    curve = "L" if control_point is None else f"Q{control_point[0]:.1f} {control_point[1]:.1f} "
    return f"M{x1:.1f} {y1:.1f}{curve}{x2:.1f} {y2:.1f}"


def have_same_topology(layouts: Sequence[Layout]) -> bool:
    """Whether all layouts have equal nodes, switches and links, with all their properties, such as addresses and
    impairments."""
    return all(
        (first.nodes, first.switches, first.links) == (second.nodes, second.switches, second.links)
        for first, second in pairwise(layouts)
    )

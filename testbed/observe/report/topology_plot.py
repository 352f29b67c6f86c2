"""Picture of a cluster: nodes, switches, and links between them with their declared and injected impairments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise
from textwrap import wrap
from typing import Final

from testbed.observe.arrangement import SWITCH, Graph, Position, arrange, curves
from testbed.observe.report.markup import Table
from testbed.observe.report.plots import Plot
from testbed.spec.graphviz import described
from testbed.spec.kinds import DEFAULT
from testbed.spec.layout import Layout, Link

_BOX: Final = (58.0, 26.0)  # of a node: width, height
_MAX_WORDS: Final = 12  # impaired links up to which texts are drawn
_MAX_ROWS: Final = 40
_LINE: Final = 12.5  # line height of texts
_LETTER: Final = 6.6  # average width of a letter


def topology(layout: Layout, injected: Mapping[str, Sequence[str]], name: str, title: str) -> Plot:
    """Draw a cluster. injected: impairments as text, by link. name: unique in the page."""
    places = positions(layout)
    declared = {link.name: _declared(link) for link in layout.links}
    words = [_counted(len(layout.nodes), "node"), _counted(len(layout.switches), "switch"),
             _counted(len(layout.links), "link")]  # fmt: skip
    impaired = sum(1 for text in declared.values() if text)
    alternative = (
        f"Picture of cluster {layout.name}: {', '.join(words)}; {_counted(impaired, 'link')} impaired by its "
        f"description, {_counted(len(injected), 'link')} while it ran."
    )
    svg = _svg(layout, places, declared, injected, alternative)
    caption = f"{', '.join(words)}."
    caption += " Thick: impaired as declared." if impaired else ""
    caption += " Dashed: something was injected while the run went on." if injected else ""
    return Plot(name, title, svg, caption, alternative, _table(layout, declared, injected))


def _counted(count: int, what: str) -> str:
    several = what + ("es" if what.endswith("ch") else "s")
    return f"{count or 'no'} {what if count == 1 else several}"


def _declared(link: Link) -> str:
    if link.forward == link.backward:
        return described(link.forward)
    both = (("→", described(link.forward)), ("←", described(link.backward)))
    return "; ".join(f"{arrow} {text}" for arrow, text in both if text)


def _table(layout: Layout, declared: Mapping[str, str], injected: Mapping[str, Sequence[str]]) -> Table:
    """Table of impairments; links without any share one row."""
    plain = [link.name for link in layout.links if not declared[link.name] and link.name not in injected]
    impaired = [
        [link.name, declared[link.name] or "nothing", "; ".join(injected.get(link.name, ())) or "nothing"]
        for link in layout.links
        if link.name not in plain
    ]
    rows = impaired[:_MAX_ROWS]
    if plain:
        rows.append([f"{len(plain)} others" if impaired else "all links", "nothing", "nothing"])
    note = f"{len(impaired) - _MAX_ROWS} more links are impaired." if len(impaired) > _MAX_ROWS else ""
    headings = ["link", "declared", "injected while it ran"]
    return Table("What links did to frames", headings, rows, frozenset({0, 1, 2}), note=note)


# Positions


def positions(layout: Layout) -> dict[str, Position]:
    """Positions of all nodes and switches, by name: their centres."""
    return arrange(_graph(layout), _BOX)


def _graph(layout: Layout) -> Graph:
    return Graph(
        [node.name for node in layout.nodes],
        [switch.name for switch in layout.switches],
        [(link.a.owner, link.b.owner) for link in layout.links],
    )


# Drawing


def _svg(
    layout: Layout,
    places: Mapping[str, Position],
    declared: Mapping[str, str],
    injected: Mapping[str, Sequence[str]],
    alternative: str,
) -> str:
    few = sum(1 for link in layout.links if declared[link.name] or link.name in injected) <= _MAX_WORDS
    drawn = [
        _link(link, places, via, declared[link.name], injected.get(link.name, ()))
        for link, via in zip(layout.links, curves(_graph(layout), places), strict=True)
    ]
    for switch in layout.switches:
        kind = "" if switch.kind == DEFAULT.name else f" ({switch.kind})"
        drawn.append(_box(switch.name, places[switch.name], SWITCH, "switch", f"switch {switch.name}{kind}"))
    for node in layout.nodes:
        drawn.append(_box(node.name, places[node.name], _BOX, "node", f"node {node.name} {node.address}".strip()))
    left = min(x for x, _ in places.values()) - 100
    right = max(x for x, _ in places.values()) + 100
    top = min(y for _, y in places.values()) - 46
    lowest = bottom = max(y for _, y in places.values()) + 34
    if few:
        for link in layout.links:
            texts = [text for text in (declared[link.name], *injected.get(link.name, ())) if text]
            words, lowest = _words(link, layout, places, texts, lowest)
            drawn.append(words)
            bottom = max(bottom, lowest)
    box = f"{left:.0f} {top:.0f} {right - left:.0f} {bottom - top:.0f}"
    width = min(960, max(320, 1.15 * (right - left)))
    return (
        f'<svg class="topology" role="img" aria-label="{escape(alternative, quote=True)}" viewBox="{box}" '
        f'style="max-width:{width:.0f}px">{"".join(drawn)}</svg>'
    )


def _words(
    link: Link, layout: Layout, places: Mapping[str, Position], texts: Sequence[str], lowest: float
) -> tuple[str, float]:
    """Text beside a link, at its node if there is a single row of nodes, else at its middle; and how far down texts
    reach."""
    if not texts:
        return "", lowest
    nodes = {node.name for node in layout.nodes}
    ends = [end.owner for end in (link.a, link.b) if end.owner in nodes]
    rows = {round(places[node][1]) for node in nodes}
    texts = [_short(text, link) for text in texts]
    if len(ends) == 1 and layout.switches and len(rows) == 1:
        x, y = places[ends[0]]
        y += _BOX[1] / 2 + 15
        lines = [line for text in texts for line in wrap(text, 13)][:6]
    else:
        (x1, y1), (x2, y2) = places[link.a.owner], places[link.b.owner]
        lines = [line for text in texts for line in wrap(text, 30)][:4]
        beside = _LINE * (len(lines) - 1)  # above a horizontal line, centred on others
        x, y = (x1 + x2) / 2, (y1 + y2) / 2 - (beside + 8 if y1 == y2 else beside / 2 - 4)
    spans = "".join(
        f'<tspan x="{x:.1f}" y="{y + _LINE * number:.1f}">{escape(line)}</tspan>' for number, line in enumerate(lines)
    )
    return f'<text class="words">{spans}</text>', max(lowest, y + _LINE * len(lines))


def _short(text: str, link: Link) -> str:
    """Text without the place beside which it stands: ``loss 10%`` for ``loss 10% on n1``."""
    a, b = link.a.owner, link.b.owner
    for prefix in (a, b, str(link.a), str(link.b), f"{a}--{b}", f"{b}--{a}", link.name):
        text = text.removesuffix(f" on {prefix}").removesuffix(f": {prefix}")
    return text


def _box(name: str, at: Position, size: Position, kind: str, tooltip: str) -> str:
    (x, y), (width, height) = at, size
    room = int((width - 6) / _LETTER)
    shown = name if len(name) <= room else name[: room - 1] + "…"
    radius = height / 2 if kind == "switch" else 5
    return (
        f'<g class="{kind}"><title>{escape(tooltip)}</title><rect x="{x - width / 2:.1f}" y="{y - height / 2:.1f}" '
        f'width="{width}" height="{height}" rx="{radius}"/><text x="{x:.1f}" y="{y + 4:.1f}">{escape(shown)}</text></g>'
    )


def _link(
    link: Link, places: Mapping[str, Position], via: Position | None, declared: str, injected: Sequence[str]
) -> str:
    (x1, y1), (x2, y2) = places[link.a.owner], places[link.b.owner]
    classes = " ".join(["link", *(["declared"] if declared else []), *(["injected"] if injected else [])])
    tooltip = f"{link.name}: {declared or 'nothing declared'}" + (
        f"; injected: {'; '.join(injected)}" if injected else ""
    )
    bend = f"L{x2:.1f} {y2:.1f}" if via is None else f"Q{via[0]:.1f} {via[1]:.1f} {x2:.1f} {y2:.1f}"
    path = f"M{x1:.1f} {y1:.1f}{bend}"
    return f'<g class="{classes}"><title>{escape(tooltip)}</title><path d="{path}"/></g>'


def are_alike(layouts: Sequence[Layout]) -> bool:
    """Whether one picture shows all these layouts."""
    return all(
        (layout.nodes, layout.switches, layout.links) == (following.nodes, following.switches, following.links)
        for layout, following in pairwise(layouts)
    )

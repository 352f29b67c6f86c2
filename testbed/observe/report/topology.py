"""A picture of a cluster: nodes in rows under their switch, switches in layers above each other, and links between them with
what they were declared to do to frames and what was injected while the run went on.

A switch's layer is its distance to the nearest node, so that racks, fat trees and stars look as one draws them. Nodes that
no switch connects stand in a circle.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise
from textwrap import wrap
from typing import Final

from testbed.observe.report.markup import Table
from testbed.observe.report.plotting import Plot
from testbed.spec.drawing import described
from testbed.spec.layout import Layout, Link

_BOX: Final = (58.0, 26.0)  # a node
_GAP: Final = 22.0
_LAYER: Final = 84.0
_SWITCH: Final = (74.0, 30.0)
_MOST_WORDS: Final = 12  # links that have words beside them
_MOST_ROWS: Final = 40
_LINE: Final = 12.5  # how far words are below each other
_LETTER: Final = 6.6  # how wide one is

Place = tuple[float, float]


def topology(layout: Layout, injected: Mapping[str, Sequence[str]], name: str, title: str) -> Plot:
    """injected: by link, what was, in words. name: unique in the page."""
    places = placed(layout)
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
    """Links of which there is nothing to tell are one row."""
    plain = [link.name for link in layout.links if not declared[link.name] and link.name not in injected]
    told = [
        [link.name, declared[link.name] or "nothing", "; ".join(injected.get(link.name, ())) or "nothing"]
        for link in layout.links
        if link.name not in plain
    ]
    rows = told[:_MOST_ROWS]
    if plain:
        rows.append([f"{len(plain)} others" if told else "all links", "nothing", "nothing"])
    note = f"{len(told) - _MOST_ROWS} more links are impaired." if len(told) > _MOST_ROWS else ""
    headings = ["link", "declared", "injected while it ran"]
    return Table("What links did to frames", headings, rows, frozenset({0, 1, 2}), note=note)


# Where everything stands


def placed(layout: Layout) -> dict[str, Place]:
    """The middle of everything, by name."""
    if not layout.switches:
        return _circle([node.name for node in layout.nodes])
    neighbours: dict[str, list[str]] = {}
    for link in layout.links:
        neighbours.setdefault(link.a.owner, []).append(link.b.owner)
        neighbours.setdefault(link.b.owner, []).append(link.a.owner)
    switches = [switch.name for switch in layout.switches]
    layers = _layers(layout, switches, neighbours)
    under: dict[str, list[str]] = {switch: [] for switch in switches}
    for node in layout.nodes:  # under its first switch
        home = next((one for one in neighbours.get(node.name, ()) if one in under), switches[0])
        under[home].append(node.name)
    places: dict[str, Place] = {}
    left, columns = 0.0, _columns(len(layout.nodes), sum(1 for some in under.values() if some))
    for switch in layers[0]:
        wide = min(columns, max(1, len(under[switch])))
        width = max(wide * (_BOX[0] + _GAP), _SWITCH[0] + 2 * _GAP)
        middle = left + width / 2
        places[switch] = (middle, 0.0)
        for number, name in enumerate(under[switch]):
            row, column = divmod(number, columns)
            here = min(wide, len(under[switch]) - row * columns)
            x = middle + (column - (here - 1) / 2) * (_BOX[0] + _GAP)
            places[name] = (x, _LAYER + row * (_BOX[1] + _GAP))
        left += width + _GAP
    for height, layer in enumerate(layers[1:], 1):
        _spread(layer, neighbours, places, left, -height * _LAYER)
    return places


def _columns(nodes: int, groups: int) -> int:
    """In a row under one switch; twice as wide as high, where there is one."""
    return max(2, math.ceil(math.sqrt(2.2 * nodes / max(1, groups)))) if nodes > 10 else max(1, nodes)


def _layers(layout: Layout, switches: list[str], neighbours: Mapping[str, list[str]]) -> list[list[str]]:
    distance = {node.name: 0 for node in layout.nodes}
    waiting = list(distance)
    for one in waiting:
        for other in neighbours.get(one, ()):
            if other not in distance:
                distance[other] = distance[one] + 1
                waiting.append(other)
    deepest = max((distance.get(switch, 1) for switch in switches), default=1)
    return [[one for one in switches if distance.get(one, 1) == depth] for depth in range(1, deepest + 1)]


def _spread(
    layer: list[str], neighbours: Mapping[str, list[str]], places: dict[str, Place], width: float, y: float
) -> None:
    """Above the middle of what is below it, and no two at one place."""

    def middle(switch: str) -> float:
        below = [places[one][0] for one in neighbours.get(switch, ()) if one in places]
        return sum(below) / len(below) if below else width / 2

    step = max(_SWITCH[0] + 2 * _GAP, width / max(1, len(layer)))
    first = width / 2 - step * (len(layer) - 1) / 2
    for number, switch in enumerate(sorted(layer, key=middle)):
        places[switch] = (first + number * step, y)


def _circle(names: Sequence[str]) -> dict[str, Place]:
    if len(names) <= 2:
        return {name: (number * 3.6 * _BOX[0], 0.0) for number, name in enumerate(names)}
    radius = max(90.0, len(names) * (_BOX[0] + _GAP) / (2 * math.pi))
    turns = [2 * math.pi * number / len(names) - math.pi / 2 for number in range(len(names))]
    return {name: (radius * math.cos(turn), radius * math.sin(turn)) for name, turn in zip(names, turns, strict=True)}


# What it looks like


def _svg(
    layout: Layout,
    places: Mapping[str, Place],
    declared: Mapping[str, str],
    injected: Mapping[str, Sequence[str]],
    alternative: str,
) -> str:
    few = sum(1 for link in layout.links if declared[link.name] or link.name in injected) <= _MOST_WORDS
    drawn = [_link(link, places, declared[link.name], injected.get(link.name, ())) for link in layout.links]
    for switch in layout.switches:
        kind = "" if switch.kind == "ethernet" else f" ({switch.kind})"
        drawn.append(_box(switch.name, places[switch.name], _SWITCH, "switch", f"switch {switch.name}{kind}"))
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
    link: Link, layout: Layout, places: Mapping[str, Place], texts: Sequence[str], lowest: float
) -> tuple[str, float]:
    """What a link does, at its node if it is the only row of nodes, else at its middle; and how far down words reach."""
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
        beside = _LINE * (len(lines) - 1)  # above a line that is level, around the middle of another
        x, y = (x1 + x2) / 2, (y1 + y2) / 2 - (beside + 8 if y1 == y2 else beside / 2 - 4)
    spans = "".join(
        f'<tspan x="{x:.1f}" y="{y + _LINE * number:.1f}">{escape(line)}</tspan>' for number, line in enumerate(lines)
    )
    return f'<text class="words">{spans}</text>', max(lowest, y + _LINE * len(lines))


def _short(text: str, link: Link) -> str:
    """Without the place beside which it stands: ``loss 10%`` for ``loss 10% on n1``."""
    a, b = link.a.owner, link.b.owner
    for place in (a, b, str(link.a), str(link.b), f"{a}--{b}", f"{b}--{a}", link.name):
        text = text.removesuffix(f" on {place}").removesuffix(f": {place}")
    return text


def _box(name: str, at: Place, size: Place, kind: str, told: str) -> str:
    (x, y), (width, height) = at, size
    room = int((width - 6) / _LETTER)
    shown = name if len(name) <= room else name[: room - 1] + "…"
    radius = height / 2 if kind == "switch" else 5
    return (
        f'<g class="{kind}"><title>{escape(told)}</title><rect x="{x - width / 2:.1f}" y="{y - height / 2:.1f}" '
        f'width="{width}" height="{height}" rx="{radius}"/><text x="{x:.1f}" y="{y + 4:.1f}">{escape(shown)}</text></g>'
    )


def _link(link: Link, places: Mapping[str, Place], declared: str, injected: Sequence[str]) -> str:
    (x1, y1), (x2, y2) = places[link.a.owner], places[link.b.owner]
    classes = " ".join(["link", *(["declared"] if declared else []), *(["injected"] if injected else [])])
    told = f"{link.name}: {declared or 'nothing declared'}" + (f"; injected: {'; '.join(injected)}" if injected else "")
    between = any(
        min(x1, x2) < x < max(x1, x2)
        for one, (x, y) in places.items()
        if y == y1 and one not in (link.a.owner, link.b.owner)
    )
    if y1 == y2 and between:  # it goes round what stands between
        path = f"M{x1:.1f} {y1:.1f}Q{(x1 + x2) / 2:.1f} {y1 - 30 - abs(x2 - x1) * 0.12:.1f} {x2:.1f} {y2:.1f}"
    else:
        path = f"M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"
    return f'<g class="{classes}"><title>{escape(told)}</title><path d="{path}"/></g>'


def alike(layouts: Sequence[Layout]) -> bool:
    """Whether one picture shows them all."""
    return all(
        (one.nodes, one.switches, one.links) == (other.nodes, other.switches, other.links)
        for one, other in pairwise(layouts)
    )

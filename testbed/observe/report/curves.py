"""What came out against what it was measured at: latency and bandwidth against size, and what else workloads vary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy

from testbed.observe.quantities import cell, heading
from testbed.observe.report.columns import Kind
from testbed.observe.report.markup import Table
from testbed.observe.report.plotting import (
    INK,
    LINES,
    MARKERS,
    PAPER,
    SERIES,
    Plot,
    at,
    drawing,
    scale,
    svg_of,
    tick,
)
from testbed.observe.report.published import Published, published
from testbed.observe.report.telling import Told


@dataclass(frozen=True, slots=True)
class Curve:
    """One plot of a workload's rows: the value `y` against `x`, a line for each value of `by`. band: a lower and an upper
    value around each. log: the axes with a logarithmic scale."""

    name: str
    title: str
    x: str
    y: str
    by: str = ""
    band: tuple[str, str] | None = None
    log: str = ""
    axes: tuple[str, str] = ("", "")


CURVES: Final = (
    Curve("latency", "Latency against message size", "size_bytes", "p50_ns", band=("min_ns", "p99_ns"), log="xy",
          axes=("message size", "latency, median")),
    Curve("bandwidth", "Bandwidth against message size", "size_bytes", "bandwidth_bit_s", by="pattern", log="xy",
          axes=("message size", "bandwidth")),
    Curve("message-rate", "Messages per second against message size", "size_bytes", "messages_per_s", by="pattern", log="xy",
          axes=("message size", "messages per second")),
    Curve("signature", "LogP signature", "requests", "each_ns", by="work_ns", log="xy",
          axes=("requests in a burst", "time per request")),
    Curve("availability", "Bandwidth against the processor's share that is left to the program", "availability",
          "bandwidth_bit_s", axes=("share of the processor that the work got", "bandwidth")),
    Curve("clients", "Bandwidth against the number of clients", "clients", "aggregate_bit_s", log="x",
          axes=("clients", "aggregate bandwidth")),
    Curve("clients-latency", "Latency against the number of clients", "clients", "p50_ns", band=("min_ns", "p99_ns"),
          log="xy", axes=("clients", "round trip, median")),
    Curve("destinations", "Messages per second against the number of destinations", "destinations", "messages_per_s",
          log="x", axes=("destinations", "messages per second")),
)  # fmt: skip

_MOST_LINES: Final = 8


@dataclass(frozen=True, slots=True)
class Line:
    """Points in the order of x: the median of those rows that have the same. run: its place among the runs."""

    run: int
    label: str
    by: str
    points: Sequence[tuple[float, float]]
    band: Sequence[tuple[float, float]] = ()


def curves(runs: Sequence[Told]) -> list[Plot]:
    """Those that the runs' rows are enough for: two values of x at least."""
    plots = []
    for curve in CURVES:
        lines = [line for place, one in enumerate(runs) for line in _lines(curve, place, one, len(runs) > 1)]
        lines = [line for line in lines if len(line.points) > 1][: _MOST_LINES * len(runs)]
        if lines:
            plots.append(_plot(curve, lines, published(runs, curve.x, curve.y)))
    return plots


def _lines(curve: Curve, place: int, told: Told, several: bool) -> list[Line]:
    found = []
    for kind in told.kinds:
        if not (kind.numeric(curve.x) and kind.numeric(curve.y)):
            continue
        splits: Sequence[float | str] = kind.distinct(curve.by) if kind.splits(curve.by) else [""]
        for value in splits[:_MOST_LINES]:
            by = (
                ""
                if value == ""
                else value
                if isinstance(value, str)
                else f"{heading(curve.by)} {tick(curve.by, value)}"
            )
            label = " ".join(part for part in (told.label if several else "", by) if part)
            found.append(_line(curve, place, kind, value, label, by))
    return found


def _line(curve: Curve, place: int, kind: Kind, value: float | str, label: str, by: str) -> Line:
    chosen = kind.where(**{curve.by: value}) if value != "" else kind.where()
    x, y = kind.column(curve.x)[chosen], kind.column(curve.y)[chosen]
    if "y" in curve.log:  # what takes no time, or carries nothing, has no place there
        chosen = chosen & (kind.column(curve.y) > 0)
        x, y = x[y > 0], y[y > 0]
    band: list[tuple[float, float]] = []
    xs = [float(one) for one in numpy.unique(x)]
    if curve.band is not None and all(kind.numeric(key) for key in curve.band):
        low, high = (kind.column(key)[chosen] for key in curve.band)
        band = [(float(low[x == one].min()), float(numpy.median(high[x == one]))) for one in xs]
    return Line(place, label, by, [(one, float(numpy.median(y[x == one]))) for one in xs], band)


def _plot(curve: Curve, lines: Sequence[Line], paper: Published | None) -> Plot:
    told = [f"{line.label or curve.axes[1]}: {_ends(curve, line)}" for line in lines]
    paper_words = f" The paper's values: {paper.words}" if paper is not None else ""
    alternative = f"{curve.title}. {'; '.join(told)}.{paper_words}"
    caption = f"{curve.axes[1].capitalize()}, of all rows with the same {curve.axes[0]} the median."
    if any(line.band for line in lines):
        caption += " The band reaches from the shortest to the 99th percentile."
    if paper is not None:
        caption += f" Hollow diamonds are the paper's own values, on its hardware: {paper.source}."
    by = list(dict.fromkeys(line.by for line in lines))
    alone = len({line.run for line in lines}) == 1
    with drawing(3.5) as figure:
        axes = figure.add_subplot()
        zero = any(x == 0 for line in lines for x, _ in line.points)
        scale(axes, "x", curve.x, log="x" in curve.log, zero=zero and "x" in curve.log)
        ys = [y for line in lines for _, y in line.points]
        scale(axes, "y", curve.y, log="y" in curve.log, narrow=max(ys) < 15 * min(ys))
        for line in lines:
            colour = SERIES[(by.index(line.by) if alone else line.run) % len(SERIES)]
            xs = [x for x, _ in line.points]
            if line.band:
                low, high = zip(*line.band, strict=True)
                axes.fill_between(xs, low, high, color=colour, alpha=0.14 if alone else 0.08, linewidth=0)
            marker = MARKERS[(by.index(line.by) if alone else line.run) % len(MARKERS)]
            style = LINES[by.index(line.by) % len(LINES)]
            points = [y for _, y in line.points]
            axes.plot(xs, points, color=colour, marker=marker, linestyle=style, label=line.label or None)
        if paper is not None:
            axes.plot([x for x, _ in paper.points], [y for _, y in paper.points], linestyle="none", marker="D",
                      markersize=8, markerfacecolor="none", markeredgewidth=1.8, markeredgecolor=PAPER,
                      label="the paper's values")  # fmt: skip
        values = sorted({x for line in lines for x, _ in line.points})
        if "x" in curve.log:
            at(axes, values, curve.x)
        if curve.log != "xy":
            axes.set_ylim(bottom=0)
        axes.set_xlabel(curve.axes[0])
        axes.set_title(curve.axes[1])
        if any(line.label for line in lines) or paper is not None:
            axes.legend(labelcolor=INK)
        drawn = svg_of(figure, curve.name, alternative)
    return Plot(curve.name, curve.title, drawn, caption, alternative, _table(curve, lines, paper))


def _ends(curve: Curve, line: Line) -> str:
    (first_x, first), (last_x, last) = line.points[0], line.points[-1]
    return f"{cell(curve.y, first)} at {tick(curve.x, first_x)}, {cell(curve.y, last)} at {tick(curve.x, last_x)}"


def _table(curve: Curve, lines: Sequence[Line], paper: Published | None) -> Table:
    values = sorted({x for line in lines for x, _ in line.points} | {x for x, _ in (paper.points if paper else ())})
    columns = [dict(line.points) for line in lines] + ([dict(paper.points)] if paper else [])
    names = [line.label or curve.axes[1] for line in lines] + (["the paper's"] if paper else [])
    rows = [[tick(curve.x, x), *(cell(curve.y, column.get(x)) for column in columns)] for x in values]
    return Table(f"{curve.title}, in figures", [curve.axes[0], *names], rows)

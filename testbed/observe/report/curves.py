"""Plots of results against conditions: latency and bandwidth against size, and further parameters of workloads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from polars import col

from testbed.errors import TestbedError
from testbed.observe.format.quantities import format_value, heading
from testbed.observe.paper_files import paper_of
from testbed.observe.papers import UNITS, is_measured_by
from testbed.observe.report.columns import Kind
from testbed.observe.report.pages import Table
from testbed.observe.report.plots import (
    LINES,
    PAPER,
    Plot,
    add_legend,
    format_tick,
    new_figure,
    series_style,
    set_ticks,
    set_up_axis,
    to_svg,
)
from testbed.observe.report.run_summary import RunSummary


@dataclass(frozen=True, slots=True)
class PublishedPoints:
    """Published points of a paper. points: x and y in the units of rows. description: the points as text. source: the
    paper."""

    points: tuple[tuple[float, float], ...]
    description: str
    source: str


def published_points(runs: Sequence[RunSummary], x: str, y: str) -> PublishedPoints | None:
    """Return the published points for these keys of rows, from the paper of the first run's protocol that has any."""
    for run in runs:
        try:
            paper = paper_of(str(run.parameters.get("protocol", "")))
        except TestbedError:  # no paper, or the protocol is not installed
            continue
        rows = [
            row
            for row in paper.rows
            if row.take == y and x in row.where and not row.of and is_measured_by(row, paper, run.parameters)
        ]  # fmt: skip
        if rows:
            points = tuple(sorted((float(row.where[x]), row.paper / UNITS[row.unit] * row.per) for row in rows))
            description = ", ".join(
                f"{format_value(y, value)} at {format_value(x, round(x_value))}" for x_value, value in points
            )
            return PublishedPoints(points, f"{description}.", f"{paper.authors}, {paper.published}")
    return None


@dataclass(frozen=True, slots=True)
class Curve:
    """A plot of a workload's rows: the key `y` against `x`, with a line for each value of `by`. band: keys of the lower and
    the upper bound around `y`. log: the axes with a logarithmic scale. axes: labels of both axes."""

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

_MAX_LINES: Final = 8


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a plot. run: index of the run. by: the value that distinguishes the run's lines, as text. points: sorted by
    x, each the median of the rows with that x."""

    run: int
    label: str
    by: str
    points: Sequence[tuple[float, float]]
    band: Sequence[tuple[float, float]] = ()


def curves(runs: Sequence[RunSummary]) -> list[Plot]:
    """Return the plots for which the runs' rows have at least two values of x."""
    plots = []
    for curve in CURVES:
        lines = [line for index, run in enumerate(runs) for line in _lines(curve, index, run, len(runs) > 1)]
        lines = [line for line in lines if len(line.points) > 1][: _MAX_LINES * len(runs)]
        if lines:
            plots.append(_plot(curve, lines, published_points(runs, curve.x, curve.y)))
    return plots


def _lines(curve: Curve, run_index: int, run: RunSummary, has_several: bool) -> list[Line]:
    lines = []
    for kind in run.kinds:
        if not (kind.is_numeric(curve.x) and kind.is_numeric(curve.y)):
            continue
        groups: Sequence[float | str] = kind.distinct(curve.by) if kind.can_split(curve.by) else [""]
        for value in groups[:_MAX_LINES]:
            by = value if isinstance(value, str) else f"{heading(curve.by)} {format_tick(curve.by, value)}"
            label = " ".join(part for part in (run.label if has_several else "", by) if part)
            lines.append(_line(curve, run_index, kind, value, label, by))
    return lines


def _line(curve: Curve, run_index: int, kind: Kind, value: float | str, label: str, by: str) -> Line:
    rows = kind.where(**{curve.by: value}) if value != "" else kind.data
    if "y" in curve.log:  # a logarithmic axis cannot show 0
        rows = rows.filter(col(curve.y) > 0)
    has_band = curve.band is not None and all(kind.is_numeric(key) for key in curve.band)
    low, high = curve.band if curve.band is not None and has_band else (curve.y, curve.y)
    points = (
        rows.group_by(x=curve.x)
        .agg(col(curve.y).median().alias("y"), col(low).min().alias("low"), col(high).median().alias("high"))
        .sort("x")
    )
    band = points.select("low", "high").rows() if has_band else ()
    return Line(run_index, label, by, points.select("x", "y").rows(), band)


def _plot(curve: Curve, lines: Sequence[Line], paper: PublishedPoints | None) -> Plot:
    descriptions = [f"{line.label or curve.axes[1]}: {_ends(curve, line)}" for line in lines]
    paper_words = f" The paper's values: {paper.description}" if paper is not None else ""
    alt_text = f"{curve.title}. {'; '.join(descriptions)}.{paper_words}"
    caption = f"{curve.axes[1].capitalize()}: median of all rows with equal {curve.axes[0]}."
    if any(line.band for line in lines):
        caption += " The band reaches from the shortest to the 99th percentile."
    if paper is not None:
        caption += f" Hollow diamonds are the paper's values, measured on its hardware: {paper.source}."
    groups = list(dict.fromkeys(line.by for line in lines))
    has_single_run = len({line.run for line in lines}) == 1
    with new_figure(3.5) as figure:
        axes = figure.add_subplot()
        has_zero = any(x == 0 for line in lines for x, _ in line.points)
        set_up_axis(axes, "x", curve.x, log="x" in curve.log, zero=has_zero)
        ys = [y for line in lines for _, y in line.points]
        set_up_axis(axes, "y", curve.y, log="y" in curve.log, narrow=max(ys) < 15 * min(ys))
        for line in lines:
            series = series_style(groups.index(line.by) if has_single_run else line.run)
            xs = [x for x, _ in line.points]
            if line.band:
                low, high = zip(*line.band, strict=True)
                axes.fill_between(
                    xs, low, high, color=series["color"], alpha=0.14 if has_single_run else 0.08, linewidth=0
                )
            style = LINES[groups.index(line.by) % len(LINES)]
            points = [y for _, y in line.points]
            axes.plot(xs, points, linestyle=style, label=line.label or None, **series)
        if paper is not None:
            axes.plot([x for x, _ in paper.points], [y for _, y in paper.points], linestyle="none", marker="D",
                      markersize=8, markerfacecolor="none", markeredgewidth=1.8, markeredgecolor=PAPER,
                      label="the paper's values")  # fmt: skip
        values = sorted({x for line in lines for x, _ in line.points})
        if "x" in curve.log:
            set_ticks(axes, values, curve.x)
        if curve.log != "xy":
            axes.set_ylim(bottom=0)
        axes.set_xlabel(curve.axes[0])
        axes.set_title(curve.axes[1])
        if any(line.label for line in lines) or paper is not None:
            add_legend(axes)
        svg = to_svg(figure, curve.name, alt_text)
    return Plot(curve.name, curve.title, svg, caption, alt_text, _table(curve, lines, paper))


def _ends(curve: Curve, line: Line) -> str:
    ends = (line.points[0], line.points[-1])
    return ", ".join(f"{format_value(curve.y, y)} at {format_tick(curve.x, x)}" for x, y in ends)


def _table(curve: Curve, lines: Sequence[Line], paper: PublishedPoints | None) -> Table:
    values = sorted({x for line in lines for x, _ in line.points} | {x for x, _ in (paper.points if paper else ())})
    columns = [dict(line.points) for line in lines] + ([dict(paper.points)] if paper else [])
    names = [line.label or curve.axes[1] for line in lines] + (["the paper's"] if paper else [])
    rows = [[format_tick(curve.x, x), *(format_value(curve.y, column.get(x)) for column in columns)] for x in values]
    return Table(f"{curve.title}, in figures", [curve.axes[0], *names], rows)

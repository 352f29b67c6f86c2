"""Plots of reproductions: a paper's figures, drawn from our rows with the published points; the paper's other rows beside
ours; and the errors of all systems."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from testbed.observe.comparing.paper_shapes import Compared
from testbed.observe.comparing.score_summary import HEADINGS, ScoredRow, ScoredSystem, summary_rows
from testbed.observe.comparing.scores import Errors, Scores
from testbed.observe.format.quantities import format_value
from testbed.observe.papers import UNITS, Curve, PaperFigure
from testbed.observe.report.pages import Table
from testbed.observe.report.plots import (
    FAULT,
    GRID,
    INK,
    LINES,
    MARKERS,
    PAPER,
    SERIES,
    WIDTH,
    Plot,
    add_legend,
    format_tick,
    new_figure,
    set_ticks,
    set_up_axis,
    to_svg,
)

Points = Sequence[tuple[float, float]]

_DOTS_HEIGHT: Final = 0.62
"""Height of a system's dots in its row of the error plot."""

_DOT_LEVELS: Final = 7
"""Number of heights over which neighbouring dots are spread, so that they do not overlap."""


@dataclass(frozen=True, slots=True)
class _DrawnCurve:
    """A curve of a figure: our points and the published ones, both in the units of rows."""

    label: str
    ours: Points
    published: Points


def figure_plots(scores: Scores) -> Iterator[Plot]:
    """Yield plots of the paper's figures for which we have rows."""
    for number, figure in enumerate(scores.paper.figures, 1):
        curves = [_drawn_curve(curve, figure, scores) for curve in figure.curves]
        curves = [curve for curve in curves if curve.ours]
        if curves:
            yield _figure_plot(f"{scores.system}-figure-{number}", figure, curves)


def _drawn_curve(curve: Curve, figure: PaperFigure, scores: Scores) -> _DrawnCurve:
    ours = [
        (float(row[figure.x]), float(row[figure.y]))
        for row in scores.measured[curve.run]
        if figure.x in row and figure.y in row and _matches(row, curve.where)
    ]
    published = [
        (float(row.where[figure.x]), row.paper * row.per / UNITS[row.unit])
        for row in scores.paper.rows
        if (row.name in curve.points or row.table in curve.points) and figure.x in row.where
    ]
    return _DrawnCurve(curve.label, sorted(ours), sorted(published))


def _matches(row: Mapping[str, Any], where: Mapping[str, Any]) -> bool:
    return all(row.get(key) == value for key, value in where.items())


def _figure_plot(name: str, figure: PaperFigure, curves: Sequence[_DrawnCurve]) -> Plot:
    description = "; ".join(
        f"{curve.label}: {', '.join(_format_point(figure, point) for point in (curve.ours[0], curve.ours[-1]))}"
        for curve in curves
    )
    published = [point for curve in curves for point in curve.published]
    values_text = (
        f" The paper's values: {', '.join(_format_point(figure, point) for point in published)}." if published else ""
    )
    alt_text = f"{figure.name}. Ours: {description}.{values_text}"
    caption = f"In the paper: {figure.source}."
    if published:
        caption += " Hollow marks are the paper's values, in the colour of ours."
    values = [y for curve in curves for _, y in (*curve.ours, *curve.published)]
    with new_figure(3.5) as drawing:
        axes = drawing.add_subplot()
        set_up_axis(axes, "x", figure.x, log="x" in figure.log)
        set_up_axis(axes, "y", figure.y, log="y" in figure.log, narrow=max(values) < 15 * min(values))
        for number, curve in enumerate(curves):
            colour, marker = SERIES[number], MARKERS[number]
            axes.plot(*zip(*curve.ours, strict=True), color=colour, marker=marker, linestyle=LINES[number % len(LINES)],
                      label=curve.label)  # fmt: skip
            if curve.published:
                axes.plot(*zip(*curve.published, strict=True), color=colour, marker=marker, linestyle="none", markersize=9,
                          markerfacecolor="none", markeredgewidth=1.5, label=f"{curve.label}, the paper's")  # fmt: skip
        if "x" in figure.log:
            set_ticks(axes, sorted({x for curve in curves for x, _ in curve.ours}), figure.x)
        if "y" not in figure.log:
            axes.set_ylim(0, 1.08 * max(values))
        axes.set_xlabel(figure.axes[0])
        axes.set_title(figure.axes[1])
        add_legend(axes)
        svg = to_svg(drawing, name, alt_text)
    return Plot(name, figure.name, svg, caption, alt_text, _figure_table(figure, curves))


def _format_point(figure: PaperFigure, point: tuple[float, float]) -> str:
    return f"{format_value(figure.y, point[1])} at {format_tick(figure.x, point[0])}"


def _figure_table(figure: PaperFigure, curves: Sequence[_DrawnCurve]) -> Table:
    columns = {curve.label: dict(curve.ours) for curve in curves}
    columns |= {f"{curve.label}, the paper's": dict(curve.published) for curve in curves if curve.published}
    values = sorted({x for column in columns.values() for x in column})
    rows = [
        [format_tick(figure.x, x), *(format_value(figure.y, column.get(x)) for column in columns.values())]
        for x in values
    ]
    return Table(f"{figure.name}, in figures", [figure.axes[0], *columns], rows)


def row_plots(scores: Scores) -> Iterator[Plot]:
    """Yield plots of the paper's rows and ours that are not points of a figure, one for each table and unit."""
    points = {point for figure in scores.paper.figures for curve in figure.curves for point in curve.points}
    groups: dict[tuple[str, str], list[Compared]] = {}
    for compared in scores.rows:
        row = compared.row
        if row.name not in points and row.table not in points:
            groups.setdefault((row.table, row.unit), []).append(compared)
    for number, ((table, unit), rows) in enumerate(groups.items(), 1):
        title = f"{table[:1].upper()}{table[1:]}, {unit}" if table else f"Other values, {unit}"
        yield _row_plot(f"{scores.system}-rows-{number}", title, unit, rows)


def _row_plot(name: str, title: str, unit: str, rows: Sequence[Compared]) -> Plot:
    description = "; ".join(f"{row.name}: the paper's {row.row.paper:g}, ours {row.ours:.4g} {unit}" for row in rows)
    alt_text = f"{title}. {description}."
    caption = "Hollow diamonds are the paper's values, dots are ours; filled squares are ours of calibrated rows."
    with new_figure(0.9 + 0.27 * len(rows)) as drawing:
        axes = drawing.add_subplot()
        for position, row in enumerate(rows):
            axes.plot([row.row.paper, row.ours], [position, position], color=GRID, linewidth=3, zorder=1)
        row_positions = range(len(rows))
        axes.plot([row.row.paper for row in rows], row_positions, linestyle="none", marker="D", markersize=7,
                  markerfacecolor="none", markeredgewidth=1.5, markeredgecolor=PAPER, label="the paper's")  # fmt: skip
        for calibrated, marker, label in ((False, "o", "ours, predicted"), (True, "s", "ours, calibrated")):
            positions = [position for position in row_positions if rows[position].calibrated is calibrated]
            if positions:
                axes.plot([rows[position].ours for position in positions], positions, linestyle="none", marker=marker,
                          color=SERIES[0], label=label)  # fmt: skip
        values = [value for row in rows for value in (row.ours, row.row.paper)]
        if max(values) > 8 * min(values):
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0), numticks=12))
            axes.xaxis.set_minor_locator(NullLocator())
        else:
            axes.set_xlim(left=0, right=1.05 * max(values))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.set_xlabel(unit)
        axes.set_yticks(list(row_positions), [row.name for row in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.grid(visible=False, axis="y")
        add_legend(axes)
        svg = to_svg(drawing, name, alt_text)
    return Plot(name, title, svg, caption, alt_text)


def error_plot(systems: Sequence[ScoredSystem]) -> Plot:
    """Plot the errors of all systems, with a dot for each row."""
    cells = summary_rows(systems)
    alt_text = "Relative errors of the papers' values. " + "; ".join(
        ", ".join(f"{heading} {cell}".strip() for heading, cell in zip(("", *HEADINGS[1:]), row, strict=True))
        for row in cells
    ) + "."  # fmt: skip
    caption = (
        "Each dot is the relative error of our value of a published value. Filled dots are predictions, with their median "
        "as red lines; hollow squares were used to calibrate a constant."
    )
    with new_figure(0.8 + 0.52 * len(systems), WIDTH) as drawing:
        axes = drawing.add_subplot()
        axes.axvspan(-10, 10, color=GRID, alpha=0.5, linewidth=0)
        axes.axvline(0, color=INK, linewidth=0.8)
        for position, system in enumerate(systems):
            _draw_errors(axes, position, system.rows)
        axes.set_yticks(range(len(systems)), [system.system for system in systems])
        axes.set_ylim(len(systems) - 0.5, -0.5)
        axes.grid(visible=False, axis="y")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:+.0f} %" if value else "0"))
        axes.set_title("error of our value; red: the median; grey: within 10 %")
        svg = to_svg(drawing, "errors", alt_text)
    return Plot("errors", "All papers: errors of the published values", svg, caption, alt_text)


def _draw_errors(axes: Axes, position: int, rows: Sequence[ScoredRow]) -> None:
    predicted = sorted(100 * row.error for row in rows if not row.calibrated)
    heights = [
        position + _DOTS_HEIGHT * ((number % _DOT_LEVELS) / (_DOT_LEVELS - 1) - 0.5) for number in range(len(predicted))
    ]
    axes.plot(predicted, heights, linestyle="none", marker="o", markersize=4, alpha=0.75, color=SERIES[0])
    if predicted:
        median = 100 * Errors.of([row.error for row in rows if not row.calibrated]).median
        axes.vlines([-median, median], position - 0.4, position + 0.4, color=FAULT, linewidth=1.2)
    calibrated = [100 * row.error for row in rows if row.calibrated]
    axes.plot(calibrated, [position] * len(calibrated), linestyle="none", marker="s", markersize=6, markerfacecolor="none",
              markeredgecolor=PAPER, markeredgewidth=1.3)  # fmt: skip

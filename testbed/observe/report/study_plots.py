"""Plots of studies: each measure against one of the varied parameters, with a line for each value of a second parameter
and a panel for each value of a third. Bands are confidence intervals of the median over the runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

import polars
from matplotlib.axes import Axes

from testbed.observe.comparing.run_samples import is_measure
from testbed.observe.format.quantities import format_value, heading
from testbed.observe.report.pages import Table
from testbed.observe.report.plots import LINES, MARKERS, SERIES, Plot, add_legend, new_figure, set_up_axis, to_svg
from testbed.spec import units

CONFIDENCE: Final = 0.95
_REPETITIONS: Final = ("seed", "repeat", "point")
"""Parameters that only distinguish repetitions."""
_MAX_MEASURES, _MAX_FACETS, _MAX_LINES = 12, 6, 8

Key = tuple[str, str, str]
"""Values of facet, line and x."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Median of runs, and an interval that contains the true median with at least the probability CONFIDENCE. runs: number
    of runs. low, high: the interval; None if there are too few runs for it."""

    runs: int
    median: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class _Roles:
    """Roles of the varied parameters in a plot; empty: no parameter has the role. facet: the parameter with a panel for each
    value. rest: parameters without a role."""

    x: str
    line: str
    facet: str
    rest: tuple[str, ...]


def study_plots(varied: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[Plot]:
    """Plot each measure. varied: names of the varied parameters. rows: rows with the values of these parameters, and with
    `point`, the number of the run."""
    roles = _assign_roles(varied, rows)
    if not roles.x:
        return []
    measures = list(dict.fromkeys(key for row in rows for key, value in row.items() if is_measure(key, value)))
    return [
        _plot(f"study-{number}", measure, roles, _estimates(measure, roles, rows))
        for number, measure in enumerate(measures[:_MAX_MEASURES], 1)
    ]


def estimate(values: Sequence[float]) -> Estimate:
    """Return the median and its interval by order statistics: the narrowest symmetric pair of values whose coverage reaches
    CONFIDENCE."""
    ordered, count = sorted(values), len(values)
    tail, rank = 0.0, 0
    while rank < count // 2:
        tail += math.comb(count, rank) / 2**count
        if 1 - 2 * tail < CONFIDENCE:
            break
        rank += 1
    low, high = (ordered[rank - 1], ordered[count - rank]) if rank else (None, None)
    return Estimate(count, median(ordered), low, high)


def _assign_roles(varied: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> _Roles:
    """Assign roles to parameters: x is the numeric parameter with the most values or, if none is numeric, the parameter with
    the most values."""
    counts = {name: len({str(row.get(name)) for row in rows}) for name in varied if name not in _REPETITIONS}
    candidates = [name for name, count in counts.items() if count > 1]
    numeric = [name for name in candidates if all(_number(row.get(name)) is not None for row in rows)]
    x = max(numeric or candidates, key=lambda name: counts[name], default="")
    further = sorted((name for name in candidates if name != x), key=lambda name: -counts[name])
    line, facet = [*further, "", ""][:2]
    return _Roles(x, line, facet, tuple(further[2:]))


def _number(value: object) -> float | None:
    """Return a parameter's value as a number; a text with a unit is converted. None if it is not a number."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return float(value)
    for parse in (units.parse_probability, units.parse_duration, units.parse_rate, units.parse_size):
        try:
            return float(parse(value))
        except units.UnitError:
            continue
    return None


def _estimates(measure: str, roles: _Roles, rows: Sequence[Mapping[str, Any]]) -> dict[Key, Estimate]:
    """Estimate the measure for each combination of values. The value of a run is the median of its rows."""
    samples = [
        (
            str(row.get(roles.facet, "")),
            str(row.get(roles.line, "")),
            str(row.get(roles.x)),
            str(row["point"]),
            float(value),
        )
        for row in rows
        if (value := row.get(measure)) is not None and is_measure(measure, value)
    ]
    key = ("facet", "line", "x")
    frame = polars.DataFrame(samples, schema=[*key, "point", "value"], orient="row")
    runs = frame.group_by(*key, "point", maintain_order=True).agg(polars.col("value").median())
    medians = runs.group_by(key, maintain_order=True).agg("value")
    return {(facet, line, x): estimate(values) for facet, line, x, values in medians.iter_rows()}


def _plot(name: str, measure: str, roles: _Roles, estimates: Mapping[Key, Estimate]) -> Plot:
    facets = list(dict.fromkeys(facet for facet, *_ in estimates))
    title = f"{heading(measure)} against {roles.x}"
    min_runs = min(estimate.runs for estimate in estimates.values())
    caption = f"Medians of {min_runs} runs or more"
    if any(estimated.low is not None for estimated in estimates.values()):
        caption += f"; the bands contain the true median with {CONFIDENCE:.0%} confidence (order statistics)"
    caption += "."
    if roles.rest:
        caption += f" All values of {', '.join(roles.rest)} together."
    if len(facets) > _MAX_FACETS:
        caption += f" Of {len(facets)} values of {roles.facet}, the first {_MAX_FACETS}."
    lines = list(dict.fromkeys(line for _, line, _ in estimates))
    if len(lines) > _MAX_LINES:
        caption += f" Of {len(lines)} values of {roles.line}, the first {_MAX_LINES}."
    alt_text = (
        f"{title}. " + "; ".join(_describe(measure, key, estimated) for key, estimated in estimates.items()) + "."
    )
    with new_figure(3.2) as figure:
        panels = figure.subplots(1, min(len(facets), _MAX_FACETS), sharey=True, squeeze=False)[0]
        for panel, facet in zip(panels, facets, strict=False):
            shown = {key: estimated for key, estimated in estimates.items() if key[0] == facet}
            _draw(panel, measure, roles, lines[:_MAX_LINES], shown)
            panel.set_title(f"{roles.facet} {facet}" if roles.facet else heading(measure))
        panels[0].set_ylim(bottom=0)  # the axis is shared; set after all panels are drawn
        if roles.line:
            add_legend(panels[0], roles.line)
        svg = to_svg(figure, name, alt_text)
    return Plot(name, title, svg, caption, alt_text, _table(measure, roles, estimates))


def _draw(axes: Axes, measure: str, roles: _Roles, lines: Sequence[str], estimates: Mapping[Key, Estimate]) -> None:
    """Draw a panel. lines: the lines of all panels, whose colours are equal in all of them."""
    positions = _positions(list(dict.fromkeys(x for _, _, x in estimates)))
    set_up_axis(axes, "y", measure)
    for number, line in enumerate(lines):
        points = sorted((positions[x], estimated) for (_, name, x), estimated in estimates.items() if name == line)
        xs = [position for position, _ in points]
        colour = SERIES[number % len(SERIES)]
        banded = [
            (position, estimated.low, estimated.high)
            for position, estimated in points
            if estimated.low is not None and estimated.high is not None
        ]
        if banded:
            band_xs, low, high = zip(*banded, strict=True)
            axes.fill_between(band_xs, low, high, color=colour, alpha=0.14, linewidth=0)
        axes.plot(xs, [estimated.median for _, estimated in points], color=colour, marker=MARKERS[number % len(MARKERS)],
                  linestyle=LINES[number % len(LINES)], label=line)  # fmt: skip
    axes.set_xticks(list(positions.values()), list(positions))
    axes.set_xlabel(roles.x)


def _positions(values: Sequence[str]) -> dict[str, float]:
    """Return positions on the axis. Numbers are their own positions, or their logarithms if they span more than a factor of
    20; other values are at 0, 1, 2, and so on."""
    numbers = [_number(_to_number(value)) for value in values]
    coordinates = [number for number in numbers if number is not None]
    if len(coordinates) < len(values):
        return {value: float(position) for position, value in enumerate(values)}
    if min(coordinates) > 0 and max(coordinates) > 20 * min(coordinates):
        coordinates = [math.log2(number) for number in coordinates]
    return dict(sorted(zip(values, coordinates, strict=True), key=lambda pair: pair[1]))


def _to_number(value: str) -> object:
    try:
        return float(value)
    except ValueError:
        return value


def _describe(measure: str, key: Key, estimated: Estimate) -> str:
    return f"{' '.join(part for part in key if part)}: {_interval(measure, estimated)}"


def _interval(measure: str, estimated: Estimate) -> str:
    text = format_value(measure, estimated.median)
    if estimated.low is None or estimated.high is None:
        return text
    return f"{text} ({format_value(measure, estimated.low)} to {format_value(measure, estimated.high)})"


def _table(measure: str, roles: _Roles, estimates: Mapping[Key, Estimate]) -> Table:
    columns = [name for name in (roles.facet, roles.line) if name]
    rows = []
    for (facet, line, x), estimated in estimates.items():
        labels = [value for name, value in ((roles.facet, facet), (roles.line, line)) if name]
        rows.append([*labels, x, str(estimated.runs), _interval(measure, estimated)])
    headings = [*columns, roles.x, "runs", heading(measure)]
    return Table(f"{heading(measure)}, in figures", headings, rows, frozenset(range(len(columns) + 1)), headed=False)

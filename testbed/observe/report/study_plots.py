"""Plots of studies: each measure against one of the varied parameters, a line for each value of a second one, side by side
for those of a third one; the bands are confidence intervals over the runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from matplotlib.axes import Axes

from testbed.observe.comparing.run_samples import is_measure
from testbed.observe.format.quantities import format_value, heading
from testbed.observe.report.markup import Table
from testbed.observe.report.plots import INK, LINES, MARKERS, SERIES, Plot, new_figure, set_up_axis, to_svg
from testbed.spec import units

CONFIDENCE: Final = 0.95
_REPETITIONS: Final = ("seed", "repeat", "point")
"""Parameters whose runs are repetitions of one another."""
_MAX_MEASURES, _MAX_FACETS, _MAX_LINES = 12, 6, 8

Key = tuple[str, str, str]
"""Values of facet, line and x."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Median of runs, and an interval that contains the true one with CONFIDENCE; `low` and `high` are None where there
    are too few runs for it."""

    runs: int
    median: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class _Arrangement:
    """Roles of the varied parameters, each empty where there is none. rest: of those that have none."""

    x: str
    line: str
    facet: str
    rest: tuple[str, ...]


def study_plots(varied: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[Plot]:
    """Plot each measure. varied: names of parameters. rows: with their values, and `point`, the number of their run."""
    arrangement = _arranged(varied, rows)
    if not arrangement.x:
        return []
    measures = list(dict.fromkeys(key for row in rows for key, value in row.items() if is_measure(key, value)))
    return [_plot(measure, arrangement, _estimates(measure, arrangement, rows)) for measure in measures[:_MAX_MEASURES]]


def estimate(values: Sequence[float]) -> Estimate:
    """Median and its interval by order statistics: the narrowest symmetric pair whose coverage reaches CONFIDENCE."""
    ordered, count = sorted(values), len(values)
    outside, rank = 0.0, 0
    while rank < count // 2:
        outside += math.comb(count, rank) / 2**count
        if 1 - 2 * outside < CONFIDENCE:
            break
        rank += 1
    low, high = (ordered[rank - 1], ordered[count - rank]) if rank else (None, None)
    return Estimate(count, median(ordered), low, high)


def _arranged(varied: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> _Arrangement:
    """Give parameters their roles: x to the number with the most values, else to the parameter with the most."""
    counts = {name: len({str(row.get(name)) for row in rows}) for name in varied if name not in _REPETITIONS}
    candidates = [name for name, count in counts.items() if count > 1]
    numeric = [name for name in candidates if all(_number(row.get(name)) is not None for row in rows)]
    x = max(numeric or candidates, key=lambda name: counts[name], default="")
    others = sorted((name for name in candidates if name != x), key=lambda name: -counts[name])
    roles = [*others, "", ""]
    return _Arrangement(x, roles[0], roles[1], tuple(others[2:]))


def _number(value: object) -> float | None:
    """Return a parameter's value as a number, None where it is none."""
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


def _estimates(measure: str, arrangement: _Arrangement, rows: Sequence[Mapping[str, Any]]) -> dict[Key, Estimate]:
    """Estimate the measure for each combination of values. The value of a run is the median of its rows."""
    runs: dict[tuple[Key, object], list[float]] = {}
    for row in rows:
        value = row.get(measure)
        if value is not None and is_measure(measure, value):
            key = (str(row.get(arrangement.facet, "")), str(row.get(arrangement.line, "")), str(row.get(arrangement.x)))
            runs.setdefault((key, row["point"]), []).append(float(value))
    values: dict[Key, list[float]] = {}
    for (key, _), ones in runs.items():
        values.setdefault(key, []).append(median(ones))
    return {key: estimate(ones) for key, ones in values.items()}


def _plot(measure: str, arrangement: _Arrangement, estimates: Mapping[Key, Estimate]) -> Plot:
    facets = list(dict.fromkeys(facet for facet, *_ in estimates))
    title = f"{heading(measure)} against {arrangement.x}"
    few = min(estimate.runs for estimate in estimates.values())
    caption = f"Medians of {few} runs or more"
    if any(one.low is not None for one in estimates.values()):
        caption += f"; the bands contain the true median with {CONFIDENCE:.0%} confidence (order statistics)"
    caption += "."
    if arrangement.rest:
        caption += f" All values of {', '.join(arrangement.rest)} together."
    if len(facets) > _MAX_FACETS:
        caption += f" Of {len(facets)} values of {arrangement.facet}, the first {_MAX_FACETS}."
    alt_text = f"{title}. " + "; ".join(_words(measure, key, one) for key, one in estimates.items()) + "."
    with new_figure(3.2) as figure:
        panels = figure.subplots(1, min(len(facets), _MAX_FACETS), sharey=True, squeeze=False)[0]
        for panel, facet in zip(panels, facets, strict=False):
            _draw(panel, measure, arrangement, {key: one for key, one in estimates.items() if key[0] == facet})
            panel.set_title(f"{arrangement.facet} {facet}" if arrangement.facet else heading(measure))
        panels[0].set_ylim(bottom=0)  # of all, now that all is drawn
        if arrangement.line:
            panels[0].legend(labelcolor=INK, title=arrangement.line)
        drawn = to_svg(figure, f"study-{measure}", alt_text)
    return Plot(f"study-{measure}", title, drawn, caption, alt_text, _table(measure, arrangement, estimates))


def _draw(axes: Axes, measure: str, arrangement: _Arrangement, estimates: Mapping[Key, Estimate]) -> None:
    places = _places(list(dict.fromkeys(x for _, _, x in estimates)))
    set_up_axis(axes, "y", measure)
    for number, line in enumerate(list(dict.fromkeys(line for _, line, _ in estimates))[:_MAX_LINES]):
        points = sorted((places[x], one) for (_, name, x), one in estimates.items() if name == line)
        xs = [place for place, _ in points]
        colour = SERIES[number % len(SERIES)]
        banded = [(place, one.low, one.high) for place, one in points if one.low is not None and one.high is not None]
        if banded:
            across, low, high = zip(*banded, strict=True)
            axes.fill_between(across, low, high, color=colour, alpha=0.14, linewidth=0)
        axes.plot(xs, [one.median for _, one in points], color=colour, marker=MARKERS[number % len(MARKERS)],
                  linestyle=LINES[number % len(LINES)], label=line)  # fmt: skip
    axes.set_xticks(list(places.values()), list(places))
    axes.set_xlabel(arrangement.x)


def _places(values: Sequence[str]) -> dict[str, float]:
    """Places on the axis: the numbers, on a logarithmic scale where they span more than a factor of 20; else 0, 1, 2, ..."""
    numbers = [_number(_typed(value)) for value in values]
    known = [number for number in numbers if number is not None]
    if len(known) < len(values):
        return {value: float(place) for place, value in enumerate(values)}
    if min(known) > 0 and max(known) > 20 * min(known):
        known = [math.log2(number) for number in known]
    return dict(sorted(zip(values, known, strict=True), key=lambda pair: pair[1]))


def _typed(value: str) -> object:
    try:
        return float(value)
    except ValueError:
        return value


def _words(measure: str, key: Key, one: Estimate) -> str:
    return f"{' '.join(part for part in key if part)}: {_interval(measure, one)}"


def _interval(measure: str, one: Estimate) -> str:
    text = format_value(measure, one.median)
    if one.low is None or one.high is None:
        return text
    return f"{text} ({format_value(measure, one.low)} to {format_value(measure, one.high)})"


def _table(measure: str, arrangement: _Arrangement, estimates: Mapping[Key, Estimate]) -> Table:
    columns = [name for name in (arrangement.facet, arrangement.line) if name]
    rows = []
    for (facet, line, x), one in estimates.items():
        labels = [value for name, value in ((arrangement.facet, facet), (arrangement.line, line)) if name]
        rows.append([*labels, x, str(one.runs), _interval(measure, one)])
    headings = [*columns, arrangement.x, "runs", heading(measure)]
    return Table(f"{heading(measure)}, in figures", headings, rows, frozenset(range(len(columns) + 1)), headed=False)

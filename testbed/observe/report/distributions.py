"""Plots of the distribution of times: histogram and CDF of the samples, and percentiles of the rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator
from polars import col

from testbed.observe.format.quantities import format_time
from testbed.observe.report.columns import Kind, Numbers
from testbed.observe.report.pages import Table
from testbed.observe.report.plots import (
    INK,
    LINES,
    SERIES,
    Plot,
    add_legend,
    format_tick,
    new_figure,
    series_style,
    set_up_axis,
    to_svg,
)
from testbed.observe.report.run_summary import RunSummary
from testbed.observe.report.samples import Samples, samples

_QUANTILE_KEYS: Final = (("min_ns", 0.0), ("p50_ns", 0.5), ("p90_ns", 0.9), ("p99_ns", 0.99), ("p999_ns", 0.999))
_PERCENTILES: Final = numpy.array([0.5, 0.9, 0.99, 0.999])
_TAIL_PROBABILITIES: Final = (0.5, 0.1, 0.01, 0.001)
_BINS: Final = 60
_CDF_POINTS: Final = 400
_MAX_LINES: Final = 8


def distributions(runs: Sequence[RunSummary]) -> list[Plot]:
    """Return a plot of the samples, and one of percentiles if rows have them."""
    plots = []
    samples_of_runs = [(index, run, sample) for index, run in enumerate(runs) if (sample := samples(run)) is not None]
    if samples_of_runs:
        plots.append(_sample_plot(samples_of_runs, len(runs) > 1))
    curves = [line for index, run in enumerate(runs) for line in _percentile_curves(index, run, len(runs) > 1)]
    if curves:
        plots.append(_percentile_plot(curves, len(runs) > 1))
    return plots


def _sample_plot(samples_of_runs: Sequence[tuple[int, RunSummary, Samples]], has_multiple_runs: bool) -> Plot:
    descriptions = [
        f"{run.label + ': ' if has_multiple_runs else ''}{_quantile_text(sample.took)}"
        for _, run, sample in samples_of_runs
    ]
    alt_text = f"Distribution of times. {'; '.join(descriptions)}."
    all_times = numpy.concatenate([sample.took for *_, sample in samples_of_runs])
    positive = all_times[all_times > 0]
    shortest, longest = float(positive.min()) if positive.size else 1.0, float(max(all_times.max(), 2.0))
    edges = numpy.geomspace(shortest, longest * 1.0001, _BINS + 1) if longest / shortest > 20 else \
        numpy.linspace(all_times.min(), longest * 1.0001, _BINS + 1)  # fmt: skip
    log = longest / shortest > 20
    with new_figure(2.9) as figure:
        histogram, cumulative = figure.subplots(1, 2)
        for run_index, run, sample in samples_of_runs:
            style, label = _line_style(run_index), run.label if has_multiple_runs else None
            counts, _ = numpy.histogram(numpy.clip(sample.took, edges[0], None), edges)
            histogram.stairs(counts / sample.took.size, edges, color=style["color"], alpha=0.25, fill=True)
            histogram.stairs(counts / sample.took.size, edges, linewidth=1.2, label=label, **style)
            shares = numpy.linspace(0, 1, _CDF_POINTS + 1)
            cumulative.plot(
                numpy.maximum(_quantile_values(numpy.sort(sample.took), shares), edges[0]),
                shares,
                **style,
            )
        for axes, title in ((histogram, "share of samples"), (cumulative, "cumulative share")):
            axes.set_title(title)
            set_up_axis(axes, "x", "took_ns", log=log)
            if log:
                axes.xaxis.set_major_locator(LogLocator(base=10, numticks=6))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
            axes.set_ylim(bottom=0)
            axes.set_xlim(edges[0], edges[-1])
        if has_multiple_runs:
            add_legend(histogram)
        svg = to_svg(figure, "distribution", alt_text)
    rows = [
        [run.label if has_multiple_runs else run.title, f"{sample.took.size:,}", format_time(float(sample.took.min())),
         *(format_time(float(value)) for value in _quantile_values(numpy.sort(sample.took), _PERCENTILES)),
         format_time(float(sample.took.max()))]
        for _, run, sample in samples_of_runs
    ]  # fmt: skip
    table = Table("Percentiles", ["run", "sample", "min", "p50", "p90", "p99", "p99.9", "max"], rows)
    first = samples_of_runs[0][2]
    span = "the shortest positive to the longest value; zeros are drawn at its start" if log else \
        "the shortest to the longest value"  # fmt: skip
    caption = (
        f"Time of each {first.quantity}, from {first.source}: histogram and cumulative distribution. All values are "
        f"included; the axis spans {span}."
    )
    return Plot("distribution", "Distribution of times", svg, caption, alt_text, table)


def _line_style(run_index: int) -> dict[str, Any]:
    """Return colour and line style of a run, as keywords of Matplotlib's functions. The first `MAX_SERIES` runs have
    different combinations, and consecutive runs differ in both."""
    colour, cycle = run_index % len(SERIES), run_index // len(SERIES)
    return {"color": SERIES[colour], "linestyle": LINES[(colour + cycle) % len(LINES)]}


def _quantile_values(ordered: Numbers, shares: Numbers) -> Numbers:
    """Return a quantile for each share: the smallest value that this share of the values does not exceed."""
    quantiles: Numbers = ordered[numpy.maximum(numpy.ceil(shares * ordered.size).astype(int) - 1, 0)]
    return quantiles


def _quantile_text(values: Numbers) -> str:
    low, median, high = _quantile_values(numpy.sort(values), numpy.array([0.0, 0.5, 0.99]))
    return f"from {format_time(float(low))}, median {format_time(float(median))}, 99th percentile {format_time(float(high))}"


_PercentileCurve = tuple[int, int, str, list[float]]
"""Index of the run, number of the curve within the run, label, and a time for each of `_TAIL_PROBABILITIES`."""


def _percentile_curves(run_index: int, run: RunSummary, has_multiple_runs: bool) -> list[_PercentileCurve]:
    curves: list[_PercentileCurve] = []
    for kind in run.kinds:
        if not all(kind.is_numeric(key) for key, _ in _QUANTILE_KEYS):
            continue
        by = next((key for key in ("size_bytes", "clients", "node") if kind.can_split(key)), "")
        groups: Sequence[float | str] = kind.distinct(by) if by else [""]
        if has_multiple_runs:  # only the first and the last group, so that the runs' curves stay distinguishable
            groups = [groups[0], groups[-1]] if len(groups) > 1 else groups
        for number, value in enumerate(groups[:_MAX_LINES]):
            group = (
                value if isinstance(value, str) else f"{'' if by == 'size_bytes' else f'{by} '}{format_tick(by, value)}"
            )
            label = " ".join(part for part in (run.label if has_multiple_runs else "", group) if part)
            curves.append((run_index, number, label, _medians(kind, by, value)))
    return curves


def _medians(kind: Kind, by: str, value: float | str) -> list[float]:
    """Return the medians over the repetitions, for each percentile except the minimum."""
    rows = kind.where(**{by: value}) if by else kind.data
    return list(rows.select(col(key).median() for key, share in _QUANTILE_KEYS if share).row(0))


def _percentile_plot(curves: Sequence[_PercentileCurve], has_multiple_runs: bool) -> Plot:
    descriptions = [f"{label}: {format_time(times[0])} to {format_time(times[-1])}" for *_, label, times in curves]
    alt_text = f"Percentiles of times, from the median to the 99.9th. {'; '.join(descriptions)}."
    with new_figure(max(3.3, 0.5 + 0.2 * len(curves))) as figure:  # the legend has a line per curve
        axes = figure.add_subplot()
        for run, number, label, times in curves:
            series = run if has_multiple_runs else number
            style = LINES[number % len(LINES)] if has_multiple_runs else "-"
            axes.plot(_TAIL_PROBABILITIES, times, linestyle=style, label=label, **series_style(series))
        axes.set_xscale("log")
        axes.set_xlim(0.7, 0.0007)
        axes.xaxis.set_major_locator(FixedLocator(_TAIL_PROBABILITIES))
        axes.xaxis.set_minor_locator(FixedLocator([]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"p{100 * (1 - value):.4g}"))
        if all(time > 0 for *_, times in curves for time in times):
            set_up_axis(axes, "y", "took_ns", log=True)
        else:
            set_up_axis(axes, "y", "took_ns")
        axes.set_xlabel("percentile")
        axes.set_title("time that this share of samples does not exceed")
        axes.legend(labelcolor=INK, loc="center left", bbox_to_anchor=(1.0, 0.5))
        svg = to_svg(figure, "percentiles", alt_text)
    rows = [[label, *(format_time(time) for time in times)] for *_, label, times in curves]
    table = Table("Percentiles as a table", ["", "p50", "p90", "p99", "p99.9"], rows)
    caption = (
        "Each percentile covers all samples of a repetition. With several repetitions, the median of each percentile is "
        "shown. A flat line is a constant time."
    )
    return Plot("percentiles", "Percentiles of times", svg, caption, alt_text, table)

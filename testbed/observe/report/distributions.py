"""How times are distributed: all of a sample where there is one, else what rows say of theirs: their percentiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator

from testbed.observe.quantities import duration
from testbed.observe.report.columns import Kind, Numbers
from testbed.observe.report.markup import Table
from testbed.observe.report.plotting import INK, LINES, MARKERS, SERIES, Plot, drawing, scale, svg_of, tick
from testbed.observe.report.samples import Samples, samples
from testbed.observe.report.telling import Told

_SHARES: Final = (("min_ns", 0.0), ("p50_ns", 0.5), ("p90_ns", 0.9), ("p99_ns", 0.99), ("p999_ns", 0.999))
_TAILS: Final = (0.5, 0.1, 0.01, 0.001)
_BARS: Final = 60
_STEPS: Final = 400
_MOST_LINES: Final = 8


def distributions(runs: Sequence[Told]) -> list[Plot]:
    """Of the samples; and of percentiles, where rows tell them."""
    found = []
    sampled = [(place, told, some) for place, told in enumerate(runs) if (some := samples(told)) is not None]
    if sampled:
        found.append(_of_samples(sampled, len(runs) > 1))
    tails = [line for place, told in enumerate(runs) for line in _tails(place, told, len(runs) > 1)]
    if tails:
        found.append(_of_percentiles(tails, len(runs) > 1))
    return found


def _of_samples(of: Sequence[tuple[int, Told, Samples]], several: bool) -> Plot:
    told = [f"{one.label + ': ' if several else ''}{_quantiles(some.took)}" for _, one, some in of]
    alternative = f"Distribution of times. {'; '.join(told)}."
    every = numpy.concatenate([some.took for *_, some in of])
    positive = every[every > 0]
    least, most = float(positive.min()) if positive.size else 1.0, float(max(every.max(), 2.0))
    edges = numpy.geomspace(least, most * 1.0001, _BARS + 1) if most / least > 20 else \
        numpy.linspace(every.min(), most * 1.0001, _BARS + 1)  # fmt: skip
    log = most / least > 20
    with drawing(2.9) as figure:
        left, right = figure.subplots(1, 2)
        for place, one, some in of:
            colour, label = SERIES[place % len(SERIES)], one.label if several else None
            count, _ = numpy.histogram(numpy.clip(some.took, edges[0], None), edges)
            left.stairs(count / some.took.size, edges, color=colour, alpha=0.25, fill=True)
            left.stairs(count / some.took.size, edges, color=colour, linewidth=1.2, label=label)
            shares = numpy.linspace(0, 1, _STEPS + 1)
            right.plot(
                numpy.maximum(_at(numpy.sort(some.took), shares), edges[0]),
                shares,
                color=colour,
                linestyle=LINES[place % len(LINES)],
            )
        for axes, title in ((left, "share of messages"), (right, "share that took no longer")):
            axes.set_title(title)
            scale(axes, "x", "took_ns", log=log)
            if log:
                axes.xaxis.set_major_locator(LogLocator(base=10, numticks=6))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
            axes.set_ylim(bottom=0)
            axes.set_xlim(edges[0], edges[-1])
        if several:
            left.legend(labelcolor=INK)
        svg = svg_of(figure, "distribution", alternative)
    rows = [
        [one.label if several else one.title, f"{some.took.size:,}", duration(float(some.took.min())),
         *(duration(float(value)) for value in _at(numpy.sort(some.took), numpy.array([0.5, 0.9, 0.99, 0.999]))),
         duration(float(some.took.max()))]
        for _, one, some in of
    ]  # fmt: skip
    table = Table("Percentiles", ["run", "sample", "min", "p50", "p90", "p99", "p99.9", "max"], rows)
    words = of[0][2].what
    caption = (
        f"Time of each {words}, from {of[0][2].source}: how often, and accumulated. Every value counts; the axis ends with "
        f"the shortest and the longest."
    )
    return Plot("distribution", "Distribution of times", svg, caption, alternative, table)


def _at(ordered: Numbers, shares: Numbers) -> Numbers:
    """The smallest value that at least this share of the sorted ones does not exceed."""
    found: Numbers = ordered[numpy.maximum(numpy.ceil(shares * ordered.size).astype(int) - 1, 0)]
    return found


def _quantiles(values: Numbers) -> str:
    low, middle, high = _at(numpy.sort(values), numpy.array([0.0, 0.5, 0.99]))
    return f"from {duration(float(low))}, median {duration(float(middle))}, 99th percentile {duration(float(high))}"


_Tail = tuple[int, int, str, list[float]]  # run, number of the line in it, label, a time for each share in _TAILS


def _tails(place: int, told: Told, several: bool) -> list[_Tail]:
    found: list[_Tail] = []
    for kind in told.kinds:
        if not all(kind.numeric(key) for key, _ in _SHARES):
            continue
        by = next((key for key in ("size_bytes", "clients", "node") if kind.splits(key)), "")
        splits: Sequence[float | str] = kind.distinct(by) if by else [""]
        if several:  # the smallest and the largest are enough to compare
            splits = [splits[0], splits[-1]] if len(splits) > 1 else splits
        for number, value in enumerate(splits[:_MOST_LINES]):
            words = value if isinstance(value, str) else f"{'' if by == 'size_bytes' else f'{by} '}{tick(by, value)}"
            label = " ".join(part for part in (told.label if several else "", words) if part)
            found.append((place, number, label, _medians(kind, by, value)))
    return found


def _medians(kind: Kind, by: str, value: float | str) -> list[float]:
    """Over the repetitions, for each share but the first."""
    chosen = kind.where(**{by: value}) if by else kind.where()
    return [float(numpy.median(kind.column(key)[chosen])) for key, share in _SHARES if share]


def _of_percentiles(tails: Sequence[_Tail], several: bool) -> Plot:
    told = [f"{label}: {duration(times[0])} to {duration(times[-1])}" for *_, label, times in tails]
    alternative = f"Percentiles of times, from the median to the 99.9th. {'; '.join(told)}."
    with drawing(3.3) as figure:
        axes = figure.add_subplot()
        for run, number, label, times in tails:
            series = run if several else number
            axes.plot(_TAILS, times, color=SERIES[series % len(SERIES)], marker=MARKERS[series % len(MARKERS)],
                      linestyle=LINES[number % len(LINES)] if several else "-", label=label)  # fmt: skip
        axes.set_xscale("log")
        axes.set_xlim(0.7, 0.0007)
        axes.xaxis.set_major_locator(FixedLocator(_TAILS))
        axes.xaxis.set_minor_locator(FixedLocator([]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"p{100 * (1 - value):.4g}"))
        if all(time > 0 for *_, times in tails for time in times):
            scale(axes, "y", "took_ns", log=True)
        else:
            scale(axes, "y", "took_ns")
        axes.set_xlabel("percentile")
        axes.set_title("time that this share of messages does not exceed")
        axes.legend(labelcolor=INK, loc="center left", bbox_to_anchor=(1.0, 0.5))
        svg = svg_of(figure, "percentiles", alternative)
    rows = [[label, *(duration(time) for time in times)] for *_, label, times in tails]
    table = Table("Percentiles, in figures", ["", "p50", "p90", "p99", "p99.9"], rows)
    caption = (
        "Each percentile is of all messages; of several repetitions the median. A flat line is a time that is sure."
    )
    return Plot("percentiles", "Percentiles of times", svg, caption, alternative, table)

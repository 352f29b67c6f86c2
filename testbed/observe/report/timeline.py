"""The timeline of a run: which faults were in force, and what became of throughput and latency meanwhile.

However many messages there were, a plot has some hundred intervals: for each the throughput, the median, the percentiles
around it and the slowest, so that nothing extreme is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy
from matplotlib.axes import Axes

from testbed.observe.quantities import cell, duration
from testbed.observe.report.columns import Numbers
from testbed.observe.report.happenings import Happening
from testbed.observe.report.markup import Table
from testbed.observe.report.plotting import FAULT, INK, MUTED, SERIES, Plot, drawing, scale, svg_of
from testbed.observe.report.samples import Samples, samples
from testbed.observe.report.telling import Told

INTERVALS: Final = 150
_LANES: Final = 12
_TOLD: Final = 200  # faults in the table
_APART: Final = 500  # parts of the timeline that are told apart
_WORDS: Final = 44  # characters of a fault beside its bar


@dataclass(frozen=True, slots=True)
class Intervals:
    """edges: seconds, one more than intervals. Each: messages, bit/s, and percentiles of times in ns (NaN for none)."""

    edges: Numbers
    count: Numbers
    rate: Numbers | None
    low: Numbers
    median: Numbers
    high: Numbers
    slowest: Numbers


def in_intervals(of: Samples, end: float, intervals: int = INTERVALS) -> Intervals:
    """end: seconds, of the last one."""
    edges = numpy.linspace(0.0, max(end, 1e-9), intervals + 1)
    place = numpy.clip(numpy.searchsorted(edges, of.at, side="right") - 1, 0, intervals - 1)
    count = numpy.bincount(place, minlength=intervals)
    order = numpy.lexsort((of.took, place))
    ordered, first = of.took[order], numpy.concatenate(([0], numpy.cumsum(count)))[:-1]

    def quantile(share: float) -> Numbers:
        found = numpy.full(intervals, numpy.nan)
        some = count > 0
        found[some] = ordered[first[some] + numpy.maximum(numpy.ceil(share * count[some]).astype(int) - 1, 0)]
        return found

    rate = None
    if of.moved is not None:
        rate = 8 * numpy.bincount(place, weights=of.moved, minlength=intervals) / (edges[1] - edges[0])
    return Intervals(edges, count.astype(float), rate, quantile(0.0), quantile(0.5), quantile(0.99), quantile(1.0))


def timelines(runs: Sequence[Told]) -> list[Plot]:
    """One for each run in which something was going on; all with the same scales, to be compared."""
    found = [(told, samples(told)) for told in runs]
    found = [(told, some) for told, some in found if some is not None or told.repetition.happenings]
    whole = max((_end(told, some) for told, some in found), default=0.0)
    each = [in_intervals(some, whole) if some is not None else None for _, some in found]
    top = max((float(one.rate.max()) for one in each if one is not None and one.rate is not None), default=0.0)
    return [
        _plot(number, told, some, intervals, whole, top, len(runs) > 1)
        for number, ((told, some), intervals) in enumerate(zip(found, each, strict=True))
    ]


def _end(told: Told, some: Samples | None) -> float:
    ends = [one.end if one.end is not None else one.begin for one in told.repetition.happenings]
    return max([*ends, float(some.at.max()) if some is not None else 0.0])


def _plot(
    number: int, told: Told, some: Samples | None, intervals: Intervals | None, whole: float, top: float, several: bool
) -> Plot:
    name = f"timeline-{number + 1}"
    faults = told.repetition.happenings
    of = f" {told.label}" if several else ""
    alternative = f"Timeline{of}, {whole:.3g} s. " + _in_words(faults, some)
    panels = ["faults"] if faults else []
    if intervals is not None:
        panels += ["rate" if intervals.rate is not None else "count", "latency"]
    lanes = min(len(faults), _LANES)
    heights = {"faults": 0.5 + 0.2 * lanes, "rate": 1.35, "count": 1.35, "latency": 1.75}
    with drawing(0.35 + sum(heights[one] for one in panels)) as figure:
        drawn = figure.subplots(
            len(panels), 1, sharex=True, squeeze=False, height_ratios=[heights[one] for one in panels]
        )[:, 0]
        for panel, axes in zip(panels, drawn, strict=True):
            axes.set_xlim(0, whole)
            for begin, end in shaded(faults, whole):
                axes.axvspan(begin, end, color=FAULT, alpha=0.10, linewidth=0)
            if panel == "faults":
                _draw_faults(axes, faults[:_LANES], whole)
            elif panel == "latency" and intervals is not None:
                _draw_latency(axes, intervals, some.what if some is not None else "")
            elif intervals is not None:
                _draw_amount(axes, intervals, top)
        drawn[-1].set_xlabel("seconds since the programs began")
        svg = svg_of(figure, name, alternative)
    caption = _caption(told, some, len(faults))
    return Plot(
        name, f"Faults, throughput and latency{of}", svg, caption, alternative, _table(faults) if faults else None
    )


def shaded(faults: Sequence[Happening], whole: float) -> list[tuple[float, float]]:
    """When any fault was in force: what overlaps is one, and so is what no eye could tell apart, however many there were."""
    spans: list[tuple[float, float]] = []
    for begin, end in sorted((one.begin, whole if one.end is None else one.end) for one in faults):
        if spans and begin <= spans[-1][1] + whole / _APART:
            spans[-1] = spans[-1][0], max(end, spans[-1][1])
        else:
            spans.append((begin, end))
    return spans


def _draw_faults(axes: Axes, faults: Sequence[Happening], whole: float) -> None:
    axes.set_title("faults in force")
    axes.grid(visible=False)
    axes.set_yticks([])
    axes.set_ylim(len(faults) - 0.4, -0.6)
    axes.tick_params(bottom=False)
    axes.spines["bottom"].set_visible(False)
    for lane, fault in enumerate(faults):
        end = whole if fault.end is None else fault.end
        axes.barh(lane, max(end - fault.begin, whole / 400), left=fault.begin, height=0.55, color=FAULT)
        words = fault.what if len(fault.what) <= _WORDS else fault.what[: _WORDS - 1] + "…"
        if end < 0.6 * whole:
            axes.text(end + whole / 100, lane, words, va="center", ha="left", fontsize=8.5, color=INK)
        else:
            axes.text(fault.begin - whole / 100, lane, words, va="center", ha="right", fontsize=8.5, color=INK)


def _draw_amount(axes: Axes, intervals: Intervals, top: float) -> None:
    axes.set_title("throughput, of all nodes" if intervals.rate is not None else "messages per interval")
    values = intervals.rate if intervals.rate is not None else intervals.count
    axes.stairs(values, intervals.edges, color=SERIES[0], alpha=0.22, fill=True)
    axes.stairs(values, intervals.edges, color=SERIES[0], linewidth=1.3, baseline=None)
    scale(axes, "y", "rate_bit_s" if intervals.rate is not None else "count")
    axes.set_ylim(0, 1.06 * top if top else None)


def _draw_latency(axes: Axes, intervals: Intervals, what: str) -> None:
    axes.set_title(f"time of each {what}" if what == "message" else what)
    middles = (intervals.edges[1:] + intervals.edges[:-1]) / 2
    colour = SERIES[1]
    axes.fill_between(middles, intervals.low, intervals.high, color=colour, alpha=0.18, linewidth=0, step="mid",
                      label="shortest to 99th percentile")  # fmt: skip
    axes.plot(middles, intervals.median, color=colour, linewidth=1.6, label="median")
    axes.plot(middles, intervals.slowest, color=MUTED, linestyle="none", marker=".", markersize=3.5, label="slowest")
    if numpy.nanmin(intervals.low) > 0:
        scale(axes, "y", "took_ns", log=True)
        least, most = float(numpy.nanmin(intervals.low)), float(numpy.nanmax(intervals.slowest))
        if most / least > 200:  # a tick for each power of ten is enough
            from matplotlib.ticker import LogLocator

            axes.yaxis.set_major_locator(LogLocator(base=10, numticks=8))
    else:
        scale(axes, "y", "took_ns")
    axes.legend(
        labelcolor=INK, ncols=3, loc="upper right", bbox_to_anchor=(1.0, 1.22), handlelength=1.4, columnspacing=1.2
    )


def _caption(told: Told, some: Samples | None, faults: int) -> str:
    parts = []
    if some is not None:
        parts.append(f"From {some.source}, {some.at.size:,} in all, in {INTERVALS} intervals.")
    else:
        parts.append(
            "Throughput and latency over time are not known: 'testbed run --history' or '--check' writes what they are "
            "made of."
        )
    if faults:
        parts.append("Shaded: while a fault was in force.")
    if faults > _LANES:
        parts.append(f"The first {_LANES} of {faults:,} faults have a bar.")
    if told.of > 1:
        parts.append(f"Repetition 1 of {told.of}.")
    return " ".join(parts)


def _in_words(faults: Sequence[Happening], some: Samples | None) -> str:
    told = [
        f"{one.what} from {one.begin:.3g} s to {'the end' if one.end is None else f'{one.end:.3g} s'}"
        for one in faults[:6]
    ]
    words = f"Faults: {'; '.join(told)}{' and more' if len(faults) > 6 else ''}. " if faults else "No faults. "
    if some is None:
        return words.strip()
    quiet = numpy.ones(some.at.size, dtype=bool)
    for one in faults:
        quiet &= ~((some.at >= one.begin) & (some.at <= (numpy.inf if one.end is None else one.end)))
    for label, chosen in (("while no fault is in force", quiet), ("while one is", ~quiet)):
        if chosen.any():
            words += f"Median {label}: {duration(float(numpy.median(some.took[chosen])))}. "
    return words.strip()


def _table(faults: Sequence[Happening]) -> Table:
    rows = [
        [one.what, f"{one.begin:.3f} s", "the run's end" if one.end is None else f"{one.end:.3f} s",
         ", ".join(f"{name}: {cell('', count)}" for name, count in one.counted.items()) or "-",
         "yes" if one.had_effect else "no"]
        for one in faults[:_TOLD]
    ]  # fmt: skip
    note = f"The first {_TOLD} of {len(faults):,}." if len(faults) > _TOLD else ""
    headings = ["fault", "from", "to", "counted", "effect"]
    return Table("Faults, in the order of their beginnings", headings, rows, frozenset({0, 3, 4}), note=note)

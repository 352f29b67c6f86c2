"""Timeline plot of a run: faults in force, throughput and latency.

A plot has `INTERVALS` intervals for any number of messages. For each interval it shows the throughput, the median,
percentiles, and the slowest message, so that no extreme is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator

from testbed.observe.format.quantities import format_time, format_value
from testbed.observe.report.columns import Numbers
from testbed.observe.report.pages import Table
from testbed.observe.report.plots import FAULT, INK, MUTED, SERIES, Plot, new_figure, set_up_axis, to_svg
from testbed.observe.report.run_events import FaultPeriod
from testbed.observe.report.run_summary import RunSummary
from testbed.observe.report.samples import Samples, samples

INTERVALS: Final = 150
_MAX_LANES: Final = 12  # bars of faults, one below the other
_MAX_ROWS: Final = 200  # faults in the table
_RESOLUTION: Final = 500  # number of positions on the time axis that are distinguishable
_MAX_CHARACTERS: Final = 44  # of a fault's text beside its bar


@dataclass(frozen=True, slots=True)
class Intervals:
    """Measurements by interval. edges: seconds, one more than intervals. counts: numbers of messages. rate: bit/s; None if
    sizes are unknown. low, median, high, slowest: minimum, median, 99th percentile and maximum of the times, ns; NaN for an
    interval without messages."""

    edges: Numbers
    counts: Numbers
    rate: Numbers | None
    low: Numbers
    median: Numbers
    high: Numbers
    slowest: Numbers


def divide(samples: Samples, end: float, intervals: int = INTERVALS) -> Intervals:
    """Divide samples into intervals. end: end of the last interval, seconds."""
    edges = numpy.linspace(0.0, max(end, 1e-9), intervals + 1)
    bins = numpy.clip(numpy.searchsorted(edges, samples.at, side="right") - 1, 0, intervals - 1)
    counts = numpy.bincount(bins, minlength=intervals)
    order = numpy.lexsort((samples.took, bins))
    ordered, first = samples.took[order], numpy.concatenate(([0], numpy.cumsum(counts)))[:-1]

    def quantile(share: float) -> Numbers:
        quantiles = numpy.full(intervals, numpy.nan)
        filled = counts > 0
        ranks = numpy.maximum(numpy.ceil(share * counts[filled]).astype(int) - 1, 0)
        quantiles[filled] = ordered[first[filled] + ranks]
        return quantiles

    rate = None
    if samples.moved is not None:
        rate = 8 * numpy.bincount(bins, weights=samples.moved, minlength=intervals) / (edges[1] - edges[0])
    return Intervals(edges, counts.astype(float), rate, quantile(0.0), quantile(0.5), quantile(0.99), quantile(1.0))


def timelines(runs: Sequence[RunSummary]) -> list[Plot]:
    """Return a plot for each run with faults or samples, all with equal scales."""
    sampled = [(run, samples(run)) for run in runs]
    sampled = [(run, sample) for run, sample in sampled if sample is not None or run.repetition.faults]
    duration = max((_end(run, sample) for run, sample in sampled), default=0.0)
    divided = [divide(sample, duration) if sample is not None else None for _, sample in sampled]
    max_rate = max(
        (float(intervals.rate.max()) for intervals in divided if intervals is not None and intervals.rate is not None),
        default=0.0,
    )
    return [
        _plot(number, run, sample, intervals, duration, max_rate, len(runs) > 1)
        for number, ((run, sample), intervals) in enumerate(zip(sampled, divided, strict=True))
    ]


def _end(run: RunSummary, sample: Samples | None) -> float:
    ends = [fault.end if fault.end is not None else fault.begin for fault in run.repetition.faults]
    return max([*ends, float(sample.at.max()) if sample is not None else 0.0])


def _plot(
    number: int,
    run: RunSummary,
    sample: Samples | None,
    intervals: Intervals | None,
    duration: float,
    max_rate: float,
    has_several: bool,
) -> Plot:
    name = f"timeline-{number + 1}"
    faults = run.repetition.faults
    label = f" {run.label}" if has_several else ""
    alt_text = f"Timeline{label}, {duration:.3g} s. " + _description(faults, sample)
    panels = ["faults"] if faults else []
    if intervals is not None:
        panels += ["rate" if intervals.rate is not None else "count", "latency"]
    lanes = min(len(faults), _MAX_LANES)
    heights = {"faults": 0.5 + 0.2 * lanes, "rate": 1.35, "count": 1.35, "latency": 1.75}
    with new_figure(0.35 + sum(heights[panel] for panel in panels)) as figure:
        drawn = figure.subplots(
            len(panels), 1, sharex=True, squeeze=False, height_ratios=[heights[panel] for panel in panels]
        )[:, 0]
        for panel, axes in zip(panels, drawn, strict=True):
            axes.set_xlim(0, duration)
            for begin, end in fault_spans(faults, duration):
                axes.axvspan(begin, end, color=FAULT, alpha=0.10, linewidth=0)
            if panel == "faults":
                _draw_faults(axes, faults[:_MAX_LANES], duration)
            elif panel == "latency" and intervals is not None:
                _draw_latency(axes, intervals, sample.quantity if sample is not None else "")
            elif intervals is not None:
                _draw_amount(axes, intervals, max_rate)
        drawn[-1].set_xlabel("seconds since the programs began")
        svg = to_svg(figure, name, alt_text)
    caption = _caption(run, sample, len(faults))
    return Plot(
        name, f"Faults, throughput and latency{label}", svg, caption, alt_text, _table(faults) if faults else None
    )


def fault_spans(faults: Sequence[FaultPeriod], duration: float) -> list[tuple[float, float]]:
    """Return the periods in which any fault was in force. Periods that overlap, or that a plot cannot show apart, are
    merged."""
    spans: list[tuple[float, float]] = []
    for begin, end in sorted((fault.begin, duration if fault.end is None else fault.end) for fault in faults):
        if spans and begin <= spans[-1][1] + duration / _RESOLUTION:
            spans[-1] = spans[-1][0], max(end, spans[-1][1])
        else:
            spans.append((begin, end))
    return spans


def _draw_faults(axes: Axes, faults: Sequence[FaultPeriod], duration: float) -> None:
    axes.set_title("faults in force")
    axes.grid(visible=False)
    axes.set_yticks([])
    axes.set_ylim(len(faults) - 0.4, -0.6)
    axes.tick_params(bottom=False)
    axes.spines["bottom"].set_visible(False)
    for lane, fault in enumerate(faults):
        end = duration if fault.end is None else fault.end
        axes.barh(lane, max(end - fault.begin, duration / 400), left=fault.begin, height=0.55, color=FAULT)
        text = fault.what if len(fault.what) <= _MAX_CHARACTERS else fault.what[: _MAX_CHARACTERS - 1] + "…"
        if end < 0.6 * duration:
            axes.text(end + duration / 100, lane, text, va="center", ha="left", fontsize=8.5, color=INK)
        else:
            axes.text(fault.begin - duration / 100, lane, text, va="center", ha="right", fontsize=8.5, color=INK)


def _draw_amount(axes: Axes, intervals: Intervals, max_rate: float) -> None:
    axes.set_title("throughput, of all nodes" if intervals.rate is not None else "messages per interval")
    values = intervals.rate if intervals.rate is not None else intervals.counts
    axes.stairs(values, intervals.edges, color=SERIES[0], alpha=0.22, fill=True)
    axes.stairs(values, intervals.edges, color=SERIES[0], linewidth=1.3, baseline=None)
    set_up_axis(axes, "y", "rate_bit_s" if intervals.rate is not None else "count")
    axes.set_ylim(0, 1.06 * max_rate if max_rate else None)


def _draw_latency(axes: Axes, intervals: Intervals, quantity: str) -> None:
    axes.set_title(f"time of each {quantity}" if quantity == "message" else quantity)
    centers = (intervals.edges[1:] + intervals.edges[:-1]) / 2
    colour = SERIES[1]
    axes.fill_between(centers, intervals.low, intervals.high, color=colour, alpha=0.18, linewidth=0, step="mid",
                      label="shortest to 99th percentile")  # fmt: skip
    axes.plot(centers, intervals.median, color=colour, linewidth=1.6, label="median")
    axes.plot(centers, intervals.slowest, color=MUTED, linestyle="none", marker=".", markersize=3.5, label="slowest")
    if numpy.nanmin(intervals.low) > 0:
        set_up_axis(axes, "y", "took_ns", log=True)
        fastest, slowest = float(numpy.nanmin(intervals.low)), float(numpy.nanmax(intervals.slowest))
        if slowest / fastest > 200:  # a tick for each power of ten is enough
            axes.yaxis.set_major_locator(LogLocator(base=10, numticks=8))
    else:
        set_up_axis(axes, "y", "took_ns")
    axes.legend(
        labelcolor=INK, ncols=3, loc="upper right", bbox_to_anchor=(1.0, 1.22), handlelength=1.4, columnspacing=1.2
    )


def _caption(run: RunSummary, sample: Samples | None, faults: int) -> str:
    sentences = []
    if sample is not None:
        sentences.append(f"From {sample.source}, {sample.at.size:,} in all, in {INTERVALS} intervals.")
    else:
        sentences.append(
            "Throughput and latency over time are not known: they need 'testbed run --history' or '--check'."
        )
    if faults:
        sentences.append("Shaded: while a fault was in force.")
    if faults > _MAX_LANES:
        sentences.append(f"The first {_MAX_LANES} of {faults:,} faults have a bar.")
    if run.repetition_count > 1:
        sentences.append(f"Repetition 1 of {run.repetition_count}.")
    return " ".join(sentences)


def _description(faults: Sequence[FaultPeriod], sample: Samples | None) -> str:
    periods = [
        f"{fault.what} from {fault.begin:.3g} s to {'the end' if fault.end is None else f'{fault.end:.3g} s'}"
        for fault in faults[:6]
    ]
    text = f"Faults: {'; '.join(periods)}{' and more' if len(faults) > 6 else ''}. " if faults else "No faults. "
    if sample is None:
        return text.strip()
    without_fault = numpy.ones(sample.at.size, dtype=bool)
    for fault in faults:
        without_fault &= ~((sample.at >= fault.begin) & (sample.at <= (numpy.inf if fault.end is None else fault.end)))
    for label, chosen in (("while no fault is in force", without_fault), ("while one is", ~without_fault)):
        if chosen.any():
            text += f"Median {label}: {format_time(float(numpy.median(sample.took[chosen])))}. "
    return text.strip()


def _table(faults: Sequence[FaultPeriod]) -> Table:
    rows = [
        [fault.what, f"{fault.begin:.3f} s", "the run's end" if fault.end is None else f"{fault.end:.3f} s",
         ", ".join(f"{name}: {format_value('', count)}" for name, count in fault.counted.items()) or "-",
         "yes" if fault.had_effect else "no"]
        for fault in faults[:_MAX_ROWS]
    ]  # fmt: skip
    note = f"The first {_MAX_ROWS} of {len(faults):,}." if len(faults) > _MAX_ROWS else ""
    headings = ["fault", "from", "to", "counted", "effect"]
    return Table("Faults, in the order of their beginnings", headings, rows, frozenset({0, 3, 4}), note=note)

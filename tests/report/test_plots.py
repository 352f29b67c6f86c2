"""Plots of the report: intervals cover all extremes, labels do not overlap, and colours and text alternatives are the
page's."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.observe.comparing.comparison import ComparedMeasure, Comparison, Judgement
from testbed.observe.comparing.ratios import Ratio
from testbed.observe.report.comparisons import comparisons
from testbed.observe.report.curves import curves
from testbed.observe.report.distributions import distributions
from testbed.observe.report.pages import TEMPLATES, Table
from testbed.observe.report.plots import MAX_SERIES, Plot, format_tick
from testbed.observe.report.run_events import FaultPeriod
from testbed.observe.report.run_summary import summarize_run
from testbed.observe.report.samples import Samples
from testbed.observe.report.timeline_plot import divide, fault_spans, timelines
from testbed.observe.report.topology_plot import positions, topology
from tests.report.synthetic_runs import SECOND, fault_events, layout, message_rows, ping_pong_rows, write_run

MESSAGES = st.lists(st.tuples(st.floats(0, 10), st.integers(1, 10**9), st.integers(0, 10**6)), min_size=1, max_size=200)


@given(messages=MESSAGES)
def test_intervals_keep_all_bytes_and_extremes(messages) -> None:
    ends, durations, sizes = (numpy.array(column, dtype=float) for column in zip(*sorted(messages), strict=True))
    intervals = divide(Samples(ends, durations, sizes, "message", ""), float(ends.max()), 20)
    assert intervals.counts.sum() == len(messages)
    assert intervals.rate is not None
    assert intervals.rate.sum() * (intervals.edges[1] - intervals.edges[0]) / 8 == pytest.approx(sizes.sum())
    assert numpy.nanmax(intervals.slowest) == durations.max()
    assert numpy.nanmin(intervals.low) == durations.min()
    has_messages = intervals.counts > 0
    assert (intervals.low[has_messages] <= intervals.median[has_messages]).all()
    assert (intervals.median[has_messages] <= intervals.high[has_messages]).all()
    assert (intervals.high[has_messages] <= intervals.slowest[has_messages]).all()


def test_sizes_at_an_axis_have_a_space_before_their_unit() -> None:
    sizes = [0, 500, 1500, 65_536, 1 << 20, 1 << 30, (1 << 20) + 1]
    texts = ["0 B", "500 B", "1500 B", "64 KiB", "1 MiB", "1 GiB", "1048577 B"]
    assert [format_tick("size_bytes", size) for size in sizes] == texts


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 3)), max_size=60))
def test_the_shaded_spans_cover_the_faults_and_little_more(spans) -> None:
    faults = [FaultPeriod("", "", "", start, start + lasts, {}, True) for start, lasts in spans]
    shaded = fault_spans(faults, 13.0)
    for start, lasts in spans:
        assert any(first <= start and start + lasts <= last for first, last in shaded)
    assert all(before[1] < after[0] for before, after in pairwise(shaded))
    assert sum(last - first for first, last in shaded) <= sum(lasts + 13.0 / 500 for _, lasts in spans) + 1e-9


def test_ten_thousand_faults_are_drawn_with_few_shapes(tmp_path: Path) -> None:
    events = [
        event
        for number in range(10_000)
        for event in fault_events("x", number * 10**6, number * 10**6 + 10**5, 5 * SECOND)
    ]
    run = write_run(tmp_path / "run", message_rows(5 * SECOND), events=[{"event": "repetition begins"}, *events])
    (plot,) = timelines([summarize_run(run, "")])
    assert len(plot.svg) < 200_000
    assert "The first 12 of 10,000 faults have a bar" in plot.caption


@pytest.mark.parametrize(
    "source", ["star-4", "star-100", "ring-4", "line-4", "full-mesh-4", "dumbbell-8", "fat-tree-4", "back-to-back"]
)
def test_no_two_elements_of_a_cluster_overlap(source: str) -> None:
    places = positions(layout(source))
    for first, (x1, y1) in places.items():
        for second, (x2, y2) in places.items():
            assert first == second or abs(x1 - x2) > 58 or abs(y1 - y2) > 26, (first, second)


def test_a_picture_shows_and_labels_declared_and_injected_impairments() -> None:
    cluster = layout("emp-2001")
    plot = topology(cluster, {cluster.links[0].name: ("loss 5% on n1",)}, "cluster-1", "EMP")
    assert 'class="link declared injected"' in plot.svg
    assert "rate 1gbit" in plot.svg
    assert "1 link impaired by its description, 1 link by injection" in plot.alt_text
    assert plot.table is not None
    assert plot.table.rows[0][2] == "loss 5% on n1"


@pytest.mark.parametrize(
    ("source", "impaired", "last_link", "note"),
    [("star-4", 3, "1 other", ""), ("star-4", 2, "2 others", ""), ("star-41", 41, "", "1 more link is impaired."),
     ("star-42", 42, "", "2 more links are impaired.")],
)  # fmt: skip
def test_the_table_of_a_picture_counts_the_links_without_a_row(
    source: str, impaired: int, last_link: str, note: str
) -> None:
    cluster = layout(source)
    injected = {link.name: ("loss 5%",) for link in cluster.links[:impaired]}
    table = topology(cluster, injected, "cluster-1", "EMP").table
    assert table is not None
    assert table.note == note
    assert not last_link or table.rows[-1] == [last_link, "none", "none"]


def test_the_summary_of_a_comparison_counts_its_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [summarize_run(write_run(tmp_path / name, ping_pong_rows()), name) for name in "AB"]
    compared = ComparedMeasure((), "rtt_ns", 1.0, 1.0, (1, 1), Ratio(1.0), Judgement.NO_DIFFERENCE)
    summaries = []
    for count in (1, 2):
        comparison = Comparison((compared,) * count, 0.05, (), ())
        monkeypatch.setattr("testbed.observe.report.comparisons.compare", lambda *_, result=comparison: result)
        summaries += [run.summary.partition(",")[0] for run in comparisons(runs)]
    assert summaries == ["1 measure", "2 measures"]


def every_plot(tmp_path: Path) -> list[Plot]:
    zero = 5 * SECOND
    events = [{"event": "repetition begins"}, *fault_events("loss 10% on n1", 10**8, 3 * 10**8, zero)]
    runs = [
        summarize_run(write_run(tmp_path / "a", [*ping_pong_rows(), *message_rows(zero)], events=events), "A"),
        summarize_run(write_run(tmp_path / "b", ping_pong_rows(1.3)), "B"),
    ]
    return [*timelines(runs), *curves(runs), *distributions(runs)]


def test_plots_keep_text_as_text_and_use_the_pages_colours(tmp_path: Path) -> None:
    plots = every_plot(tmp_path)
    assert [plot.name for plot in plots] == ["timeline-1", "latency", "distribution", "percentiles"]
    for plot in plots:
        root = ElementTree.fromstring(plot.svg)
        assert root.get("role") == "img"
        assert root.get("aria-label") == plot.alt_text
        assert "var(--series-1)" in plot.svg
        assert not re.findall(r"#[0-9a-f]{6}", plot.svg)
        assert "<text" in plot.svg
        assert "DejaVu" not in plot.svg


def test_identifiers_in_the_plots_of_a_page_are_unique(tmp_path: Path) -> None:
    identifiers = [match for plot in every_plot(tmp_path) for match in re.findall(r' id="([^"]*)"', plot.svg)]
    assert identifiers
    assert len(identifiers) == len(set(identifiers))
    for plot in every_plot(tmp_path / "again"):
        for reference in re.findall(r'(?:href="|url\()#([^")]+)', plot.svg):
            assert f'id="{reference}"' in plot.svg


def test_the_papers_points_are_drawn_only_for_runs_of_its_protocol(tmp_path: Path) -> None:
    emp, tcp = (
        summarize_run(write_run(tmp_path / name, ping_pong_rows(), protocol=name), "") for name in ("emp", "tcp")
    )
    (of_emp,), (of_tcp,) = curves([emp]), curves([tcp])
    assert "23 us at 4 B, 36 us at 1,500 B" in of_emp.alt_text
    assert "SC 2001" in of_emp.caption
    assert "paper" not in of_tcp.alt_text + of_tcp.caption


def test_each_run_has_a_line_of_its_own_which_is_the_same_in_the_legend_and_both_plots(tmp_path: Path) -> None:
    rows = [*ping_pong_rows(), *message_rows(5 * SECOND)]
    runs = [summarize_run(write_run(tmp_path / f"{number}", rows), f"run {number}") for number in range(MAX_SERIES)]
    plot = next(plot for plot in distributions(runs) if plot.name == "distribution")
    styles = Counter(line_styles(plot.svg))
    assert len(styles) == MAX_SERIES
    assert set(styles.values()) == {3}  # the outline of the histogram, its line in the legend, the cumulative curve


def line_styles(svg: str) -> Iterator[tuple[str, tuple[float, ...]]]:
    """Yield colour and dashes, in units of the line's width, of each line of a series that is not filled."""
    for style in re.findall(r' style="(fill: none; [^"]*)"', svg):
        if colour := re.search(r"stroke: (var\(--series-\d\))", style):
            width = re.search(r"stroke-width: ([\d.]+)", style)
            dashes = re.search(r"stroke-dasharray: ([\d., ]+)", style)
            assert width is not None
            yield (
                colour[1],
                tuple(round(float(dash) / float(width[1]), 2) for dash in dashes[1].split(",")) if dashes else (),
            )


def test_zero_times_are_not_plotted_on_a_logarithmic_axis(tmp_path: Path) -> None:
    assert curves([summarize_run(write_run(tmp_path / "run", ping_pong_rows(0.0)), "")]) == []


def test_tables_have_header_cells_and_can_be_scrolled_by_keyboard() -> None:
    content = Table("Rows <1>", ["node", "p50"], [["n1", "7 us"], ["n&2", "8 us"]])
    text = TEMPLATES.get_template("parts.html").module.table(content, "rows")
    assert '<caption id="rows">Rows &lt;1&gt;</caption>' in text
    assert text.count('scope="col"') == 2
    assert text.count('scope="row"') == 2
    assert 'tabindex="0"' in text
    assert "n&amp;2" in text

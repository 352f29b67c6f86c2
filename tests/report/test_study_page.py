"""Page of a study: plots of the measures against the varied parameters, confidence bands, and escaped names."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from click.testing import CliRunner

from testbed.cli.main import testbed as command
from testbed.observe.report.study_page import PointSummary, study_page
from testbed.observe.report.study_plots import estimate, study_plots

LOSSES, PROTOCOLS, SIZES, SEEDS = ("0%", "1%", "5%"), ("emp", "via"), (64, 4096), range(7)


def rows() -> list[dict[str, object]]:
    """Return a row of each run, whose figure encodes loss, size and seed."""
    combinations = itertools.product(LOSSES, PROTOCOLS, SIZES, SEEDS)
    return [
        {"point": number, "link.loss": loss, "protocol": protocol, "size": size, "seed": seed,
         "p50_ns": 1_000_000 * int(loss[:-1]) + 1_000 * size + seed}
        for number, (loss, protocol, size, seed) in enumerate(combinations)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("count", "low", "high"),
    [(1, None, None), (5, None, None), (6, 0, 5), (7, 0, 6), (8, 0, 7), (9, 1, 7), (10, 1, 8), (20, 5, 14)],
)
def test_an_interval_has_the_ranks_of_the_tables_for_medians(count: int, low: int | None, high: int | None) -> None:
    """The ranks are those of the binomial distribution at 95 %: Conover, Practical Nonparametric Statistics."""
    interval = estimate(list(range(count)))
    assert (interval.low, interval.high) == (low, high)
    assert interval.median == (count - 1) / 2


def test_the_numeric_parameter_with_the_most_values_is_the_axis_and_seeds_are_repetitions() -> None:
    (plot,) = study_plots(("protocol", "size", "link.loss", "seed"), rows())
    assert plot.title == "p50 against link.loss"
    assert plot.table is not None
    assert list(plot.table.headings[-3:]) == ["link.loss", "runs", "p50"]
    assert len(plot.table.rows) == len(LOSSES) * len(PROTOCOLS) * len(SIZES)
    assert {row[3] for row in plot.table.rows} == {"7"}
    assert "64 emp 0%: 64 us (64 us to 64.01 us)" in plot.alt_text
    assert "95% confidence" in plot.caption


def test_a_fourth_parameter_is_noted_and_a_study_without_variation_has_no_plot() -> None:
    more_rows = [
        {**row, "nics": nics, "point": f"{row['point']} {nics}"} for row in rows() for nics in ("inline", "shared")
    ]
    (plot,) = study_plots(("protocol", "size", "link.loss", "nics", "seed"), more_rows)
    assert "All values of nics together." in plot.caption or "All values of size together." in plot.caption
    assert study_plots(("seed",), rows()) == []
    assert "There is nothing to plot" in study_page("x", {}, ("seed",), [], rows())


def test_markup_in_a_studys_names_is_escaped() -> None:
    markup = "</td><script>alert(1)</script>"
    page = study_page(
        markup, {"workload": markup}, ("protocol",), [PointSummary(0, [markup], markup)],
        [{"point": number, "protocol": f"{markup}{number}", "p50_ns": 5} for number in range(3)],
    )  # fmt: skip
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_the_command_writes_a_page_of_a_study_and_lists_the_failed_runs(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text("""
[run]
cluster = "star-2"
workload = "pingpong"
mode = "sim"
settings = { count = 10 }
[grid]
"link.delay" = ["1us", "1ms"]
protocol = ["emp", "tcp"]
""")
    result = CliRunner().invoke(
        command, ["study", str(tmp_path / "study.toml"), "--output", str(tmp_path / "out"), "--workers", "1"]
    )
    assert result.exit_code == 10
    report_result = CliRunner().invoke(command, ["report", str(tmp_path / "out"), "-o", str(tmp_path / "study.html")])
    assert report_result.exit_code == 0, report_result.output
    page = (tmp_path / "study.html").read_text()
    assert "p50 against link.delay" in page
    assert page.count("tcp") >= 2
    assert page.count("failed: ") == 2


def test_lines_beyond_the_maximum_are_noted_and_a_line_has_one_colour_in_all_panels() -> None:
    rows = [
        {"point": f"{line} {x}", "line": f"line{line}", "x": x, "p50_ns": line + x}
        for line in range(10) for x in range(11)
    ]  # fmt: skip
    (plot,) = study_plots(("line", "x"), rows)
    assert "Of 10 values of line, the first 8." in plot.caption
    # The second panel lacks the first line.
    panelled = [
        {**row, "facet": facet} for facet in "ab" for row in rows[:33] if (facet, row["line"]) != ("b", "line0")
    ]
    (plot,) = study_plots(("line", "facet", "x"), panelled)
    assert 0 < plot.svg.count("--series-1)") < plot.svg.count("--series-2)")


def test_the_figures_of_invalid_runs_are_neither_printed_nor_plotted(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text("""
[run]
cluster = "star-2"
workload = "pingpong"
mode = "sim"
settings = { count = 10, sizes = "4" }
[grid]
"link.delay" = ["1us", "1ms"]
""")
    out = str(tmp_path / "out")
    first = CliRunner().invoke(command, ["study", str(tmp_path / "study.toml"), "--output", out, "--workers", "1"])
    assert first.exit_code == 0, first.output
    assert "2 ms" in first.output
    points = tmp_path / "out" / "points.jsonl"
    points.write_text(points.read_text().replace('"verdict": "trusted"', '"verdict": "invalid"'))
    again = CliRunner().invoke(command, ["study", "--continue", out, "--workers", "1"])
    assert again.exit_code == 9
    assert "invalid" in again.output
    assert "2 ms" not in again.output
    assert CliRunner().invoke(command, ["report", out, "-o", str(tmp_path / "study.html")]).exit_code == 0
    assert "There is nothing to plot" in (tmp_path / "study.html").read_text()

"""Scores of reproductions: errors, failures, and values shown without a measurement."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest

from testbed.observe.comparing.score_summary import HEADINGS, summary_rows
from testbed.observe.comparing.scores import Errors, Scores
from testbed.observe.paper_files import paper_of, parse, systems
from testbed.observe.papers import Paper

PAPER_TEXT = """
title = "A title"
authors = "An author"
published = "2001"
cluster = "emp-2001"
profile = "emp-2001"
constants = 0

[run.latency]
workload = "pingpong"

[[column]]
name = "latency"
source = "table 1, first column"
meaning = "half a ping-pong"
unit = "us"
run = "latency"
take = "p50_ns"
by = "size_bytes"
at = [1, 2, 4]
paper = [10, 20, 40]
calibrated = [1]

[[row]]
name = "beside"
source = "figure 2 (b)"
meaning = "the same"
paper = 20
unit = "us"
others = { TCP = 120 }
others_source = "table 5 (others)"
run = "latency"
where = { size_bytes = 2 }
take = "p50_ns"

[[relation]]
name = "it grows"
source = "section 1"
left = { run = "latency", take = "p50_ns", where = { size_bytes = 4 } }
right = { run = "latency", take = "p50_ns", where = { size_bytes = 1 } }
least = 2

[[shown]]
name = "cache misses"
source = "table 2"
unit = "%"
values = { single = 29.8, several = 12 }
"""


@pytest.fixture(scope="module")
def paper() -> Paper:
    return parse(PAPER_TEXT, "a paper")


def scores(paper: Paper, *microseconds: float, recorded: Mapping[str, float] = {}) -> Scores:
    rows = [{"size_bytes": size, "p50_ns": 1e3 * value} for size, value in zip((1, 2, 4), microseconds, strict=True)]
    return Scores("a system", paper, {"latency": rows}, recorded)


def test_each_value_has_a_line_with_its_place_and_kind(paper: Paper) -> None:
    lines = scores(paper, 10, 22, 30).lines
    assert [(line.place, line.name, line.kind) for line in lines] == [
        ("figure 2", "beside", "predicted"),
        ("table 1", "latency, 1", "calibrated"),
        ("table 1", "latency, 2", "predicted"),
        ("table 1", "latency, 4", "predicted"),
        ("table 5", "beside: TCP", "paper"),
        ("table 2", "cache misses: single", "paper"),
        ("table 2", "cache misses: several", "paper"),
    ]
    assert [line.error for line in lines[:4]] == pytest.approx([0.1, 0, 0.1, -0.25])


def test_unmeasured_values_show_the_papers_value_only(paper: Paper) -> None:
    shown_lines = [line for line in scores(paper, 10, 22, 30).lines if line.kind == "paper"]
    assert [(line.paper, line.unit, line.ours, line.error) for line in shown_lines] == [
        (120, "us", None, None), (29.8, "%", None, None), (12, "%", None, None),
    ]  # fmt: skip


def test_errors_are_of_all_predicted_rows_and_by_table(paper: Paper) -> None:
    result = scores(paper, 10, 22, 30)
    assert result.overall is not None
    assert (result.overall.rows, result.overall.median) == (3, pytest.approx(0.1))
    assert result.overall.worst == result.overall.p90 == 0.25
    assert {table: errors.rows for table, errors in result.errors.items()} == {"": 1, "latency": 2}
    assert result.errors["latency"].worst == 0.25


def test_the_90th_percentile_of_twenty_errors_is_the_eighteenth() -> None:
    errors = Errors.of([number / 100 * (-1) ** number for number in range(20, 0, -1)])
    assert (errors.rows, errors.p90, errors.worst) == (20, 0.18, 0.2)
    assert errors.median == pytest.approx(0.105)


def test_a_calibrated_row_fails_beyond_three_per_cent_and_a_prediction_does_not(paper: Paper) -> None:
    assert scores(paper, 10.29, 60, 90).failures == []
    assert [failure.partition(":")[0] for failure in scores(paper, 10.31, 60, 90).failures] == ["latency, 1"]
    assert len(scores(paper, 9.69, 60, 90).failures) == 1


def test_a_broken_shape_fails(paper: Paper) -> None:
    assert [failure.partition(":")[0] for failure in scores(paper, 10, 15, 19).failures] == ["it grows"]


def test_a_prediction_two_points_worse_than_the_recorded_one_fails(paper: Paper) -> None:
    recorded = {"latency, 1": 10, "latency, 2": 22, "latency, 4": 30, "beside": 22}
    assert scores(paper, 10, 22, 30, recorded=recorded).failures == []
    assert scores(paper, 10, 22.39, 29.3, recorded=recorded).failures == []
    failures = scores(paper, 10, 22.41, 30, recorded=recorded).failures
    assert [failure.partition(": ")[0] for failure in failures] == ["beside", "latency, 2"]
    assert "the kept error is +10.0%" in failures[0]
    assert len(scores(paper, 10, 22, 29.1, recorded=recorded).failures) == 1  # a negative error grows
    assert scores(paper, 10, 17.5, 30, recorded=recorded).failures != []  # an error changes its sign
    assert scores(paper, 10, 19, 39, recorded=recorded).failures == []  # better


def test_an_unrecorded_row_has_no_previous_error(paper: Paper) -> None:
    assert scores(paper, 10, 99, 30, recorded={"latency, 4": 30}).failures == []


def test_a_summary_has_the_median_the_percentile_and_the_worst_row(paper: Paper) -> None:
    cells = dict(zip(HEADINGS, summary_rows([scores(paper, 10, 22, 30)])[0], strict=True))
    assert cells == {
        "system": "a system", "rows": "4", "predicted": "3", "median error": "10.0%", "p90": "25.0%", "worst": "25.0%",
        "worst row": "latency, 4", "shapes": "1 of 1 hold",
    }  # fmt: skip


def test_a_system_without_predictions_has_dashes() -> None:
    calibrated = parse(
        PAPER_TEXT.replace("at = [1, 2, 4]", "at = [1]")
        .replace("paper = [10, 20, 40]", "paper = [10]")
        .partition("[[row]]")[0],
        "a paper",
    )
    system_scores = Scores("a system", calibrated, {"latency": [{"size_bytes": 1, "p50_ns": 1e4}]})
    assert system_scores.overall is None
    assert summary_rows([system_scores])[0][3:] == ["–", "–", "–", "–", "0 of 0 hold"]


@pytest.mark.parametrize("system", systems())
def test_every_published_value_names_its_table_figure_or_section(system: str) -> None:
    paper = paper_of(system)
    locations = [published.place for published in (*paper.rows, *paper.unmeasured)]
    assert locations
    assert [
        location for location in locations if location.split()[0] not in ("table", "figure", "section", "abstract")
    ] == []
    assert all(math.isfinite(value) for published in paper.unmeasured for value in published.values.values())

"""Page of reproductions: a section for each paper, its figures with the paper's points, and all values."""

from __future__ import annotations

import re
from html import unescape

import pytest

from testbed.observe.comparing.scores import Scores
from testbed.observe.paper_files import parse
from testbed.observe.report.paper_page import paper_page
from testbed.observe.report.paper_plots import figure_plots, row_plots

PAPER = """
title = "A <title>"
authors = "Somebody"
published = "2001"
cluster = "emp-2001"
profile = "emp-2001"
constants = 0

[run.sizes]
workload = "pingpong"

[run.other]
workload = "pingpong"

[[column]]
name = "by size"
source = "table 1"
meaning = "half a ping-pong"
unit = "us"
run = "sizes"
take = "p50_ns"
by = "size_bytes"
at = [4, 1024]
paper = [10, 20]

[[row]]
name = "alone"
source = "section 2"
meaning = "half a ping-pong"
paper = 30
unit = "us"
run = "other"
take = "p50_ns"

[[figure]]
name = "Figure 1"
source = "figure 1"
x = "size_bytes"
y = "p50_ns"
axes = ["message size", "half a ping-pong"]
log = "xy"
curves = [{ label = "ours", run = "sizes", points = ["by size"] }, { label = "of no rows", run = "other" }]

[[shown]]
name = "cache misses"
source = "table 2"
unit = "%"
values = { single = 29.8 }

[[unmatched]]
value = "7 & 8"
why = "inputs"
"""
SIZES = [
    {"size_bytes": 4, "p50_ns": 11_000},
    {"size_bytes": 64, "p50_ns": 12_000},
    {"size_bytes": 1024, "p50_ns": 19_000},
]


def scores(system: str) -> Scores:
    return Scores(system, parse(PAPER, "a paper"), {"sizes": SIZES, "other": [{"p50_ns": 33_000}]})


@pytest.fixture(scope="module")
def page() -> str:
    return paper_page([scores("one"), scores("two")])


def test_the_page_has_a_section_for_each_paper_and_a_summary(page: str) -> None:
    assert re.findall(r'<section id="(\w+)"', page) == ["summary", "one", "two"]
    assert re.findall(r'<li><a href="#(\w+)"', page) == ["summary", "one", "two"]
    assert page.count('<figure id="errors-figure"') == 1


def test_a_figure_has_our_curve_and_the_papers_points_and_is_drawn_once(page: str) -> None:
    (plot,) = figure_plots(scores("one"))
    assert "Ours: ours: 11 us at 4 B, 19 us at 1 KiB." in plot.alt_text
    assert "The paper's values: 10 us at 4 B, 20 us at 1 KiB." in plot.alt_text
    assert "of no rows" not in plot.svg
    assert plot.table is not None
    assert plot.table.rows == [["4 B", "11 us", "10 us"], ["64 B", "12 us", ""], ["1 KiB", "19 us", "20 us"]]
    assert page.count('<figure id="one-figure-1-figure"') == page.count('<figure id="two-figure-1-figure"') == 1


def test_rows_that_no_figure_shows_are_drawn_beside_the_papers_values() -> None:
    (plot,) = row_plots(scores("one"))
    assert plot.alt_text == "Other values, us. alone: the paper's 30, ours 33 us."


def test_the_page_lists_all_values_of_the_paper_and_ours(page: str) -> None:
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", page)]
    values = [[unescape(cell) for cell in row] for row in rows if len(row) == 6]
    assert ["alone", "section 2", "30 us", "33 us", "+10.0%", "predicted"] in values
    assert ["by size, 1024", "table 1", "20 us", "19 us", "-5.0%", "predicted"] in values
    assert ["cache misses: single", "table 2", "29.8 %", "", "", "the paper's"] in values
    assert "7 &amp; 8: inputs" in page


def test_texts_are_escaped_identifiers_are_unique_and_nothing_is_fetched(page: str) -> None:
    assert "A &lt;title&gt;" in page
    assert "<title>A" not in page
    names = re.findall(r' id="([^"]+)"', page)
    assert len(names) == len(set(names))
    assert {target for target in re.findall(r'href="#([^"]+)"', page) if target not in names} == set()
    assert re.findall(r'(?:src|href)="(?!#|data:)[^"]*"|url\((?!#)|@import', page) == []

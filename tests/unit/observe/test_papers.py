"""Files of papers' values: contents, and reports of all errors at once."""

from __future__ import annotations

from typing import Any

import pytest

from testbed.errors import DescriptionError, NotFoundError, TestbedError
from testbed.observe.paper_files import paper_of, parse
from testbed.observe.papers import Curve, Figures, figures, restrict

PAPER = """
title = "A title"
authors = "An author"
published = "2001"
cluster = "emp-2001"
profile = "emp-2001"
constants = 1

[run.latency]
workload = "pingpong"
settings = { sizes = "4", count = 10 }

[[row]]
name = "latency"
source = "section 1"
meaning = "half a ping-pong"
paper = 23
unit = "us"
calibrated = true
run = "latency"
take = "p50_ns"

[[row]]
name = "another"
source = "section 2"
meaning = "the same"
paper = 24.5
unit = "us"
calibrated = true
run = "latency"
take = "p50_ns"

[[shape]]
name = "order"
source = "table 1"
kind = "order"
row = "latency"

[[unmatched]]
value = "17"
why = "an input"
"""


def document_problems(text: str) -> list[str]:
    with pytest.raises(DescriptionError) as caught:
        parse(text, "the paper")
    return [str(problem) for problem in caught.value.problems]


def test_a_paper_is_read() -> None:
    paper = parse(PAPER, "the paper")
    assert [(row.name, row.paper, row.calibrated) for row in paper.rows] == [
        ("latency", 23, True),
        ("another", 24.5, True),
    ]
    assert paper.runs["latency"].settings == {"sizes": "4", "count": 10}
    assert paper.unmatched[0].why == "an input"


def test_all_errors_are_reported_at_once() -> None:
    problems = document_problems(
        PAPER.replace('meaning = "the same"', 'meening = "the same"').replace('why = "an input"\n', "")
    )
    assert any(
        "row[2]: found unknown setting 'meening'" in problem and "did you mean 'meaning'" in problem
        for problem in problems
    )
    assert any("row[2].meaning: expected a value" in problem for problem in problems)
    assert any("unmatched[1].why: expected a value" in problem for problem in problems)


@pytest.mark.parametrize(
    ("replaced", "replacement", "message"),
    [
        ('run = "latency"', 'run = "latancy"', "did you mean 'latency'"),
        ('unit = "us"', 'unit = "parsec"', "expected the name of a unit"),
        ('row = "latency"', 'row = "bandwidth"', "expected the name of a row"),
        ('kind = "order"', 'kind = "ordre"', "did you mean 'order'"),
        ("constants = 1", "constants = 2", "fewer than the 2 rows that calibrate them"),
        ("paper = 24.5", 'paper = "much"', "expected a number"),
        ("[run.latency]", "[run.later]", "expected the name of a run"),
    ],
)
def test_an_unresolved_name_is_an_error(replaced: str, replacement: str, message: str) -> None:
    assert any(message in problem for problem in document_problems(PAPER.replace(replaced, replacement)))


def test_more_than_three_rows_do_not_calibrate() -> None:
    row = PAPER[PAPER.index('[[row]]\nname = "another"') : PAPER.index("[[shape]]")]
    more_rows = "".join(row.replace("another", f"another {number}") for number in range(2))
    assert any("expected at most 3" in problem for problem in document_problems(PAPER + more_rows))


def test_emp_has_a_paper_and_an_unknown_name_is_rejected() -> None:
    assert paper_of("emp").title.startswith("EMP: Zero-copy")
    with pytest.raises(NotFoundError, match="did you mean 'emp'"):
        paper_of("em")


RELATIONS = """
[run.contention]
workload = "contention"

[[relation]]
name = "the round trip grows with the gap"
source = "section 3"
left = { run = "contention", take = "p50_ns", by = "clients", span = [2, 8], slope = true }
right = { run = "latency", take = "p50_ns" }
least = 0.9
most = 1.1

[[table]]
name = "contention"
source = "section 3"
run = "contention"
columns = ["clients", "p50_ns"]
"""


FIGURES = """
[[figure]]
name = "Figure 5"
source = "figure 5"
x = "size_bytes"
y = "p50_ns"
axes = ["message size", "latency"]
curves = [{ label = "ours", run = "latency", points = ["latency", "another"] }]

[[shown]]
name = "cache misses"
source = "table 2: of the kernel"
unit = "%"
values = { single = 29.8 }
"""


def test_a_figure_has_curves_through_the_points_of_rows_with_labels() -> None:
    paper = parse(PAPER + FIGURES, "the paper")
    assert paper.figures[0].curves == (Curve("ours", "latency", {}, ("latency", "another")),)
    assert [(value.place, value.values) for value in paper.unmeasured] == [("table 2", {"single": 29.8})]
    assert restrict(paper, ["latency"]).figures == paper.figures
    assert restrict(paper, ["latency"]).unmeasured == []


@pytest.mark.parametrize(
    ("replaced", "replacement", "message"),
    [
        ('run = "latency", points', 'run = "latancy", points', "did you mean 'latency'"),
        ('"another"]', '"an other"]', "expected the name of a row or column — did you mean 'another'"),
        ('"message size", "latency"', '"message size"', "expected two labels, of x and of y"),
        ("label = ", "lable = ", "figure[1].curves[1]: found unknown setting 'lable'"),
        ("curves = [{", "curve = [{", "figure[1].curves: expected a value"),
        ("values = { single = 29.8 }", "", "shown[1].values: expected a value"),
    ],
)
def test_an_invalid_figure_or_shown_value_is_an_error(replaced: str, replacement: str, message: str) -> None:
    assert any(message in problem for problem in document_problems(PAPER + FIGURES.replace(replaced, replacement)))


def test_a_relation_has_two_sides_and_a_table_its_columns() -> None:
    paper = parse(PAPER + RELATIONS, "the paper")
    (relation,), (table,) = paper.relations, paper.tables
    assert relation.left == Figures("contention", "p50_ns", by="clients", span=(2, 8), slope=True)
    assert (relation.right.run, relation.least, relation.most) == ("latency", 0.9, 1.1)
    assert table.columns == ("clients", "p50_ns")


@pytest.mark.parametrize(
    ("replaced", "replacement", "message"),
    [
        ('left = { run = "contention"', 'left = { run = "contentment"', "did you mean 'contention'"),
        ("span = [2, 8]", "span = [2]", "expected two bounds, and a key 'by'"),
        ("by = ", "bye = ", "relation[1].left: found unknown setting 'bye'"),
        ("least = 0.9\nmost = 1.1\n", "", "expected least or most"),
        ('right = { run = "latency", take = "p50_ns" }\n', "", "relation[1].right: expected a value"),
        ('source = "section 3"\nrun = "contention"', 'source = "section 3"\nrun = "con"', "expected the name of a run"),
    ],
)
def test_an_unresolved_relation_or_table_is_an_error(replaced: str, replacement: str, message: str) -> None:
    assert replaced in RELATIONS
    assert any(message in problem for problem in document_problems(PAPER + RELATIONS.replace(replaced, replacement)))


ROWS: list[dict[str, Any]] = [
    {"clients": 1, "p50_ns": 50, "kind": "a"},
    {"clients": 2, "p50_ns": 40, "kind": "a"},
    {"clients": 4, "p50_ns": 60, "kind": "b"},
    {"clients": 8, "p50_ns": 100, "kind": "b"},
    {"peak": 7},
]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [50, 40, 60, 100]),
        ({"where": {"kind": "b"}}, [60, 100]),
        ({"by": "clients", "span": (2, 4)}, [40, 60]),
        ({"by": "clients", "span": (2, 8), "slope": True}, [10]),
        ({"where": {"kind": "c"}}, []),
        ({"by": "clients", "span": (1, 1), "slope": True}, []),
    ],
)
def test_figures_are_computed_from_a_runs_rows(options: dict[str, Any], expected: list[float]) -> None:
    assert figures(Figures("contention", "p50_ns", **options), ROWS) == pytest.approx(expected)


@pytest.mark.parametrize("value", ["fast", None, True, [1]])
def test_a_value_that_is_no_number_is_an_error(value: object) -> None:
    with pytest.raises(TestbedError, match=r"a row of a run is damaged: p50_ns must be a number, got"):
        figures(Figures("contention", "p50_ns"), [{"p50_ns": value}])


def test_a_paper_restricted_to_runs_has_only_their_rows_and_tables() -> None:
    paper = parse(PAPER + RELATIONS, "the paper")
    latency = restrict(paper, ["latency"])
    assert (len(latency.rows), len(latency.shapes), latency.relations, latency.tables) == (2, 1, (), ())
    contention = restrict(paper, ["contention"])
    assert (contention.rows, contention.shapes, contention.relations, len(contention.tables)) == ((), (), (), 1)
    assert restrict(paper, ["latency", "contention"]) == paper
    with pytest.raises(NotFoundError, match="no run 'latent' — did you mean 'latency'"):
        restrict(paper, ["latent"])

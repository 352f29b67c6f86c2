"""Table and picture of reproductions in the README match the recorded rows."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape

import pytest

from reference import paper_tables, scoreboard
from testbed.observe.comparing.score_summary import summary_rows
from testbed.observe.paper_files import paper_of, systems

README = (scoreboard.ROOT / "README.md").read_text()
PICTURE = scoreboard.PICTURE.read_text()


def test_the_readme_has_the_table_of_the_recorded_rows() -> None:
    assert scoreboard.with_table(README, paper_tables.summary()) == README
    assert all(f"| {system} |" in README for system in systems())


def test_the_picture_is_drawn_from_the_recorded_rows() -> None:
    systems = paper_tables.kept_systems()
    assert f"<metadata>rows: {scoreboard.digest(systems)}</metadata>" in PICTURE
    description = unescape(re.findall(r'aria-label="([^"]+)"', PICTURE)[0])
    for cells in summary_rows(systems):
        assert f"{cells[0]}, rows {cells[1]}, predicted {cells[2]}, median error {cells[3]}" in description


def test_a_changed_row_changes_the_table_and_the_picture() -> None:
    first, *rest = [scores for scores in paper_tables.kept_systems() if any(not row.calibrated for row in scores.rows)]
    changed = replace(first, rows=[replace(row, ours=row.ours * 1.3) for row in first.rows])
    assert scoreboard.digest([changed, *rest]) != scoreboard.digest([first, *rest])
    assert scoreboard.with_table(README, paper_tables.summary([changed, *rest])) != README


def test_a_readme_without_the_markers_of_the_table_is_an_error() -> None:
    with pytest.raises(ValueError, match="one place for the table of papers"):
        scoreboard.with_table("# A title\n", "")


@pytest.mark.parametrize("system", systems())
def test_the_recorded_rows_are_those_of_the_paper(system: str) -> None:
    """The values are compared by the reproductions of each system."""
    (scores,) = [scores for scores in paper_tables.kept_systems() if scores.system == system]
    paper = paper_of(system)
    assert [
        (row.name, row.source, row.paper, row.unit, row.calibrated, row.place, row.table) for row in scores.rows
    ] == [(row.name, row.source, row.paper, row.unit, row.calibrated, row.place, row.table) for row in paper.rows]
    assert list(scores.shapes) == [shape.name for shape in (*paper.shapes, *paper.relations)]

"""Papers' values beside ours, from the rows that are kept of them (`testbed reproduce --keep` measures them anew)."""

from __future__ import annotations

from collections.abc import Sequence

from reference.markdown import cell, table
from testbed.observe.comparing.score_summary import HEADINGS, summary_rows
from testbed.observe.kept_rows import KeptRows, kept_rows
from testbed.observe.paper_files import paper_of, systems


def kept_systems() -> list[KeptRows]:
    """Kept rows of all systems that have a paper."""
    return [kept for system in systems() if (kept := kept_rows(system)) is not None]


def summary(systems: Sequence[KeptRows] | None = None) -> str:
    """Errors of the predicted rows of each system, by default of all with kept rows."""
    rows = [[cell(text) for text in row] for row in summary_rows(kept_systems() if systems is None else systems)]
    return table(HEADINGS, rows)


def of_protocol(system: str) -> str:
    """Every row of a system's paper, and its values that are no measurement of ours."""
    kept = kept_rows(system)
    assert kept is not None
    rows = [
        (
            cell(row.name),
            cell(row.source),
            f"{row.paper:g} {row.unit}",
            f"{row.ours:.4g} {row.unit}",
            f"{row.error:+.1%}",
            "calibrated" if row.calibrated else "predicted",
        )
        for row in kept.rows
    ]
    others = [
        (cell(f"{each.name}: {whose}"), cell(each.source), f"{value:g} {each.unit}")
        for each in paper_of(system).unmeasured
        for whose, value in each.values.items()
    ]
    shapes = "".join(f"- {cell(name)}\n" for name, holds in kept.shapes.items() if holds)
    return (
        f"{len(rows)} rows, in the simulation (`testbed reproduce {system}`):\n\n"
        + table(("row", "in the paper", "paper", "ours", "error", ""), rows)
        + (f"\nShapes that are checked, and hold:\n\n{shapes}" if shapes else "")
        + ("\nValues that are no measurement of ours, as the paper has them:\n\n" if others else "")
        + (table(("value", "in the paper", "paper"), others) if others else "")
    )

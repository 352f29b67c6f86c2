"""Tables of the papers' values and ours, from the stored rows (`testbed reproduce --keep` measures and stores them)."""

from __future__ import annotations

from collections.abc import Sequence

from reference.markdown import cell, table
from testbed.observe.comparing.score_summary import HEADINGS, summary_rows
from testbed.observe.kept_rows import KeptRows, kept_rows
from testbed.observe.paper_files import paper_of, systems


def kept_systems() -> list[KeptRows]:
    """Return the stored rows of each system that has them."""
    return [kept for system in systems() if (kept := kept_rows(system)) is not None]


def summary(systems: Sequence[KeptRows] | None = None) -> str:
    """Return a table of the errors of each system's predicted rows. systems: by default all with stored rows."""
    rows = [[cell(text) for text in row] for row in summary_rows(kept_systems() if systems is None else systems)]
    return table(HEADINGS, rows)


def of_protocol(system: str) -> str:
    """Return a table of all rows of a system's paper, and one of the paper's values that our runs do not measure."""
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
    unmeasured = [
        (cell(f"{quantity.name}: {label}"), cell(quantity.source), f"{value:g} {quantity.unit}")
        for quantity in paper_of(system).unmeasured
        for label, value in quantity.values.items()
    ]
    shapes = "".join(f"- {cell(name)}\n" for name, holds in kept.shapes.items() if holds)
    return (
        f"{len(rows)} rows, in the simulation (`testbed reproduce {system}`):\n\n"
        + table(("row", "in the paper", "paper", "ours", "error", ""), rows)
        + (f"\nShapes that are checked, and hold:\n\n{shapes}" if shapes else "")
        + ("\nValues of the paper that our runs do not measure:\n\n" if unmeasured else "")
        + (table(("value", "in the paper", "paper"), unmeasured) if unmeasured else "")
    )

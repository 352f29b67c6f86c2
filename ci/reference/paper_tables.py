"""A paper's values beside ours, from the rows of a reproduction that are kept in docs/protocols/reproduced.

    python -m reference.paper_tables SYSTEM ...     in ci/: measure them anew, some minutes

The tests of reproductions compare what they measure with these files.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from reference.markdown import cell, table

if TYPE_CHECKING:
    from testbed.controller.reproduction import Reproduction

FOLDER: Final = Path(__file__).parents[2] / "docs" / "protocols" / "reproduced"


def of_protocol(system: str) -> str:
    """Every row of a system's paper."""
    measured = json.loads((FOLDER / f"{system}.json").read_text())
    rows = [
        (
            cell(row["name"]),
            cell(row["source"]),
            f"{row['paper']:g} {row['unit']}",
            f"{row['ours']:.4g} {row['unit']}",
            f"{row['ours'] / row['paper'] - 1:+.1%}",
            "calibrated" if row["calibrated"] else "predicted",
        )
        for row in measured["rows"]
    ]
    shapes = "".join(f"- {cell(shape['name'])}\n" for shape in measured["shapes"] if shape["holds"])
    return (
        f"{len(rows)} rows, in the simulation (`testbed reproduce {system}`):\n\n"
        + table(("row", "in the paper", "paper", "ours", "error", ""), rows)
        + (f"\nShapes that are checked, and hold:\n\n{shapes}" if shapes else "")
    )


def kept(reproduction: Reproduction) -> dict[str, list[dict[str, object]]]:
    """Return the kept part of a reproduction: its rows, and its shapes with whether they hold."""
    rows = [
        {
            "name": compared.row.name,
            "source": compared.row.source,
            "paper": compared.row.paper,
            "ours": round(compared.ours, 6),
            "unit": compared.row.unit,
            "calibrated": compared.row.calibrated,
        }
        for compared in reproduction.rows
    ]
    return {
        "rows": rows,
        "shapes": [{"name": shape.shape.name, "holds": shape.holds} for shape in reproduction.shapes],
    }


def main(systems: list[str]) -> None:
    """Measure systems, and keep the results."""
    from testbed.controller.reproduction import reproduce

    for system in systems:
        text = json.dumps(kept(reproduce(system)), indent=1)
        (FOLDER / f"{system}.json").write_text(text + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])

"""A paper's values beside ours, from the rows of a reproduction that are kept in docs/protocols/reproduced.

``testbed reproduce SYSTEM --json`` measures them; the tests of reproductions compare what they measure with these files.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from reference.markdown import cell, table

FOLDER: Final = Path(__file__).parents[2] / "docs" / "protocols" / "reproduced"


def of_protocol(system: str) -> str:
    """Every row of a system's paper."""
    kept = json.loads((FOLDER / f"{system}.json").read_text())
    rows = [
        (
            cell(row["name"]),
            cell(row["source"]),
            f"{row['paper']:g} {row['unit']}",
            f"{row['ours']:.4g} {row['unit']}",
            f"{row['ours'] / row['paper'] - 1:+.1%}",
            "calibrated" if row["calibrated"] else "predicted",
        )
        for row in kept["rows"]
    ]
    shapes = "".join(f"- {cell(shape)}\n" for shape in kept["shapes"])
    return (
        f"{len(rows)} rows, in the simulation (`testbed reproduce {system}`):\n\n"
        + table(("row", "in the paper", "paper", "ours", "error", ""), rows)
        + (f"\nShapes that are checked, and hold:\n\n{shapes}" if shapes else "")
    )

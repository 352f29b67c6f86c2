"""Rows of reproductions compared with the kept and documented ones."""

from __future__ import annotations

from dataclasses import asdict

from testbed.controller.papers.reproduction import Reproduction
from testbed.observe.kept_rows import kept_rows, to_keep


def otherwise_documented(reproduction: Reproduction) -> list[str]:
    """Names of the rows and shapes that this reproduction has and those that are kept have not, or not so. `testbed
    reproduce --keep` measures them anew."""
    kept_system, measured = kept_rows(reproduction.system), to_keep(reproduction)
    assert kept_system is not None
    assert measured["rows"]
    rows = [asdict(row) for row in kept_system.rows]
    return [
        *[str(row["name"]) for row in measured["rows"] if row not in rows],
        *[shape["name"] for shape in measured["shapes"] if kept_system.shapes.get(shape["name"]) is not shape["holds"]],
    ]

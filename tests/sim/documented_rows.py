"""Compare a reproduction's rows with the kept, documented ones."""

from __future__ import annotations

from dataclasses import asdict

from testbed.controller.papers.reproduction import Reproduction
from testbed.observe.kept_rows import kept_rows, to_keep


def rows_that_differ(reproduction: Reproduction) -> list[str]:
    """Return the names of rows and shapes that differ from the kept ones or are not kept. `testbed reproduce --keep`
    updates these."""
    kept_system, measured = kept_rows(reproduction.system), to_keep(reproduction)
    assert kept_system is not None
    assert measured["rows"]
    rows = [asdict(row) for row in kept_system.rows]
    return [
        *[str(row["name"]) for row in measured["rows"] if row not in rows],
        *[shape["name"] for shape in measured["shapes"] if kept_system.shapes.get(shape["name"]) is not shape["holds"]],
    ]

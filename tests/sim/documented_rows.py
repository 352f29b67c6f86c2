"""Rows of reproductions against those that the documentation shows."""

from __future__ import annotations

import json

from reference.paper_tables import FOLDER, kept
from testbed.controller.reproduction import Reproduction


def otherwise_documented(reproduction: Reproduction) -> list[str]:
    """Names of the rows and shapes that this reproduction has and docs/protocols/reproduced has not, or not so. `python -m
    reference.paper_tables`, in ci/, measures them anew."""
    documented = json.loads((FOLDER / f"{reproduction.protocol}.json").read_text())
    measured = kept(reproduction)
    assert measured["rows"]
    return [str(row["name"]) for part in ("rows", "shapes") for row in measured[part] if row not in documented[part]]

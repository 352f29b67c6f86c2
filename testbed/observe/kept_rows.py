"""Rows of an earlier reproduction, stored in `reproduced.json` beside a protocol's `paper.toml`.

``testbed reproduce --keep`` writes them. The documentation's tables and the README's summary are made from them, and a later
reproduction is compared with them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from testbed.errors import TestbedError, UnsupportedError, errors_naming, reason_of
from testbed.observe.comparing.scores import Scores
from testbed.observe.paper_files import folder_of

_FILE: Final = "reproduced.json"


@dataclass(frozen=True, slots=True)
class KeptRow:
    """A row of a paper and our value, in its unit."""

    name: str
    place: str
    source: str
    table: str
    paper: float
    ours: float
    unit: str
    calibrated: bool

    @property
    def error(self) -> float:
        """Relative error of our value."""
        return self.ours / self.paper - 1


@dataclass(frozen=True, slots=True)
class KeptRows:
    """The rows of a system. shapes: whether each shape holds, by its name."""

    system: str
    rows: Sequence[KeptRow]
    shapes: Mapping[str, bool]

    @property
    def shapes_hold(self) -> list[bool]:
        """Whether each shape holds."""
        return list(self.shapes.values())


def kept_rows(system: str) -> KeptRows | None:
    """Read the stored rows of a system; None if there are none. Raises TestbedError for a damaged file."""
    file = folder_of(system) / _FILE
    if not file.is_file():
        return None
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        rows = [KeptRow(**row) for row in document["rows"]]
        return KeptRows(system, rows, {shape["name"]: shape["holds"] for shape in document["shapes"]})
    except (ValueError, KeyError, TypeError) as error:
        raise TestbedError(f"{file} is damaged: 'testbed reproduce {system} --keep' rewrites it") from error


def to_keep(scores: Scores) -> dict[str, list[dict[str, Any]]]:
    """Return the stored part of a reproduction: its rows, and whether each shape holds."""
    rows = [
        {
            "name": compared.row.name,
            "place": compared.row.place,
            "source": compared.row.source,
            "table": compared.row.table,
            "paper": compared.row.paper,
            "ours": round(compared.ours, 6),
            "unit": compared.row.unit,
            "calibrated": compared.row.calibrated,
        }
        for compared in scores.rows
    ]
    return {"rows": rows, "shapes": [{"name": result.shape.name, "holds": result.holds} for result in scores.shapes]}


def keep(scores: Scores) -> Path:
    """Write the rows of a reproduction beside its paper; return the file. Raises UnsupportedError if the protocol's
    package is not a folder, TestbedError if the file cannot be written."""
    folder = folder_of(scores.system)
    if not isinstance(folder, Path):
        raise UnsupportedError(f"the package of protocol {scores.system} is not a folder: its rows cannot be kept")
    try:
        with errors_naming(folder / _FILE):
            (folder / _FILE).write_text(json.dumps(to_keep(scores), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise TestbedError(f"the rows cannot be kept: {reason_of(error)}") from error
    return folder / _FILE

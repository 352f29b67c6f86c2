"""Measures of the source's layout that have been reached stay reached (`ci/house.py`)."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

HOUSE = runpy.run_path(str(Path(__file__).parents[3] / "ci" / "house.py"))
MODULES = HOUSE["modules"]()


@pytest.mark.parametrize(
    "name",
    [
        "import circles",
        "modules named by a participle",
        "modules below 50 lines",
        "file names that occur twice",
        "functions above 80 lines",
        "functions of more than 10 parameters",
        "docstrings that begin with a riddle",
    ],
)
def test_a_measure_is_within_its_limit(name: str) -> None:
    measure = HOUSE["MEASURES"][name]
    found = measure.lines(MODULES)
    assert len(found) <= measure.limit, found


def test_a_circle_of_imports_is_found(tmp_path: Path) -> None:
    for name, other in (("a", "b"), ("b", "a")):
        (tmp_path / f"{name}.py").write_text(f'"""Module {name}."""\nimport {other}\n')
    found = [
        HOUSE["Module"](path, path.stem, HOUSE["ast"].parse(path.read_text()), 2) for path in sorted(tmp_path.iterdir())
    ]
    for module in found:
        module.imports = set(HOUSE["imported"](module, {"a", "b"}))
    assert HOUSE["circles"](found) == ["a b"]

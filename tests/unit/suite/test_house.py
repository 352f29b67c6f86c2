"""Measures of the source's layout that have been reached stay reached (`ci/house.py`)."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HOUSE = runpy.run_path(str(Path(__file__).parents[3] / "ci" / "house.py"))
CIRCLE = (("a", "b"), ("b", "a"))


@pytest.fixture(scope="module")
def modules() -> Iterator[dict[tuple[str, ...], list[Any]]]:
    """All modules by the rooms that are measured. Parsed for these tests only: the trees take 400 MB."""
    found = HOUSE["modules"](HOUSE["DOCUMENTED_ROOMS"])
    product = [module for module in found if module.place.startswith(tuple(f"{room}/" for room in HOUSE["ROOMS"]))]
    by_rooms = {HOUSE["DOCUMENTED_ROOMS"]: found, HOUSE["ROOMS"]: product}
    yield by_rooms
    by_rooms.clear()


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
def test_a_measure_is_within_its_limit(name: str, modules: dict[tuple[str, ...], list[Any]]) -> None:
    measure = HOUSE["MEASURES"][name]
    found = measure.lines(modules[measure.rooms])
    assert len(found) <= measure.limit, found


def test_docstrings_of_tests_and_benchmarks_are_measured_too(modules: dict[tuple[str, ...], list[Any]]) -> None:
    places = {module.place for module in modules[HOUSE["DOCUMENTED_ROOMS"]]}
    assert {"tests/unit/suite/test_house.py", "ci/house.py", "ci/benchmarks/harness/rows.py"} <= places


def test_a_circle_of_imports_is_found() -> None:
    found = [module(f"{name}.py", f'"""Module {name}."""\nimport {other}\n') for name, other in CIRCLE]
    for each in found:
        each.imports = set(HOUSE["imported"](each, {"a", "b"}))
    assert HOUSE["circles"](found) == ["a b"]


def test_a_docstring_that_begins_with_a_pronoun_or_without_a_subject_is_found() -> None:
    found = module("m.py", '''
"""Frames of a protocol."""

COUNT = 3
"""Of each node."""


class Frame:
    """What is sent."""


def send(frame: Frame) -> None:
    """Send a frame."""
    "Nothing waits."
''')  # fmt: skip
    assert HOUSE["riddles"]([found]) == ["m.py:5 Of each node.", "m.py:9 What is sent.", "m.py:14 Nothing waits."]


def module(place: str, text: str) -> Any:
    path = HOUSE["ROOT"] / place
    return HOUSE["Module"](path, path.stem, HOUSE["ast"].parse(text), len(text.splitlines()))

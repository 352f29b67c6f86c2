"""Measures of the source's layout and their limits (`ci/house.py`)."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).parents[3] / "ci" / "house.py"
HOUSE = runpy.run_path(str(SCRIPT))
CIRCLE = (("a", "b"), ("b", "a"))


def test_every_measure_is_within_its_limit() -> None:
    """Runs in another process, since the syntax trees of all modules take 400 MB."""
    completed = subprocess.run(
        [sys.executable, SCRIPT, "--limits"], capture_output=True, text=True, timeout=100, check=False
    )
    assert (completed.returncode, completed.stderr) == (0, ""), (
        f"{completed.stdout}\nci/house.py --list MEASURE prints the places"
    )
    limited = [line for line in completed.stdout.splitlines() if "limit" in line]
    assert len(limited) == sum(measure.limit is not None for measure in HOUSE["MEASURES"].values()) >= 7


def test_docstrings_of_tests_and_benchmarks_are_measured() -> None:
    assert {"tests", "ci"} <= set(HOUSE["MEASURES"]["docstrings that begin with a vague word"].rooms)
    assert "ci/benchmarks/harness/rows.py" in {module.place for module in HOUSE["modules"](("ci",))}


def test_a_circle_of_imports_is_found() -> None:
    modules = [module(f"{name}.py", f'"""Module {name}."""\nimport {second}\n') for name, second in CIRCLE]
    for source in modules:
        source.imports = set(HOUSE["imported"](source, {"a", "b"}))
    assert HOUSE["circles"](modules) == ["a b"]


def test_a_docstring_that_begins_with_a_pronoun_or_without_a_subject_is_found() -> None:
    source = module("m.py", '''
"""Frames of a protocol."""

COUNT = 3
"""Of each node."""


class Frame:
    """What is sent."""


def send(frame: Frame) -> None:
    """Send a frame."""
    "Nothing waits."
''')  # fmt: skip
    assert HOUSE["vague_docstrings"]([source]) == [
        "m.py:5 Of each node.",
        "m.py:9 What is sent.",
        "m.py:14 Nothing waits.",
    ]


def module(file_name: str, text: str) -> Any:
    path = HOUSE["ROOT"] / file_name
    return HOUSE["Module"](path, path.stem, HOUSE["ast"].parse(text), len(text.splitlines()))

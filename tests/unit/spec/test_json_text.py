"""Type checks of untrusted JSON values: an error names the path of the value."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict

import pytest

from testbed.json_text import INTEGER_LIMIT, check


@dataclass(frozen=True)
class Port:
    name: str
    number: int = 0
    up: bool = False


@dataclass(frozen=True)
class Box:
    ports: tuple[Port, ...]
    size: tuple[int, str] = (1, "U")
    notes: Mapping[str, list[str]] = field(default_factory=dict)
    peer: str | None = None


class Document(TypedDict):
    box: Box
    rest: Any


WRONG: list[tuple[Any, str]] = [
    (Box((Port("a"), Port(5))), ".ports[1].name: found 5, expected text"),  # type: ignore[arg-type]
    (Box((Port("a", False),)), ".ports[0].number: found False, expected a whole number"),
    (Box((Port("a", up=0),)), ".ports[0].up: found 0, expected true or false"),  # type: ignore[arg-type]
    (Box((Port("a", INTEGER_LIMIT),)), f".ports[0].number: found {INTEGER_LIMIT}, expected a number of 64 bits"),
    (Box((Port("\ud800"),)), r".ports[0].name: found '\ud800', expected text"),
    (Box([]), ".ports: found [], expected a list"),  # type: ignore[arg-type]
    (Box((), (1, "U", 2)), ".size: found (1, 'U', 2), expected a list of 2"),  # type: ignore[arg-type]
    (Box((), (1, 1)), ".size[1]: found 1, expected text"),  # type: ignore[arg-type]
    (Box((), notes={"x": ["y", None]}), ".notes.x[1]: found None, expected text"),  # type: ignore[list-item]
    (Box((), peer=1), ".peer: found 1, expected text"),  # type: ignore[arg-type]
    ("box", ": found 'box', expected a Box"),
]


@pytest.mark.parametrize(("box", "message"), WRONG)
def test_a_value_of_the_wrong_type_is_reported_with_its_path(box: Any, message: str) -> None:
    for value, kind, location, value_path in (
        (box, Box, "file", "file"),
        ({"box": box}, Document, "", "box"),
        ([box], list[Box], "", "[0]"),
    ):
        with pytest.raises(ValueError, match=f"^{re.escape(value_path + message)}$"):
            check(value, kind, location)


def test_a_value_without_a_path_is_called_it_in_the_error() -> None:
    with pytest.raises(ValueError, match=r"^the value: found 1, expected text$"):
        check(1, str)


def test_a_value_of_the_declared_type_passes() -> None:
    check({"box": Box((Port("a", 1, up=True),), (2, "V"), {"x": ["y"]}, "z"), "rest": [1, {"a": 1.5}]}, Document)

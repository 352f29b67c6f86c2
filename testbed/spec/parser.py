"""Parser of the raw tables of a TOML file: each table is converted to an element.

An element with mistakes is read a second time without the mistaken keys, so that its other keys take part in the
cross-checks: a link with an invalid delay still occupies its ports.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

from testbed.errors import Problem
from testbed.lazy_dataclass import dataclass
from testbed.spec.annotations import InvalidError
from testbed.spec.element import Element
from testbed.spec.problems import format_value, item, translate

E = TypeVar("E", bound=Element)


@dataclass(frozen=True, slots=True)
class Reading(Generic[E]):
    """Elements of a list of tables. indices: the index of each element in the list. doubtful: indices in `elements` of the
    elements from which a mistaken key was removed. lost: whether some elements could not be read. problems: all problems of
    the tables."""

    elements: tuple[E, ...]
    indices: tuple[int, ...]
    doubtful: frozenset[int]
    lost: bool
    problems: tuple[Problem, ...]


def read(model: type[E], raw: object, path: str, known: Sequence[str] = ()) -> tuple[E | None, list[Problem]]:
    """Read one element; return it with its problems. If there are problems, it is read without the mistaken keys; None if
    that is impossible.

    path: path of the element. known: the valid keys at its top level, if they differ from the model's.
    """
    try:
        return model.validated(raw, by_name=False), []
    except InvalidError as error:
        mistakes = error.mistakes
    problems = [translate(mistake, path, raw, known) for mistake in mistakes]
    if not isinstance(raw, Mapping):
        return None, problems
    without_mistakes = copy.deepcopy(dict(raw))
    # In reverse order, so that list indices stay valid while elements are removed.
    for location in sorted(
        (mistake.location for mistake in mistakes),
        key=lambda location: [str(part).rjust(9, "0") for part in location],
        reverse=True,
    ):
        _remove(without_mistakes, [part for part in location if part != "[key]"])
    try:
        return model.validated(without_mistakes, by_name=False), problems
    except InvalidError:
        return None, problems


def _remove(raw: object, location: Sequence[int | str]) -> None:
    """Remove the value at a location; do nothing if it does not exist."""
    *parents, last = location
    for part in parents:
        raw = _at(raw, part)
    if isinstance(raw, dict):
        raw.pop(last, None)
    elif isinstance(raw, list) and isinstance(last, int) and last < len(raw):
        del raw[last]


def _at(raw: object, part: int | str) -> object:
    if isinstance(raw, dict):
        return raw.get(part)
    return raw[part] if isinstance(raw, list) and isinstance(part, int) and part < len(raw) else None


def read_list(model: type[E], raw: object, key: str) -> Reading[E]:
    """Read the elements of the tables ``[[key]]``."""
    if not isinstance(raw, (list, tuple)):
        expected = f"tables that begin with [[{key}]]"
        actual = f"[{key}]" if isinstance(raw, Mapping) else format_value(raw)
        return Reading((), (), frozenset(), True, (Problem(key, actual, expected),))
    elements: list[E] = []
    indices: list[int] = []
    doubtful: set[int] = set()
    problems: list[Problem] = []
    for index, table in enumerate(raw):
        name = table.get("name", "") if isinstance(table, Mapping) else ""
        element, element_problems = read(model, table, item(key, index, name))
        problems += element_problems
        if element is not None:
            if element_problems:
                doubtful.add(len(elements))
            elements.append(element)
            indices.append(index)
    lost = len(elements) < len(raw)
    return Reading(tuple(elements), tuple(indices), frozenset(doubtful), lost, tuple(problems))

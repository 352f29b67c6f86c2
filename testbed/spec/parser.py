"""Parse the raw tables of a TOML file to elements, each separately.

An element with mistakes is read a second time without the mistaken keys, so that its other keys take part in the
cross-checks: a link with a bad delay still occupies its ports.
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
    """Elements of a list of tables. places: the index of each element in the list. doubtful: indices in `elements` of the
    elements from which a mistaken key was removed. lost: some elements could not be read."""

    elements: tuple[E, ...]
    places: tuple[int, ...]
    doubtful: frozenset[int]
    lost: bool
    problems: tuple[Problem, ...]


def read(model: type[E], raw: object, path: str, known: Sequence[str] = ()) -> tuple[E | None, list[Problem]]:
    """Read one element and its problems; with problems, the element is read without the mistaken keys, or None.

    known: the valid keys at the top level, if they differ from the model's.
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
        (m.location for m in mistakes),
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
    """Read the elements of ``[[key]]``."""
    if not isinstance(raw, (list, tuple)):
        expected = f"tables that begin with [[{key}]]"
        actual = f"[{key}]" if isinstance(raw, Mapping) else format_value(raw)
        return Reading((), (), frozenset(), True, (Problem(key, actual, expected),))
    elements: list[E] = []
    places: list[int] = []
    doubtful: set[int] = set()
    problems: list[Problem] = []
    for place, table in enumerate(raw):
        name = table.get("name", "") if isinstance(table, Mapping) else ""
        element, mistakes = read(model, table, item(key, place, name))
        problems += mistakes
        if element is not None:
            if mistakes:
                doubtful.add(len(elements))
            elements.append(element)
            places.append(place)
    lost = len(elements) < len(raw)
    return Reading(tuple(elements), tuple(places), frozenset(doubtful), lost, tuple(problems))

"""Elements: strict types, frozen, all errors reported at once, with keys of TOML or of Python."""

from __future__ import annotations

import copy
import pickle
from typing import Annotated, Literal

import pytest

from testbed.errors import DescriptionError, Problem
from testbed.spec.annotations import After, Before, Bounds, Listed
from testbed.spec.element import Element, Field
from testbed.spec.element_schema import element_schema
from testbed.spec.problems import MismatchError


def even(value: int) -> int:
    if value % 2:
        raise MismatchError("an even number", str(value + 1))
    return value


class Part(Element):
    size: Annotated[int, Bounds(ge=2, le=1000), After(even)] = 2


class Assembly(Element):
    name: str
    share: Annotated[float, Before(lambda value: value), Bounds(gt=0)] | None = None
    colour: Literal["red", "green"] = "red"
    is_open: bool = False
    parts: Annotated[tuple[Part, ...], Listed] = Field((), key="part", description="Its parts.")
    labels: dict[str, str] = Field(default_factory=dict)


class Extended(Assembly):
    colour: Literal["blue"] = "blue"  # type: ignore[assignment]
    extra: Part = Field(default_factory=Part)


def problems_of(**keys: object) -> list[Problem]:
    with pytest.raises(DescriptionError) as caught:
        Assembly(**keys)  # type: ignore[arg-type]
    return caught.value.problems


def test_absent_keys_have_their_defaults_and_mutable_defaults_are_not_shared() -> None:
    first, second = Assembly(name="a"), Assembly(name="a")
    assert first == second
    assert first.model_dump() == {
        "name": "a", "share": None, "colour": "red", "is_open": False, "parts": (), "labels": {},
    }  # fmt: skip
    assert first.labels is not second.labels


def test_all_errors_are_reported_in_the_order_of_the_keys() -> None:
    problems = problems_of(
        share=0, colour="gren", is_open=1, part=[{"size": 3}, {"size": 2000}, {"sise": 4}, 7], other=1
    )
    assert [(problem.path, problem.found, problem.expected, problem.suggestion) for problem in problems] == [
        ("", "", "the key 'name'", ""),
        ("share", "0", "more than 0", ""),
        ("colour", "'gren'", "red or green", "green"),
        ("is_open", "1", "true or false", ""),
        ("part[1].size", "3", "an even number", "4"),
        ("part[2].size", "2000", "at most 1,000", ""),
        ("part[3]", "unknown key 'sise'", "one of the keys size", "size"),
        ("part[4]", "7", "a table", ""),
        ("", "unknown key 'other'", "one of the keys name, share, colour, is_open, part or labels", ""),
    ]


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("name", 3, "text"),
        ("share", "1", "a number"),
        ("share", True, "a number"),
        ("share", float("nan"), "a number, not NaN and not infinite"),
        ("share", 10**400, "a number, not NaN and not infinite"),
        ("parts", "ab", "a list"),
        ("parts", {"size": 2}, "a list"),
        ("labels", [], "a table"),
        ("labels", {"a": 1}, "text"),
    ],
)
def test_no_value_is_converted_implicitly(key: str, value: object, expected: str) -> None:
    (problem,) = problems_of(**{"name": "a", key: value})
    assert problem.expected == expected


def test_an_integer_is_a_number_and_an_iterator_a_list() -> None:
    assembly = Assembly(name="a", share=2, parts=(Part(size=size) for size in (2, 4)))  # type: ignore[arg-type]
    assert (assembly.share, [part.size for part in assembly.parts]) == (2.0, [2, 4])


def test_the_attribute_name_in_python_is_no_key_in_toml() -> None:
    assert Assembly.model_validate({"name": "a", "parts": [{}]}) == Assembly.model_validate({"name": "a", "part": [{}]})
    from testbed.spec.parser import read

    element, (problem,) = read(Assembly, {"name": "a", "parts": [{}]}, "whole")
    assert (problem.found, problem.suggestion) == ("unknown key 'parts'", "part")
    assert element == Assembly(name="a")


def test_an_element_is_frozen_and_can_be_copied_with_changes() -> None:
    assembly = Assembly(name="a")
    with pytest.raises(AttributeError, match="frozen"):
        assembly.name = "b"  # type: ignore[misc]
    assert assembly.model_copy(update={"name": "b"}) == Assembly(name="b")
    assert assembly.name == "a"


def test_copies_and_pickles_are_equal_and_hashes_follow_equality() -> None:
    assembly = Assembly(name="a", parts=(Part(size=4),))
    assert copy.deepcopy(assembly) == assembly == pickle.loads(pickle.dumps(assembly))
    assert hash(Part(size=4)) == hash(Part(size=4))
    assert Assembly(name="a") != Extended(name="a")


def test_a_subclass_has_the_keys_of_its_base_first_and_may_override_them() -> None:
    assert list(Extended.model_fields) == ["name", "share", "colour", "is_open", "parts", "labels", "extra"]
    assert Extended(name="a").model_dump(exclude_defaults=True) == {"name": "a"}
    assert repr(Extended(name="a", extra=Part(size=8))).endswith("colour='blue', is_open=False, parts=(), labels={}, "
                                                               "extra=Part(size=8))")  # fmt: skip


def test_the_schema_refers_to_elements_and_has_bounds_defaults_and_descriptions() -> None:
    definitions: dict[str, object] = {}
    schema = element_schema(Assembly, definitions)
    assert schema["required"] == ["name"]
    assert schema["properties"]["part"] == {
        "default": [], "description": "Its parts.", "items": {"$ref": "#/$defs/Part"}, "title": "Part",
        "type": "array",
    }  # fmt: skip
    assert definitions == {
        "Part": {
            "additionalProperties": False, "title": "Part", "type": "object",
            "properties": {"size": {"default": 2, "maximum": 1000, "minimum": 2, "title": "Size", "type": "integer"}},
        }
    }  # fmt: skip

"""Validators of annotated types: they check values against a key's annotation, without implicit conversions.

Supported are str, int, float, bool, elements, Literal, tuple[X, ...], dict[str, X], X | None and Annotated with Before,
After, Bounds and Listed. A value must have the annotated type (an int is a valid float; a bool is not an int), unless Before
or Listed converts it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from testbed.spec.problems import join_alternatives, nearest


class Mistake:
    """An invalid value. location: keys and indices of the path to it. found: the value. expected: the expected value, as a
    phrase. suggestion: the nearest valid value, or empty. is_missing: whether the last key is absent. known: the valid keys,
    if the last key is unknown.
    """

    __slots__ = ("expected", "found", "is_missing", "known", "location", "suggestion")

    def __init__(
        self,
        location: tuple[int | str, ...],
        found: object,
        expected: str,
        suggestion: str = "",
        *,
        is_missing: bool = False,
        known: tuple[str, ...] | None = None,
    ) -> None:
        self.location = location
        self.found = found
        self.expected = expected
        self.suggestion = suggestion
        self.is_missing = is_missing
        self.known = known


class InvalidError(Exception):
    """Raised for a value with mistakes."""

    def __init__(self, *mistakes: Mistake) -> None:
        self.mistakes = mistakes
        super().__init__(f"{len(mistakes)} mistakes")

    def below(self, *prefix: int | str) -> tuple[Mistake, ...]:
        """Prepend the location of the value to the mistakes' locations; return the mistakes."""
        for mistake in self.mistakes:
            mistake.location = (*prefix, *mistake.location)
        return self.mistakes


Validator = Callable[[Any, bool], Any]
"""Returns the validated value of a key, or raises InvalidError with locations relative to the value. Its second argument
tells whether keys of elements may have their names in Python."""


class Validated:
    """Base of classes that validate their own values."""

    __slots__ = ()

    @classmethod
    def validated(cls, value: object, by_name: bool) -> Any:
        raise NotImplementedError


class Before:
    """Annotation: convert the value before the annotated type is checked."""

    __slots__ = ("convert",)

    def __init__(self, convert: Callable[[Any], Any]) -> None:
        self.convert = convert


class After:
    """Annotation: check or convert a value of the annotated type."""

    __slots__ = ("convert",)

    def __init__(self, convert: Callable[[Any], Any]) -> None:
        self.convert = convert


class Bounds:
    """Annotation: bounds of a number. min_length, max_length: bounds of the length of a text or tuple."""

    __slots__ = ("ge", "gt", "le", "lt", "max_length", "min_length")

    def __init__(
        self,
        *,
        ge: float | None = None,
        gt: float | None = None,
        le: float | None = None,
        lt: float | None = None,
        min_length: int = 0,
        max_length: int | None = None,
    ) -> None:
        self.ge = ge
        self.gt = gt
        self.le = le
        self.lt = lt
        self.min_length = min_length
        self.max_length = max_length

    def expected(self, value: Any) -> str:
        """Return a phrase for the expected values if the value is out of bounds, else an empty string."""
        if isinstance(value, (str, tuple)):
            unit = "character" if isinstance(value, str) else "item"
            if len(value) < self.min_length:
                return f"{_quantity(self.min_length, unit)} or more"
            if self.max_length is not None and len(value) > self.max_length:
                return f"at most {_quantity(self.max_length, unit)}"
        elif self.le is not None and value > self.le:
            return f"at most {self.le:,}"
        elif self.lt is not None and value >= self.lt:
            return f"less than {self.lt:,}"
        elif self.ge is not None and value < self.ge:
            return f"at least {self.ge:,}"
        elif self.gt is not None and value <= self.gt:
            return f"more than {self.gt:,}"
        return ""


def _quantity(count: int, unit: str) -> str:
    return f"{count:,} {unit}{'s' if count != 1 else ''}"


class Schema:
    """Annotation: the JSON Schema of the value in TOML, instead of one derived from the annotated type."""

    __slots__ = ("schema",)

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.schema = schema


class Listed:
    """Annotation: convert any iterable except a text or table, such as a TOML list, to a tuple."""

    __slots__ = ()


def validator(annotation: Any) -> Validator:
    """Return the validator of an annotation."""
    if get_origin(annotation) is not Annotated:
        return _of_type(annotation, False)
    annotated, *metadata = get_args(annotation)
    check = _of_type(annotated, any(mark is Listed for mark in metadata))
    for mark in metadata:
        if isinstance(mark, Before):
            check = _before(mark.convert, check)
        elif isinstance(mark, After):
            check = _after(check, mark.convert)
        elif isinstance(mark, Bounds):
            check = _bounded(check, mark)
    return check


def mistake_of(error: ValueError, found: object) -> Mistake:
    """Convert a converter's error to a mistake; see `problems.MismatchError`."""
    return Mistake((), found, getattr(error, "expected", str(error)), getattr(error, "suggestion", ""))


def _before(convert: Callable[[Any], Any], check: Validator) -> Validator:
    def before(value: Any, by_name: bool) -> Any:
        try:
            converted = convert(value)
        except ValueError as error:
            raise InvalidError(mistake_of(error, value)) from None
        return check(converted, by_name)

    return before


def _after(check: Validator, convert: Callable[[Any], Any]) -> Validator:
    def after(value: Any, by_name: bool) -> Any:
        checked = check(value, by_name)
        try:
            return convert(checked)
        except ValueError as error:
            raise InvalidError(mistake_of(error, value)) from None

    return after


def _bounded(check: Validator, bounds: Bounds) -> Validator:
    def bounded(value: Any, by_name: bool) -> Any:
        checked = check(value, by_name)
        expected = bounds.expected(checked)
        if expected:
            raise InvalidError(Mistake((), value, expected))
        return checked

    return bounded


def _of_type(annotation: Any, is_listed: bool) -> Validator:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        (inner,) = (argument for argument in arguments if argument is not NoneType)
        return _optional(validator(inner))
    if origin is Literal:
        return _literal(arguments)
    if origin is tuple:
        return _tuple(validator(arguments[0]), is_listed)
    if origin is dict:
        return _dictionary(validator(arguments[0]), validator(arguments[1]))
    if isinstance(annotation, type) and issubclass(annotation, Validated):
        return annotation.validated
    return _PLAIN[annotation]


def _optional(check: Validator) -> Validator:
    return lambda value, by_name: None if value is None else check(value, by_name)


def _literal(allowed: tuple[str, ...]) -> Validator:
    def literal(value: Any, _by_name: bool) -> Any:
        if not isinstance(value, str) or value not in allowed:
            raise InvalidError(Mistake((), value, join_alternatives(allowed), nearest(value, allowed)))
        return value

    return literal


def _tuple(check: Validator, is_listed: bool) -> Validator:
    def elements(value: Any, by_name: bool) -> Any:
        is_list = isinstance(value, Iterable) and not isinstance(value, (str, bytes, bytearray, Mapping))
        if not isinstance(value, tuple) and not (is_listed and is_list):
            raise InvalidError(Mistake((), value, "a list"))
        checked: list[Any] = []
        mistakes: list[Mistake] = []
        for index, element in enumerate(value):
            try:
                checked.append(check(element, by_name))
            except InvalidError as error:
                mistakes += error.below(index)
        if mistakes:
            raise InvalidError(*mistakes)
        return tuple(checked)

    return elements


def _dictionary(check_key: Validator, check: Validator) -> Validator:
    def dictionary(value: Any, by_name: bool) -> Any:
        if not isinstance(value, dict):
            raise InvalidError(Mistake((), value, "a table"))
        checked: dict[str, Any] = {}
        mistakes: list[Mistake] = []
        for key, element in value.items():
            try:
                checked[check_key(key, by_name)] = None
            except InvalidError as error:
                mistakes += error.below(str(key), "[key]")
            try:
                checked[key] = check(element, by_name)
            except InvalidError as error:
                mistakes += error.below(str(key))
        if mistakes:
            raise InvalidError(*mistakes)
        return checked

    return dictionary


def _text(value: Any, _by_name: bool) -> str:
    if not isinstance(value, str):
        raise InvalidError(Mistake((), value, "text"))
    return value


def _integer(value: Any, _by_name: bool) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidError(Mistake((), value, "a whole number"))
    return value


def _number(value: Any, _by_name: bool) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise InvalidError(Mistake((), value, "a number"))
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise InvalidError(Mistake((), value, "a number, not NaN and not infinite"))
    return number


def _boolean(value: Any, _by_name: bool) -> bool:
    if not isinstance(value, bool):
        raise InvalidError(Mistake((), value, "true or false"))
    return value


_PLAIN: Mapping[Any, Validator] = {str: _text, int: _integer, float: _number, bool: _boolean}

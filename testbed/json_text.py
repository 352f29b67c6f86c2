"""Parse and validate JSON from untrusted writers or damaged disks; every defect raises ValueError."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from functools import cache
from types import NoneType, UnionType
from typing import (
    Any,
    Final,
    Generic,
    Literal,
    Self,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from testbed.lazy_dataclass import fields_of

Check: TypeAlias = Callable[[object], None]
"""Raises MismatchError for a value of the wrong type."""

INTEGER_LIMIT: Final = 2**64
"""Integers are smaller than this in magnitude."""
_MAX_SHOWN: Final = 60  # characters of a value in a message


def loads(text: str | bytes) -> Any:
    """Parse JSON like `json.loads`; ValueError for invalid text, also for nesting beyond Python's recursion limit."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


T = TypeVar("T")


class LastDocument(Generic[T]):
    """Cache of the document that this process read or wrote last: a command reads the same document several times."""

    def __init__(self, parse: Callable[[str], T]) -> None:
        self._parse = parse
        self._last: tuple[str, T] | None = None

    def of(self, text: str) -> T:
        """Return the document that a text describes. Raises the errors of `parse`."""
        last = self._last
        if last is None or last[0] != text:
            self._last = last = text, self._parse(text)
        return last[1]

    def note(self, text: str, document: T) -> None:
        """Cache a document that has been written with this text."""
        self._last = text, document


class MismatchError(ValueError):
    """A value has the wrong type.

    Each enclosing check adds its step of the path (``.name``, ``[3]``) to the error, so that valid values cost no paths.
    """

    def __init__(self, value: object, expected: str) -> None:
        super().__init__()
        self._found = repr(value)
        self._expected = expected
        self._steps: list[str] = []  # of the path, the innermost first

    def inside(self, step: str) -> Self:
        """Add the enclosing step of the path; return the error."""
        self._steps.append(step)
        return self

    def __str__(self) -> str:
        path = "".join(reversed(self._steps)).lstrip(".")
        shown = self._found if len(self._found) <= _MAX_SHOWN else self._found[:_MAX_SHOWN] + "..."
        return f"{path or 'the value'}: found {shown}, expected {self._expected}"


def check(value: object, annotation: Any, where: str = "") -> None:
    """Raise ValueError if a value or a part of it does not have its annotated type.

    where: the value's path for the error message. Dataclasses are checked by their fields, typed dictionaries by the
    keys that the value has. Integers of more than 64 bits, infinities, NaN and text that cannot be encoded are also
    rejected: testbed never writes them.
    """
    try:
        check_of(annotation)(value)
    except MismatchError as error:
        raise error.inside(where) from None


@cache
def check_of(annotation: Any) -> Check:
    """Return the check of values with an annotation; it is built once for each annotation."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation in (Any, object):
        return _check_scalars
    if annotation in _SCALARS:
        return _SCALARS[annotation]
    if origin is Literal:
        return _literal(arguments)
    if origin in (Union, UnionType):
        return _union(arguments)
    if origin is tuple and arguments[-1] is Ellipsis:
        return _sequence(tuple, check_of(arguments[0]))
    if origin is tuple:
        return _tuple(*map(check_of, arguments))
    if origin is list:
        return _sequence(list, check_of(arguments[0]))
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(*map(check_of, arguments))
    if is_typeddict(annotation):
        return _keys({key: check_of(hint) for key, hint in get_type_hints(annotation).items()})
    if isinstance(annotation, type) and fields_of(annotation):
        return _fields(annotation)
    raise AssertionError(f"no check for {annotation}")


def _check_scalars(value: object) -> None:
    """Check the scalars in a value of any type."""
    if isinstance(value, str):
        _check_text(value)
    elif isinstance(value, bool):
        pass
    elif isinstance(value, int):
        _check_integer(value)
    elif isinstance(value, float):
        _check_number(value)
    elif isinstance(value, list | tuple):
        for item in value:
            _check_scalars(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            _check_scalars(item)


def _check_text(value: object) -> None:
    if type(value) is not str:
        raise MismatchError(value, "text")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise MismatchError(value, "text") from None


def _check_integer(value: object) -> None:
    if type(value) is not int:
        raise MismatchError(value, "a whole number")
    if not -INTEGER_LIMIT < value < INTEGER_LIMIT:
        raise MismatchError(value, "a number of 64 bits")


def _check_boolean(value: object) -> None:
    if type(value) is not bool:
        raise MismatchError(value, "true or false")


def _check_null(value: object) -> None:
    if value is not None:
        raise MismatchError(value, "null")


def _check_number(value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not _is_finite(value):
        raise MismatchError(value, "a number")


def _is_finite(value: float) -> bool:
    return -INTEGER_LIMIT < value < INTEGER_LIMIT if isinstance(value, int) else math.isfinite(value)


_SCALARS: Final[Mapping[Any, Check]] = {
    int: _check_integer, str: _check_text, bool: _check_boolean, float: _check_number, NoneType: _check_null,
}  # fmt: skip


def _literal(allowed: tuple[object, ...]) -> Check:
    def check_literal(value: object) -> None:
        if value not in allowed:
            raise MismatchError(value, " or ".join(map(repr, allowed)))

    return check_literal


def _union(alternatives: tuple[Any, ...]) -> Check:
    checks = [check_of(alternative) for alternative in alternatives if alternative is not NoneType]
    has_null = NoneType in alternatives

    def check_union(value: object) -> None:
        if value is None and has_null:
            return None
        last: MismatchError | None = None
        for check_one in checks:
            try:
                return check_one(value)
            except MismatchError as error:
                last = error
        raise last or MismatchError(value, "null")

    return check_union


def _sequence(kind: type[list[Any] | tuple[Any, ...]], check_one: Check) -> Check:
    def check_all(value: object) -> None:
        if type(value) is not kind:
            raise MismatchError(value, "a list")
        for place, item in enumerate(value):
            try:
                check_one(item)
            except MismatchError as error:
                raise error.inside(f"[{place}]") from None

    return check_all


def _tuple(*checks: Check) -> Check:
    def check_each(value: object) -> None:
        if type(value) is not tuple or len(value) != len(checks):
            raise MismatchError(value, f"a list of {len(checks)}")
        for place, check_one in enumerate(checks):
            try:
                check_one(value[place])
            except MismatchError as error:
                raise error.inside(f"[{place}]") from None

    return check_each


def _keys(checks: Mapping[str, Check]) -> Check:
    def check_known(value: object) -> None:
        if not isinstance(value, dict):
            raise MismatchError(value, "an object")
        for key, check_one in checks.items():
            if key in value:
                try:
                    check_one(value[key])
                except MismatchError as error:
                    raise error.inside(f".{key}") from None

    return check_known


def _mapping(check_key: Check, check_value: Check) -> Check:
    def check_items(value: object) -> None:
        if not isinstance(value, Mapping):
            raise MismatchError(value, "an object")
        for key, item in value.items():
            check_key(key)
            try:
                check_value(item)
            except MismatchError as error:
                raise error.inside(f".{key}") from None

    return check_items


def _fields(kind: Any) -> Check:
    hints = get_type_hints(kind)
    # Most fields have their default value, which is of the right type.
    checks = [(field.name, field.default, check_of(hints[field.name])) for field in fields_of(kind).values()]

    def check_fields(value: object) -> None:
        if type(value) is not kind:
            raise MismatchError(value, f"a {kind.__name__}")
        for name, default, check_one in checks:
            item = getattr(value, name)
            if item is not default:
                try:
                    check_one(item)
                except MismatchError as error:
                    raise error.inside(f".{name}") from None

    return check_fields

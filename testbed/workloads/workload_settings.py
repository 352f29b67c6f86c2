"""Settings of workloads: texts are parsed to typed values, and all mistakes are reported together."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

from testbed.errors import DescriptionError, Problem
from testbed.spec import units
from testbed.spec.units import UnitError

LARGEST_MESSAGE: Final = 255 * 2**20
"""Maximum bytes of a message: `random.randbytes`, which makes the contents of messages, is limited to less than 256 MiB."""


def parse_sizes(value: object) -> tuple[int, ...]:
    """Parse ``1,4,64KiB``, or ``4..1MiB``: the first size, doubled while it is below the last, and the last. A list of sizes
    must not be empty. Raises UnitError."""
    if not isinstance(value, str):
        if value in ([], ()):
            raise UnitError(value, "one or more sizes")
        return tuple(units.parse_size(size) for size in (value if isinstance(value, list | tuple) else [value]))
    sizes: list[int] = []
    for part in value.split(","):
        first, dots, last = part.partition("..")
        size, last_size = units.parse_size(first.strip()), units.parse_size((last or first).strip())
        if dots and size > last_size:
            raise UnitError(part, "sizes that grow, such as '4..1MiB'")
        while size < last_size:
            sizes.append(size)
            size = 2 * size or 1
        sizes.append(last_size)
    return tuple(sizes)


Duration: TypeAlias = Annotated[int, units.parse_duration]
"""Nanoseconds; written with a unit."""


def parse_message_size(value: object) -> int:
    """Parse the size of a message, bytes. Raises UnitError."""
    return _check_message_size(value, units.parse_size(value))


def parse_message_sizes(value: object) -> tuple[int, ...]:
    """Parse sizes of messages, bytes, as `parse_sizes` does. Raises UnitError."""
    return tuple([_check_message_size(value, size) for size in parse_sizes(value)])


def _check_message_size(value: object, size: int) -> int:
    if size > LARGEST_MESSAGE:
        raise UnitError(value, f"at most {units.format_size(LARGEST_MESSAGE)} for a message")
    return size


Size: TypeAlias = Annotated[int, units.parse_size]
"""Bytes."""
Rate: TypeAlias = Annotated[int, units.parse_rate]
"""Bit/s; written with a unit."""
Share: TypeAlias = Annotated[float, units.parse_probability]
"""0 to 1; can be written in percent."""
Sizes: TypeAlias = Annotated[tuple[int, ...], parse_sizes]
"""Bytes: see `parse_sizes`."""

MessageSize: TypeAlias = Annotated[int, parse_message_size]
MessageSizes: TypeAlias = Annotated[tuple[int, ...], parse_message_sizes]
"""Bytes of messages: at most LARGEST_MESSAGE."""

_KINDS: Final = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
_BOOLEANS: Final = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of a workload. type: annotation of its field or parameter. default: MISSING if there is none."""

    name: str
    type: Any
    default: object


def settings_of(form: Any) -> list[Setting]:
    """Return the fields of a workload class, or the keyword-only parameters of a function."""
    if is_dataclass(form):
        hints = get_type_hints(form, include_extras=True)
        return [Setting(entry.name, hints[entry.name], _default(entry)) for entry in fields(form) if entry.init]
    hints = get_type_hints(form, include_extras=True)
    return [
        Setting(entry.name, hints.get(entry.name, str), MISSING if entry.default is entry.empty else entry.default)
        for entry in inspect.signature(form).parameters.values()
        if entry.kind is entry.KEYWORD_ONLY
    ]


def _default(field: Field[Any]) -> object:
    return field.default if field.default_factory is MISSING else field.default_factory()


def parse_settings(form: Any, settings: Mapping[str, object], owner: str) -> dict[str, Any]:
    """Parse settings; return their values by name. form: see `settings_of`. owner: whose settings they are, for error
    messages. Raises DescriptionError with all problems."""
    declared = {setting.name: setting for setting in settings_of(form)}
    problems: list[Problem] = []
    values: dict[str, Any] = {}
    for name, value in settings.items():
        if name not in declared:
            near = get_close_matches(name, declared, 1)
            expected = f"one of the settings {', '.join(declared)}" if declared else "no settings: it has none"
            problems.append(Problem("", f"unknown setting {name!r}", expected, near[0] if near else ""))
            continue
        try:
            values[name] = _parse_value(declared[name].type, value)
        except UnitError as error:
            problems.append(Problem(name, repr(value), error.expected, error.suggestion))
    for name, setting in declared.items():
        if setting.default is MISSING and name not in settings:
            problems.append(Problem(name, "", "a value: it has no default"))
    if problems:
        raise DescriptionError(f"the settings of {owner}", problems)
    return values


def split_settings(texts: tuple[str, ...], option: str = "--set") -> dict[str, object]:
    """Split texts such as ``count=3`` into names and values. option: option of the command line, for error messages. Raises
    DescriptionError."""
    settings: dict[str, object] = {}
    problems = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            problems.append(Problem("", repr(text), "a setting as NAME=VALUE"))
        settings[name.strip().replace("-", "_")] = value.strip()
    if problems:
        raise DescriptionError(option, problems)
    return settings


def _parse_value(kind: Any, value: object) -> object:
    origin = get_origin(kind)
    if origin is Annotated:
        base, parse = get_args(kind)[:2]
        if base in (int, float) and isinstance(value, int | float) and not isinstance(value, bool):
            return _check_number(base, parse, value)
        return parse(value) if callable(parse) else _parse_value(base, value)
    if origin is Literal:
        return _parse_choice(get_args(kind), value)
    if origin in (Union, UnionType):
        options = [option for option in get_args(kind) if option is not NoneType]
        return None if value in (None, "none") else _parse_value(options[0], value)
    if origin is tuple:
        parts = value.split(",") if isinstance(value, str) else value
        if not isinstance(parts, list | tuple):
            raise UnitError(value, "a list, with commas between")
        return tuple(_parse_value(get_args(kind)[0], part) for part in parts)
    if kind is bool:
        return _parse_choice(tuple(_BOOLEANS), value) and _BOOLEANS[str(value).lower()]
    if kind not in _KINDS:
        return value
    return _parse_scalar(kind, value)


def _check_number(base: type, parse: Any, value: float) -> object:
    """Check a number that is already in the base unit of its type. parse: parser of a text of this type."""
    number = _parse_scalar(base, value)
    if parse in (units.parse_size, units.parse_probability, parse_message_size):
        return parse(number)
    if parse in (units.parse_duration, units.parse_rate) and not 0 <= value <= units.MAX_QUANTITY:
        raise UnitError(value, f"0 to {units.MAX_QUANTITY:,}")
    return number


def _parse_choice(allowed: tuple[object, ...], value: object) -> object:
    normalized = str(value).lower() if isinstance(value, bool) else value
    if normalized not in allowed:
        near = get_close_matches(str(value), [str(choice) for choice in allowed], 1)
        raise UnitError(value, f"one of {', '.join(str(choice) for choice in allowed)}", near[0] if near else "")
    return normalized


def _parse_scalar(kind: Callable[[Any], object], value: object) -> object:
    if isinstance(value, bool) or (kind is int and isinstance(value, float)):
        raise UnitError(value, _KINDS[kind])  # type: ignore[index]  # int, float or str
    try:
        number = kind(value)
    except (TypeError, ValueError, OverflowError):
        raise UnitError(value, _KINDS[kind]) from None  # type: ignore[index]
    if isinstance(number, int | float) and not -units.MAX_QUANTITY <= number <= units.MAX_QUANTITY:  # nor is "nan"
        raise UnitError(value, f"{_KINDS[type(number)]} between -{units.MAX_QUANTITY:,} and {units.MAX_QUANTITY:,}")
    return number

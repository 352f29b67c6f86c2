"""Elements: strict, frozen classes of annotated keys. All keys are validated, and all mistakes reported together.

Methods have pydantic's names (`model_copy`, `model_dump`, ...). Pydantic is not used: importing it took 30 % of the
instructions of `testbed up star-100`. A class builds its validators at the first validation: elements that are valid by
construction (`model_construct`) never need them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, Self, dataclass_transform, get_type_hints

from testbed.errors import DescriptionError
from testbed.spec.annotations import InvalidError, Mistake, Validated, Validator, mistake_of, validator

REQUIRED: Final = object()
"""Default of a required key."""


class FieldInfo:
    """A key of an element.

    default: REQUIRED if the key has no default. default_factory: returns a new default. description: for the JSON Schema.
    key: name in TOML, if it differs. late: second validator, called with the validated value and with the valid values of
    the keys declared before this one. schema: additions to the JSON Schema.
    """

    __slots__ = ("default", "default_factory", "description", "key", "late", "schema")

    def __init__(
        self,
        default: Any,
        default_factory: Callable[[], Any] | None,
        description: str,
        key: str,
        late: Callable[[Any, Mapping[str, Any]], Any] | None,
        schema: Mapping[str, Any],
    ) -> None:
        self.default = default
        self.default_factory = default_factory
        self.description = description
        self.key = key
        self.late = late
        self.schema = schema

    @property
    def is_required(self) -> bool:
        return self.default is REQUIRED and self.default_factory is None

    def get_default(self) -> Any:
        """Return the default; from the factory, if there is one."""
        return self.default if self.default_factory is None else self.default_factory()


def Field(  # noqa: N802  # named like pydantic's and dataclasses' functions
    default: Any = REQUIRED,
    *,
    default_factory: Callable[[], Any] | None = None,
    description: str = "",
    key: str = "",
    late: Callable[[Any, Mapping[str, Any]], Any] | None = None,
    schema: Mapping[str, Any] | None = None,
) -> Any:
    """Define a key of an element; see FieldInfo. The return type is Any, as for `dataclasses.field`, so that the key can be
    annotated with the type of its value."""
    return FieldInfo(default, default_factory, description, key, late, schema or {})


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(Field,))
class Element(Validated):
    """A strict, frozen element. Its constructor raises a DescriptionError with all problems of its values."""

    model_fields: ClassVar[Mapping[str, FieldInfo]] = {}
    """The keys by name in Python, those of base classes first."""

    _defaults: ClassVar[dict[str, Any]] = {}
    _validators: ClassVar[Mapping[str, Validator] | None] = None

    def __init_subclass__(cls, *, init: bool = True) -> None:
        """init: not used at run time; False tells type checkers that a base class defines the constructor (PEP 681)."""
        super().__init_subclass__()
        fields: dict[str, FieldInfo] = {}
        for base in reversed(cls.__mro__[1:]):
            if issubclass(base, Element):
                fields |= {name: base.model_fields[name] for name in _annotated(base)}
        for name in _annotated(cls):
            default = cls.__dict__.get(name, REQUIRED)
            fields[name] = default if isinstance(default, FieldInfo) else Field(default)
            if default is not REQUIRED:
                delattr(cls, name)
        cls.model_fields = fields
        cls._defaults = {name: field.default for name, field in fields.items()}
        cls._validators = None

    def __init__(self, **data: object) -> None:
        try:
            values = self._validate_keys(data, True)
        except InvalidError as error:
            from testbed.spec.problems import translate

            path = str(data.get("name", ""))[:63] or type(self).__name__.lower()
            problems = [translate(mistake, "", data) for mistake in error.mistakes]
            raise DescriptionError(path, problems) from None
        self.__dict__.update(values)
        self._check()

    def _check(self) -> None:
        """Check the keys against each other. Raises DescriptionError."""

    @classmethod
    def model_validate(cls, data: Mapping[str, Any]) -> Self:
        """Make an element from a table with the keys' names in TOML or in Python. Raises DescriptionError."""
        return cls(**data)

    @classmethod
    def validated(cls, value: object, by_name: bool) -> Self:
        """Return an element unchanged, or make one from a table. Raises InvalidError with all mistakes, whose locations are
        relative to the element."""
        if isinstance(value, cls):
            return value
        if not isinstance(value, dict):
            raise InvalidError(Mistake((), value, "a table"))
        element = cls._from_values(cls._validate_keys(value, by_name))
        element._check()
        return element

    @classmethod
    def _validate_keys(cls, data: Mapping[str, Any], by_name: bool) -> dict[str, Any]:
        """Return the values by name in Python, with defaults for absent keys. Raises InvalidError with all mistakes."""
        if cls._validators is None:
            annotations = get_type_hints(cls, include_extras=True)
            cls._validators = {name: validator(annotations[name]) for name in cls.model_fields}
        values: dict[str, Any] = {}
        mistakes: list[Mistake] = []
        used: set[str] = set()
        for name, check in cls._validators.items():
            field = cls.model_fields[name]
            key = field.key or name
            if by_name and key not in data:
                key = name
            if key not in data:
                if field.is_required:
                    mistakes.append(Mistake((field.key or name,), data, "", is_missing=True))
                else:
                    values[name] = field.get_default()
                continue
            used.add(key)
            try:
                value = check(data[key], by_name)
                values[name] = field.late(value, values) if field.late else value
            except InvalidError as error:
                mistakes += error.below(key)
            except ValueError as error:
                mistakes += InvalidError(mistake_of(error, data[key])).below(key)
        mistakes += [Mistake((key,), data[key], "", known=keys(cls)) for key in data if key not in used]
        if mistakes:
            raise InvalidError(*mistakes)
        return values

    @classmethod
    def model_construct(cls, **values: Any) -> Self:
        """Make an element from valid values without validation; absent keys get their defaults."""
        complete = cls._defaults | values
        for name, field in cls.model_fields.items():
            if field.default_factory is not None and name not in values:
                complete[name] = field.default_factory()
        return cls._from_values(complete)

    @classmethod
    def _from_values(cls, values: dict[str, Any]) -> Self:
        element = cls.__new__(cls)
        element.__dict__.update(values)
        return element

    def model_copy(self, *, update: Mapping[str, Any] | None = None) -> Self:
        """Copy with other values, without validation."""
        return self._from_values({**self.__dict__, **update} if update else self.__dict__)

    def model_dump(self, *, by_alias: bool = False, exclude_defaults: bool = False) -> dict[str, Any]:
        """Return the values by name in Python, or by name in TOML (by_alias). Nested elements become dictionaries."""
        return {
            (field.key if by_alias and field.key else name): _dump(self.__dict__[name], by_alias, exclude_defaults)
            for name, field in self.model_fields.items()
            if not exclude_defaults or field.is_required or self.__dict__[name] != field.get_default()
        }

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(
            f"{type(self).__name__} is frozen: model_copy(update={{{name!r}: ...}}) makes a changed copy"
        )

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen: {name!r} cannot be deleted")

    def __eq__(self, other: object) -> bool:
        return self.__dict__ == other.__dict__ if type(self) is type(other) else NotImplemented

    def __hash__(self) -> int:
        return hash((type(self), *self.__dict__.values()))

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={self.__dict__[name]!r}" for name in self.model_fields)
        return f"{type(self).__name__}({values})"


def keys(model: type[Element]) -> tuple[str, ...]:
    """Return the valid keys of an element's table in TOML."""
    return tuple(field.key or name for name, field in model.model_fields.items())


def _annotated(cls: type[Element]) -> list[str]:
    """Return the names of the keys that a class annotates, without those of its bases."""
    annotations = cls.__dict__.get("__annotations__", {})  # noqa: RUF063  # importing inspect takes too long
    return [name for name, annotation in annotations.items() if not str(annotation).startswith("ClassVar")]


def _dump(value: Any, by_alias: bool, exclude_defaults: bool) -> Any:
    if isinstance(value, Element):
        return value.model_dump(by_alias=by_alias, exclude_defaults=exclude_defaults)
    if isinstance(value, tuple):
        return tuple(_dump(entry, by_alias, exclude_defaults) for entry in value)
    return dict(value) if isinstance(value, dict) else value

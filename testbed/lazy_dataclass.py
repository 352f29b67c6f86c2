"""Dataclasses with slots whose methods are not compiled before they are needed.

`dataclasses.dataclass` compiles up to seven methods for every class while its module is imported: that was 40 % of the
CPU time of `testbed up star-100 --dry-run` (100 classes) and `testbed status` (36). Most of these classes are never
instantiated there. Here ``__init__`` is compiled when the first instance is made, comparison, hash and repr are closures,
and what `dataclasses.fields`, `replace` and `asdict` read comes from `dataclasses` itself when they ask for it.

For modules that commands import when they start; elsewhere `dataclasses.dataclass` is as good.
"""

from __future__ import annotations

import dataclasses
from _thread import RLock
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, Final, Literal

__all__ = ["dataclass", "fields_of"]

_GENERATED: Final = ("__init__", "__repr__", "__eq__", "__hash__", "__setattr__", "__delattr__")
_BY_DATACLASSES: Final = ("__dataclass_fields__", "__dataclass_params__")
_LOCK: Final = RLock()


def fields_of(cls: type) -> Mapping[str, dataclasses.Field[Any]]:
    """Return the fields of a dataclass of either sort by their names, in order; of another class none."""
    own: Mapping[str, dataclasses.Field[Any]] | None = getattr(cls, "_lazy_fields", None)
    if own is not None:
        return own
    return {field.name: field for field in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else {}


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(
        *,
        slots: Literal[True],  # noqa: ARG001
        frozen: bool = False,
        eq: bool = True,
        kw_only: bool = False,
    ) -> Callable[[type], type]:
        """Make a class a dataclass, as `dataclasses.dataclass` with these arguments. Raises TypeError for a class that
        defines one of the generated methods itself or has pseudo-fields."""
        return lambda original: _lazily_completed(original, frozen, eq, kw_only)


def _lazily_completed(original: type, frozen: bool, eq: bool, kw_only: bool) -> type:
    fields = _fields(original, kw_only)
    namespace = dict(original.__dict__)
    own = [name for name in _GENERATED if namespace.get(name) is not None]
    if own:
        raise TypeError(f"{original.__name__} defines {', '.join(own)}: use dataclasses.dataclass")
    inherited = {slot for base in original.__mro__[1:-1] for slot in base.__dict__.get("__slots__", ())}
    for name in (*fields, "__dict__", "__weakref__"):
        namespace.pop(name, None)
    namespace["__slots__"] = tuple(name for name in fields if name not in inherited)
    namespace["_lazy_fields"] = fields
    namespace["__match_args__"] = tuple(name for name, field in fields.items() if field.init and not field.kw_only)
    for name in _BY_DATACLASSES:
        namespace[name] = _ByDataclasses(name, original, {"frozen": frozen, "eq": eq, "kw_only": kw_only})
    namespace["__repr__"] = _repr_of([name for name, field in fields.items() if field.repr])
    if eq:
        namespace["__eq__"], hash_of = _comparison_of([name for name, field in fields.items() if field.compare])
        namespace["__hash__"] = hash_of if frozen else None

    def first(self: object, *arguments: object, **named: object) -> None:
        cls.__init__ = init = _compiled_init(cls, fields, frozen)  # type: ignore[misc]
        init(self, *arguments, **named)

    def set_field(self: object, name: str, value: object) -> None:
        if type(self) is cls or name in fields:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        object.__setattr__(self, name, value)

    def delete_field(self: object, name: str) -> None:
        if type(self) is cls or name in fields:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        object.__delattr__(self, name)

    namespace["__init__"] = first
    if frozen:
        namespace |= {"__setattr__": set_field, "__delattr__": delete_field}
        namespace |= {"__getstate__": _get_state, "__setstate__": _set_state}
    cls: type = type(original)(original.__name__, original.__bases__, namespace)
    cls.__qualname__ = original.__qualname__
    return cls


def _fields(original: type, kw_only: bool) -> dict[str, dataclasses.Field[Any]]:
    """Return the inherited fields and the class's own."""
    fields: dict[str, dataclasses.Field[Any]] = {}
    for base in reversed(original.__mro__[1:]):
        fields |= fields_of(base)
    own = original.__dict__.get("__annotations__", {})  # noqa: RUF063  # inspect takes long to import
    for name, annotation in own.items():
        form = str(annotation).partition("[")[0]
        if form == "ClassVar":
            continue
        if form in ("InitVar", "KW_ONLY"):
            raise TypeError(f"{original.__name__}.{name} is a pseudo-field: use dataclasses.dataclass")
        default = original.__dict__.get(name, dataclasses.MISSING)
        field = default if isinstance(default, dataclasses.Field) else dataclasses.field(default=default)
        field.name = name
        if field.kw_only is dataclasses.MISSING:
            field.kw_only = kw_only
        fields[name] = field
    return fields


class _ByDataclasses:
    """Attribute that `dataclasses` gives to a dataclass. On the first access it gives it to the class as it was
    written."""

    __slots__ = ("_name", "_original", "_parameters")

    def __init__(self, name: str, original: type, parameters: Mapping[str, bool]) -> None:
        self._name = name
        self._original = original
        self._parameters = parameters

    def __get__(self, instance: object, owner: type) -> Any:
        with _LOCK:
            if self._name not in self._original.__dict__:
                dataclasses.dataclass(self._original, **self._parameters)
        return self._original.__dict__[self._name]


def _compiled_init(cls: type, fields: Mapping[str, dataclasses.Field[Any]], frozen: bool) -> Callable[..., None]:
    parameters: list[str] = []
    named: list[str] = []
    body: list[str] = []
    scope: dict[str, Any] = {"_set": object.__setattr__, "_ABSENT": dataclasses.MISSING}
    for name, field in fields.items():
        value, parameter = name, name
        if field.default_factory is not dataclasses.MISSING:
            scope[f"_make_{name}"] = field.default_factory
            parameter = f"{name}=_ABSENT"
            value = f"_make_{name}() if {name} is _ABSENT else {name}" if field.init else f"_make_{name}()"
        elif field.default is not dataclasses.MISSING:
            scope[f"_default_{name}"] = field.default
            parameter = f"{name}=_default_{name}"
            value = name if field.init else f"_default_{name}"
        elif not field.init:
            continue
        if field.init:
            (named if field.kw_only else parameters).append(parameter)
        body.append(f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    head = ", ".join(["self", *parameters, *(["*", *named] if named else [])])
    exec("\n ".join([f"def __init__({head}):", *(body or ["pass"])]), scope)
    init: Callable[..., None] = scope["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    return init


def _repr_of(names: Iterable[str]) -> Callable[[object], str]:
    @recursive_repr()
    def __repr__(self: object) -> str:  # noqa: N807
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__qualname__}({values})"

    return __repr__


def _comparison_of(names: Sequence[str]) -> tuple[Callable[[object, object], bool], Callable[[object], int]]:
    several = attrgetter(*names, *names[:1]) if names else lambda _: ()  # two names or more: a tuple

    def __eq__(self: object, other: object) -> bool:  # noqa: N807
        return several(self) == several(other) if other.__class__ is self.__class__ else NotImplemented

    def __hash__(self: object) -> int:  # noqa: N807
        return hash(several(self))

    return __eq__, __hash__


def _get_state(self: object) -> list[object]:
    return [getattr(self, name) for name in fields_of(type(self))]


def _set_state(self: object, state: Iterable[object]) -> None:
    for name, value in zip(fields_of(type(self)), state, strict=True):
        object.__setattr__(self, name, value)

"""Properties of communicators for blocking programs: name, info, error handler and attributes. MPI 4.1, sections 7.7, 7.8
and 9.3."""

# ruff: noqa: N802 -- the names are mpi4py's

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, Final, NamedTuple

from protocols.mpi.constants import (
    APPNUM,
    HOST,
    IO,
    KEYVAL_INVALID,
    LASTUSEDCODE,
    PROC_NULL,
    UNDEFINED,
    UNIVERSE_SIZE,
    WTIME_IS_GLOBAL,
)
from protocols.mpi.info import Info
from protocols.mpi.mpi_errors import ERR_ARG, ERR_KEYVAL, Handle, MPIError, last_used_code

CopyAttribute = Callable[[Any, int, Any], Any] | bool | None
"""(communicator, keyval, value) -> the duplicate's value, or NotImplemented to omit the attribute; True: copy the value;
False, None: omit the attribute."""
DeleteAttribute = Callable[[Any, int, Any], object] | None
"""(communicator, keyval, value); called before the attribute is deleted or replaced, and when the communicator is freed."""


class Errhandler(Handle):
    """A predefined error handler. number: 0 for ERRHANDLER_NULL, which a freed handler becomes, too."""

    __slots__ = ("__weakref__", "number")

    __hash__ = None  # type: ignore[assignment]  # mutable: `Free` makes it ERRHANDLER_NULL

    def __init__(self, errhandler: Errhandler | None = None) -> None:
        """errhandler: another handle of the same error handler."""
        if errhandler is not None and not isinstance(errhandler, Errhandler):
            raise TypeError(f"an Errhandler is expected, not {type(errhandler).__name__}")
        self.number: int = 0 if errhandler is None else errhandler.number

    @classmethod
    def from_number(cls, number: int) -> Errhandler:
        """Make the error handler with a number; called by the library."""
        handler = cls()
        handler.number = number
        return handler

    def __bool__(self) -> bool:
        return self.number != 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Errhandler) and self.number == other.number

    def __repr__(self) -> str:
        return f"<Errhandler: {('ERRHANDLER_NULL', 'ERRORS_RETURN', 'ERRORS_ARE_FATAL', 'ERRORS_ABORT')[self.number]}>"

    def Free(self) -> None:
        """Free this handle: it becomes ERRHANDLER_NULL. The predefined handles themselves stay valid, as in mpi4py."""
        if not any(self is constant for constant in (ERRORS_RETURN, ERRORS_ARE_FATAL, ERRORS_ABORT)):
            self.number = 0


ERRHANDLER_NULL: Final = Errhandler()
ERRORS_RETURN: Final = Errhandler.from_number(1)
"""Errors are raised, as MPI.Exception."""
ERRORS_ARE_FATAL: Final = Errhandler.from_number(2)
"""An error ends the program, and with it the run."""
ERRORS_ABORT: Final = Errhandler.from_number(3)
"""Like ERRORS_ARE_FATAL."""


class _KeyvalFunctions(NamedTuple):
    """Functions of a keyval, called when a communicator is duplicated, and when an attribute is deleted."""

    copy: CopyAttribute
    delete: DeleteAttribute


class _Attribute(NamedTuple):
    """An attribute of one communicator. functions: those of its keyval, which are used even after the keyval was
    freed."""

    functions: _KeyvalFunctions
    value: Any


_keyvals: dict[int, _KeyvalFunctions] = {}  # by number, those that are not freed
_next_keyval: Final = count(100).__next__
_FIXED: Final = {
    HOST: PROC_NULL, IO: PROC_NULL, WTIME_IS_GLOBAL: False, APPNUM: UNDEFINED, LASTUSEDCODE: None, UNIVERSE_SIZE: None,
}  # fmt: skip
"""Predefined attributes that cannot be changed, with their defaults."""


class Properties:
    """Properties of one communicator. processor_name: name of this rank's node."""

    __slots__ = ("_attributes", "_fixed", "errhandler", "info", "is_predefined", "name", "processor_name")

    def __init__(self, name: str = "", processor_name: str = "", fixed: dict[int, object] | None = None) -> None:
        """name: name of a predefined communicator. fixed: predefined attributes of this communicator, by keyval."""
        self.name = name
        self.is_predefined: Final = bool(name)
        self.processor_name = processor_name
        self.info = Info.Create()
        self.errhandler = ERRORS_RETURN
        self._fixed: Final = _FIXED | (fixed or {})
        self._attributes: dict[int, _Attribute] = {}

    def get(self, keyval: int) -> Any:
        """Return an attribute's value; None if it was not set. Raises MPIError (ERR_KEYVAL) for an invalid keyval, as do
        `set` and `delete`. A freed keyval is valid for the attributes that have it, until they are deleted."""
        if keyval == LASTUSEDCODE:
            return last_used_code()
        if keyval in self._fixed:
            return self._fixed[keyval]
        attribute = self._attributes.get(keyval)
        if attribute is None:
            _functions_of(keyval)
            return None
        return attribute.value

    def set(self, comm: object, keyval: int, value: Any) -> None:
        """Set an attribute; the former value is deleted first."""
        self._check_changeable(keyval)
        functions = _functions_of(keyval)
        self._delete_value(comm, keyval)
        self._attributes[keyval] = _Attribute(functions, value)

    def delete(self, comm: object, keyval: int) -> None:
        """Delete an attribute, if it is set."""
        self._check_changeable(keyval)
        if keyval not in self._attributes:
            _functions_of(keyval)
        self._delete_value(comm, keyval)

    def copy_to(self, comm: object, copy: Properties) -> None:
        """Copy error handler, info, and the attributes whose keyval allows copying to the properties of a duplicate."""
        copy.errhandler = self.errhandler
        copy.info = self.info.Dup()
        for keyval, (functions, value) in self._attributes.items():
            if not functions.copy:
                continue
            new_value = functions.copy(comm, keyval, value) if callable(functions.copy) else value
            if new_value is not NotImplemented:
                copy._attributes[keyval] = _Attribute(functions, new_value)

    def free(self, comm: object) -> None:
        """Delete all attributes."""
        for keyval in list(self._attributes):
            self._delete_value(comm, keyval)

    def _check_changeable(self, keyval: int) -> None:
        if keyval in self._fixed:
            raise MPIError(ERR_KEYVAL, f"the predefined attribute {keyval} cannot be changed")

    def _delete_value(self, comm: object, keyval: int) -> None:
        attribute = self._attributes.get(keyval)
        if attribute is not None:
            if attribute.functions.delete is not None:
                attribute.functions.delete(comm, keyval, attribute.value)
            del self._attributes[keyval]


def create_keyval(copy: CopyAttribute, delete: DeleteAttribute) -> int:
    """Return a new keyval."""
    keyval = _next_keyval()
    _keyvals[keyval] = _KeyvalFunctions(copy, delete)
    return keyval


def free_keyval(keyval: int) -> int:
    """Free a keyval: no further attribute can have it; those that have it keep their values. Returns KEYVAL_INVALID."""
    if keyval not in _keyvals:
        raise MPIError(ERR_KEYVAL if keyval == KEYVAL_INVALID else ERR_ARG, _invalid(keyval))
    del _keyvals[keyval]
    return KEYVAL_INVALID


def _functions_of(keyval: int) -> _KeyvalFunctions:
    functions = _keyvals.get(keyval)
    if functions is None:
        raise MPIError(ERR_KEYVAL, _invalid(keyval))
    return functions


def _invalid(keyval: int) -> str:
    return f"invalid keyval {keyval}: not returned by Create_keyval, freed, or predefined"

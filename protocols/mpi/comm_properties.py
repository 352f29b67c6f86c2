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
    WTIME_IS_GLOBAL,
)
from protocols.mpi.info import Info
from protocols.mpi.mpi_errors import ERR_ARG, ERR_KEYVAL, Handle, MPIError, last_used_code

CopyAttribute = Callable[[Any, int, Any], Any] | bool | None
"""(communicator, key, value) -> the duplicate's value, or NotImplemented to omit the attribute; True: copy the value;
False, None: omit the attribute."""
DeleteAttribute = Callable[[Any, int, Any], object] | None


class Errhandler(Handle):
    """A predefined error handler. number: 0 for ERRHANDLER_NULL, which a freed handler becomes, too."""

    __slots__ = ("__weakref__", "number")

    __hash__ = None  # type: ignore[assignment]  # it changes

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
        """Free this handle."""
        self.number = 0


ERRHANDLER_NULL: Final = Errhandler()
ERRORS_RETURN: Final = Errhandler.from_number(1)
"""Errors are raised, as MPI.Exception."""
ERRORS_ARE_FATAL: Final = Errhandler.from_number(2)
"""An error ends the program, and with it the run."""
ERRORS_ABORT: Final = Errhandler.from_number(3)
"""Like ERRORS_ARE_FATAL."""


class _Key(NamedTuple):
    copy: CopyAttribute
    delete: DeleteAttribute


_keys: dict[int, _Key] = {}
_next_key: Final = count(100).__next__
_FIXED: Final = {HOST: PROC_NULL, IO: PROC_NULL, WTIME_IS_GLOBAL: False, APPNUM: UNDEFINED, LASTUSEDCODE: None}
"""Predefined attributes with equal values for all communicators."""


class Properties:
    """Properties of one communicator. processor: name of this rank's node."""

    __slots__ = ("_attributes", "_fixed", "errhandler", "info", "is_predefined", "name", "processor")

    def __init__(self, name: str = "", processor: str = "", fixed: dict[int, object] | None = None) -> None:
        """name: name of a predefined communicator. fixed: predefined attributes of this communicator, by key."""
        self.name = name
        self.is_predefined: Final = bool(name)
        self.processor = processor
        self.info = Info.Create()
        self.errhandler = ERRORS_RETURN
        self._fixed: Final = _FIXED | (fixed or {})
        self._attributes: dict[int, Any] = {}

    def get(self, key: int) -> Any:
        """Return an attribute's value; None if it was not set. Raises MPIError (ERR_KEYVAL) for an unknown key, as do the
        other methods."""
        if key == LASTUSEDCODE:
            return last_used_code()
        return self._fixed[key] if key in self._fixed else self._attributes.get(_check_key(key))

    def set(self, comm: object, key: int, value: Any) -> None:
        """Set an attribute; the former value is deleted first."""
        if key in self._fixed:
            raise MPIError(ERR_KEYVAL, f"the predefined attribute {key} cannot be changed")
        if _check_key(key) in self._attributes:
            self.delete(comm, key)
        self._attributes[key] = value

    def delete(self, comm: object, key: int) -> None:
        delete = _keys[_check_key(key)].delete if key not in self._fixed else None
        if key in self._attributes:
            if delete is not None:
                delete(comm, key, self._attributes[key])
            del self._attributes[key]

    def copy_to(self, comm: object, copy: Properties) -> None:
        """Copy error handler, info, and the attributes with a copy function to the properties of a duplicate."""
        copy.errhandler = self.errhandler
        copy.info = self.info.Dup()
        for key, value in self._attributes.items():
            copy_function = _keys[key].copy
            new_value = (
                copy_function(comm, key, value)
                if callable(copy_function)
                else value
                if copy_function
                else NotImplemented
            )
            if new_value is not NotImplemented:
                copy._attributes[key] = new_value

    def free(self, comm: object) -> None:
        """Delete all attributes."""
        for key in list(self._attributes):
            self.delete(comm, key)


def create_keyval(copy: CopyAttribute, delete: DeleteAttribute) -> int:
    """Return a new attribute key."""
    key = _next_key()
    _keys[key] = _Key(copy, delete)
    return key


def free_keyval(key: int) -> int:
    """Free an attribute key; attributes that have it keep their values. Returns KEYVAL_INVALID."""
    if key not in _keys:
        raise MPIError(ERR_KEYVAL if key == KEYVAL_INVALID else ERR_ARG, f"no attribute has the key {key}")
    return KEYVAL_INVALID


def _check_key(key: int) -> int:
    if key not in _keys:
        raise MPIError(ERR_KEYVAL, f"no attribute has the key {key}")
    return key

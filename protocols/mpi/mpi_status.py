"""MPI's status of a receive."""

# ruff: noqa: N802 -- the names are mpi4py's

from __future__ import annotations

from typing import Any, Final

from protocols.mpi.constants import ANY_SOURCE, ANY_TAG, UNDEFINED
from protocols.mpi.datatypes import BYTE, Datatype
from protocols.mpi.mpi_errors import CANCELLED, ERR_TYPE, SUCCESS, Envelope, Handle, MPIError, check_type

_FIELDS: Final = ("cancelled", "count", "error", "source", "tag")


class Status(Handle):
    """A status, filled by the call to which it is passed. count: bytes received. error: an error class. cancelled: whether
    the transfer was cancelled."""

    __slots__ = ("__weakref__", "cancelled", "count", "error", "source", "tag")

    def __init__(self, status: Status | None = None) -> None:
        """status: a status to copy."""
        self.source: int = ANY_SOURCE
        self.tag: int = ANY_TAG
        self.count: int = 0
        self.error: int = SUCCESS
        self.cancelled: bool = False
        if status is not None:
            if not isinstance(status, Status):
                raise TypeError(f"a Status is expected, not {type(status).__name__}")
            self.fill(Envelope(status.source, status.tag, status.count), status.error)
            self.cancelled = status.cancelled

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Status) and all(getattr(self, name) == getattr(other, name) for name in _FIELDS)

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore_status, tuple(getattr(self, name) for name in _FIELDS)

    def __repr__(self) -> str:
        return f"<Status: source {self.source}, tag {self.tag}, {self.count} bytes, error {self.error}>"

    def fill(self, envelope: Envelope | None, error: int = SUCCESS) -> None:
        """Record a transfer's outcome; called by the library. envelope: None for a send, or if there is no transfer."""
        self.source, self.tag, self.count = envelope or (ANY_SOURCE, ANY_TAG, 0)
        self.error = error
        self.cancelled = envelope is CANCELLED

    def Get_source(self) -> int:
        return self.source

    def Get_tag(self) -> int:
        return self.tag

    def Get_error(self) -> int:
        return self.error

    def Get_count(self, datatype: Datatype = BYTE) -> int:
        """Return the number of items received; UNDEFINED for a fraction of an item. Raises MPIError (ERR_TYPE) for
        DATATYPE_NULL, as do the other calls with a datatype."""
        check_type(datatype, Datatype)
        if not datatype:
            raise MPIError(ERR_TYPE, "DATATYPE_NULL has no items")
        if not datatype.size:
            return 0 if not self.count else UNDEFINED
        items, remainder = divmod(self.count, datatype.size)
        return items if not remainder else UNDEFINED

    def Get_elements(self, datatype: Datatype) -> int:
        """Return the number of basic items received; UNDEFINED for a derived datatype, whose basic items are not counted."""
        check_type(datatype, Datatype)
        return self.Get_count(datatype) if datatype.typecode or not datatype else UNDEFINED

    def Is_cancelled(self) -> bool:
        return self.cancelled

    def Set_source(self, source: int) -> None:
        self.source = source

    def Set_tag(self, tag: int) -> None:
        self.tag = tag

    def Set_error(self, error: int) -> None:
        self.error = error

    def Set_elements(self, datatype: Datatype, count: int) -> None:
        """Set the number of bytes received to that of `count` items."""
        check_type(datatype, Datatype)
        if not datatype:
            raise MPIError(ERR_TYPE, "DATATYPE_NULL has no items")
        self.count = count * datatype.size

    def Set_cancelled(self, flag: bool) -> None:
        self.cancelled = flag


def _restore_status(*fields: Any) -> Status:
    """Make a status from the values of _FIELDS; unpickling calls it."""
    status = Status()
    for name, value in zip(_FIELDS, fields, strict=True):
        setattr(status, name, value)
    return status

"""What a receive has got, as MPI tells it."""

# ruff: noqa: N802 -- the names are mpi4py's

from __future__ import annotations

from protocols.mpi.constants import ANY_SOURCE, ANY_TAG, UNDEFINED
from protocols.mpi.datatypes import BYTE, Datatype
from protocols.mpi.errors import CANCELLED, SUCCESS, Envelope


class Status:
    """Filled by what it is given to. count: bytes. error: an error class. cancelled: it was, and nothing has come."""

    __slots__ = ("cancelled", "count", "error", "source", "tag")

    def __init__(self) -> None:
        self.source = ANY_SOURCE
        self.tag = ANY_TAG
        self.count = 0
        self.error = SUCCESS
        self.cancelled = False

    def __repr__(self) -> str:
        return f"<Status: source {self.source}, tag {self.tag}, {self.count} bytes, error {self.error}>"

    def fill(self, envelope: Envelope | None, error: int = SUCCESS) -> None:
        """For the library: a transfer's outcome. None: there is nothing to say, as of a send."""
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
        """How many items of the datatype have come; UNDEFINED where they are not whole."""
        if not datatype.size:
            return 0 if not self.count else UNDEFINED
        whole, rest = divmod(self.count, datatype.size)
        return whole if not rest else UNDEFINED

    def Is_cancelled(self) -> bool:
        return self.cancelled

"""mpi4py's calls for the properties of communicators: name, info, error handler, attributes."""

# ruff: noqa: N802 -- the names are mpi4py's

from __future__ import annotations

from typing import Any

from protocols.mpi.blocking_transfers import Transfers
from protocols.mpi.comm_properties import (
    CopyAttribute,
    DeleteAttribute,
    Errhandler,
    Properties,
    create_keyval,
    free_keyval,
)
from protocols.mpi.info import Info
from protocols.mpi.mpi_errors import ERR_ARG, ERR_COMM, MPIError, check_type
from protocols.mpi.point_to_point import COMM_NULL_ERROR


class PropertyCalls(Transfers):
    """Calls for a communicator's properties."""

    __slots__ = ("properties",)

    properties: Properties

    def handle_error(self, error: MPIError) -> None:
        """Call the communicator's error handler: unless that is ERRORS_RETURN, the error ends the program (SystemExit)."""
        if self.properties.errhandler.number > 1:
            raise SystemExit(
                f"rank {self.wrapped.rank}: {error}; errors end the program, as set by Set_errhandler"
            ) from error

    def _check(self) -> None:
        if not self.wrapped.size:
            raise MPIError(ERR_COMM, COMM_NULL_ERROR)

    def Get_name(self) -> str:
        """Return the communicator's name, or "MPI_COMM_NULL"."""
        return self.properties.name if self.wrapped.size else "MPI_COMM_NULL"

    def Set_name(self, name: str) -> None:
        self._check()
        self.properties.name = name

    name = property(Get_name, Set_name)

    def Get_info(self) -> Info:
        """Return a copy of the communicator's info."""
        self._check()
        return self.properties.info.Dup()

    def Set_info(self, info: Info) -> None:
        check_type(info, Info)
        self._check()
        self.properties.info = info.Dup()

    info = property(Get_info, Set_info)

    def Get_errhandler(self) -> Errhandler:
        self._check()
        return Errhandler(self.properties.errhandler)

    def Set_errhandler(self, errhandler: Errhandler) -> None:
        """Set the error handler; see `comm_properties`. Raises MPIError (ERR_ARG) for ERRHANDLER_NULL."""
        self._check()
        if not errhandler:
            raise MPIError(ERR_ARG, "ERRHANDLER_NULL cannot handle errors")
        self.properties.errhandler = Errhandler(errhandler)

    def Call_errhandler(self, errorcode: int) -> None:
        """Call the error handler with an error code; ERRORS_RETURN does nothing."""
        self._check()
        self.handle_error(MPIError(errorcode))

    @classmethod
    def Create_keyval(
        cls,
        copy_fn: CopyAttribute = None,
        delete_fn: DeleteAttribute = None,
        nopython: bool = False,  # noqa: ARG003
    ) -> int:
        """Create a keyval. copy_fn, delete_fn: see `comm_properties`. nopython: ignored; for mpi4py's signature."""
        return create_keyval(copy_fn, delete_fn)

    @classmethod
    def Free_keyval(cls, keyval: int) -> int:
        """Free a keyval; returns KEYVAL_INVALID. Attributes with this keyval keep their values until they are deleted.
        Raises MPIError: ERR_KEYVAL for KEYVAL_INVALID, ERR_ARG for another invalid keyval."""
        return free_keyval(keyval)

    def Get_attr(self, keyval: int) -> Any:
        """Return the value of an attribute; None if it was not set."""
        self._check()
        return self.properties.get(keyval)

    def Set_attr(self, keyval: int, attrval: Any) -> None:
        self._check()
        self.properties.set(self, keyval, attrval)

    def Delete_attr(self, keyval: int) -> None:
        self._check()
        self.properties.delete(self, keyval)

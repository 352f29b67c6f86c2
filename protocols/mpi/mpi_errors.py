"""MPI's error classes, and the exception that carries one, with mpi4py's names."""

# ruff: noqa: N802 -- the names are mpi4py's

from __future__ import annotations

from typing import Final, NamedTuple

from protocols.mpi.constants import ANY_SOURCE, ANY_TAG, PROC_NULL

# The numbers are MPICH's; the standard defines only the names.
SUCCESS: Final = 0
ERR_BUFFER: Final = 1
ERR_COUNT: Final = 2
ERR_TYPE: Final = 3
ERR_TAG: Final = 4
ERR_COMM: Final = 5
ERR_RANK: Final = 6
ERR_ROOT: Final = 7
ERR_OP: Final = 9
ERR_DIMS: Final = 11
ERR_ARG: Final = 12
ERR_TRUNCATE: Final = 14
ERR_OTHER: Final = 15
ERR_IN_STATUS: Final = 17
ERR_REQUEST: Final = 19
ERR_NO_MEM: Final = 34
ERR_PROC_FAILED: Final = 101
"""The peer has restarted or does not answer. MPI 4 has no such class; this is the one of its fault-tolerance proposal
(ULFM), which mpi4py has, too."""


class Envelope(NamedTuple):
    """Description of a message. source: its sender's rank. length: bytes."""

    source: int
    tag: int
    length: int


CANCELLED: Final = Envelope(ANY_SOURCE, ANY_TAG, 0)
"""Result of a cancelled transfer, identified by identity, not by equality."""


NOBODY: Final = Envelope(PROC_NULL, ANY_TAG, 0)
"""Result of a receive from PROC_NULL."""


class MPIError(RuntimeError):
    """mpi4py's MPI.Exception: an invalid call, or a failed transfer.

    envelope: of the message, if a receive has failed although one arrived; its length is what the buffer holds of it.
    """

    def __init__(self, error_class: int, message: str, envelope: Envelope | None = None) -> None:
        super().__init__(message)
        self.error_class = error_class
        self.envelope = envelope

    @property
    def error_code(self) -> int:
        return self.error_class

    @property
    def error_string(self) -> str:
        return str(self)

    def Get_error_class(self) -> int:
        return self.error_class

    def Get_error_code(self) -> int:
        return self.error_class

    def Get_error_string(self) -> str:
        return str(self)

"""MPI's special constants. The values are ours: the standard does not define them."""

from typing import Final

ANY_SOURCE: Final = -1
ANY_TAG: Final = -1
PROC_NULL: Final = -2
"""The null process: a transfer with it completes at once and moves nothing."""

UNDEFINED: Final = -32766
"""A count that is no whole number of items, or the index of a request where there is none."""

COMM_NULL: Final = None
"""Result of `Comm.Split` for a rank without a communicator."""


class InPlace:
    """The type of IN_PLACE."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "MPI.IN_PLACE"


IN_PLACE: Final = InPlace()
"""In place of a buffer of a collective call: the call's other buffer holds the data already."""

BOTTOM: Final = None
"""A buffer without bytes."""

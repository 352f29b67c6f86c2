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

ROOT: Final = -3
BSEND_OVERHEAD: Final = 1024
"""Bytes that a program adds to each message's for the size of its own buffer; a message counts for at least as many."""

COMM_TYPE_SHARED: Final = 1
CART: Final = 1
"""A communicator's topology; UNDEFINED: it has none."""

ORDER_C: Final = 0
ORDER_FORTRAN: Final = 1
ORDER_F: Final = ORDER_FORTRAN
"""Order of an array's elements in memory: the last index is the fastest in C, the first one in Fortran."""

MAX_PROCESSOR_NAME: Final = 256
MAX_ERROR_STRING: Final = 512
MAX_OBJECT_NAME: Final = 128
MAX_INFO_KEY: Final = 255
MAX_INFO_VAL: Final = 1024
MAX_LIBRARY_VERSION_STRING: Final = 128
MAX_DATAREP_STRING: Final = 128
MAX_PORT_NAME: Final = 256

VERSION: Final = 4
SUBVERSION: Final = 1

KEYVAL_INVALID: Final = 0
TAG_UB: Final = 1
HOST: Final = 2
IO: Final = 3
WTIME_IS_GLOBAL: Final = 4
UNIVERSE_SIZE: Final = 5
LASTUSEDCODE: Final = 6
APPNUM: Final = 7
"""Keys of the attributes that every communicator has."""

"""MPI's special constants. The standard does not define the values; these are this library's own."""

from typing import Final

ANY_SOURCE: Final = -1
ANY_TAG: Final = -1
PROC_NULL: Final = -2
"""The null process: a transfer with it completes at once and transfers no data."""

UNDEFINED: Final = -32766
"""Returned for a count that is not a whole number of items, and as the index if no request is active."""

COMM_NULL: Final = None
"""Result of `Comm.Split` and similar calls for a rank that is not in the new communicator."""


class InPlace:
    """The type of IN_PLACE."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "MPI.IN_PLACE"


IN_PLACE: Final = InPlace()
"""Replaces one buffer of a collective call: input and output are in the other buffer."""

BOTTOM: Final = None
"""An empty buffer. Absolute addresses, for which C programs use it, are not supported."""

ROOT: Final = -3
"""The root of a call on an intercommunicator, which is not supported."""
BSEND_OVERHEAD: Final = 1024
"""Bytes per message that a program adds to the size of an attached buffer. A message occupies at least this many."""

COMM_TYPE_SHARED: Final = 1
COMM_TYPE_HW_GUIDED: Final = 2
COMM_TYPE_HW_UNGUIDED: Final = 3
COMM_TYPE_RESOURCE_GUIDED: Final = 4
CART: Final = 1
GRAPH: Final = 2
DIST_GRAPH: Final = 3
"""Kinds of topologies. A communicator without a topology has UNDEFINED."""

UNWEIGHTED: Final = None
"""The edges of a graph have no weights."""
WEIGHTS_EMPTY: Final = ()
"""The edges of a graph have weights, and a rank has no edges."""

ORDER_C: Final = 0
ORDER_FORTRAN: Final = 1
ORDER_F: Final = ORDER_FORTRAN
"""Memory order of an array's elements: the last index varies fastest in C, the first in Fortran."""

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
"""Keys of the predefined attributes of communicators."""

"""MPI's numbers that stand for something else than themselves. The values are ours: the standard leaves them open."""

from typing import Final

ANY_SOURCE: Final = -1
ANY_TAG: Final = -1
PROC_NULL: Final = -2
"""Nobody: a transfer with it is done at once and moves nothing."""

UNDEFINED: Final = -32766
"""A count that is not whole, or the index of a request where there is none."""

COMM_NULL: Final = None
"""What `Comm.Split` gives to whom it gives no communicator."""

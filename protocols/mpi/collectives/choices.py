"""Choice of a collective call's algorithm, unless the program names one: by message size and number of ranks, as in MPICH.

The rules are those of Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", 2005; the
thresholds are the defaults of MPICH's parameters. All ranks must choose the same algorithm, so the choice depends only on
arguments that MPI requires to be equal at all ranks.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Mapping
from typing import Final

from protocols.mpi.mpi_errors import ERR_ARG, MPIError

NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "Bcast": ("binomial", "scatter_allgather"),
    "Allgather": ("doubling", "bruck", "ring"),
    "Alltoall": ("bruck", "scattered", "pairwise"),
    "Reduce": ("binomial", "reduce_scatter_gather"),
    "Allreduce": ("doubling", "reduce_scatter_allgather"),
}
"""Names of algorithms, by call; those of MPICH's parameters where it has them."""

_SHORT_BCAST: Final = 12_288  # bytes, as all thresholds but _FEW_*
_FEW_BCAST: Final = 8  # ranks
_SHORT_REDUCE: Final = 2_048
_SHORT_ALLGATHER: Final = 81_920
_LONG_ALLGATHER: Final = 524_288
_SHORT_ALLTOALL: Final = 256
_MEDIUM_ALLTOALL: Final = 32_768
_FEW_ALLTOALL: Final = 8  # ranks


class Algorithms(UserDict[str, str]):
    """Names of the algorithms that a program has chosen, by call: ``comm.algorithms["Bcast"] = "scatter_allgather"``. An
    assignment raises MPIError (ERR_ARG) for an unknown call or name."""

    def __setitem__(self, call: str, name: str) -> None:
        if name not in NAMES.get(call, ()):
            valid = "; ".join(f"{call}: {', '.join(names)}" for call, names in NAMES.items())
            raise MPIError(ERR_ARG, f"{call} has no algorithm {name!r}. Algorithms by call: {valid}")
        super().__setitem__(call, name)


def bcast(size: int, length: int) -> str:
    """Choose the algorithm of Bcast. size: number of ranks, in all of these functions. length: bytes of the message."""
    return "binomial" if length < _SHORT_BCAST or size < _FEW_BCAST else "scatter_allgather"


def allgather(size: int, length: int) -> str:
    """Choose the algorithm of Allgather. length: bytes of all blocks."""
    if length < _LONG_ALLGATHER and not size & size - 1:
        return "doubling"
    return "bruck" if length < _SHORT_ALLGATHER else "ring"


def alltoall(size: int, length: int) -> str:
    """Choose the algorithm of Alltoall. length: bytes of one block."""
    if length <= _SHORT_ALLTOALL and size >= _FEW_ALLTOALL:
        return "bruck"
    return "scattered" if length <= _MEDIUM_ALLTOALL else "pairwise"


def reduce(size: int, length: int, commutes: bool, items: int) -> str:
    """Choose the algorithm of Reduce. length: bytes of the message. items: number of its items."""
    return "binomial" if _is_undivided(size, length, commutes, items) else "reduce_scatter_gather"


def allreduce(size: int, length: int, commutes: bool, items: int) -> str:
    """Choose the algorithm of Allreduce. length: bytes of the message. items: number of its items."""
    return "doubling" if _is_undivided(size, length, commutes, items) else "reduce_scatter_allgather"


def _is_undivided(size: int, length: int, commutes: bool, items: int) -> bool:
    """Whether each rank reduces whole messages, instead of one part of each."""
    return length <= _SHORT_REDUCE or not commutes or items < 1 << (size.bit_length() - 1)

"""Choice of the algorithm of a collective call by message size and number of ranks, as in MPICH (Thakur, Rabenseifner,
Gropp, 2005; the thresholds are the defaults of MPICH's parameters), unless the program names an algorithm.

All ranks must make the same choice, so it depends only on arguments that MPI requires to be equal at all ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from protocols.mpi.mpi_errors import ERR_ARG, MPIError

NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "Bcast": ("binomial", "parts"),
    "Allgather": ("doubling", "bruck", "ring"),
    "Alltoall": ("bruck", "spread", "pairwise"),
    "Reduce": ("binomial", "parts"),
    "Allreduce": ("doubling", "parts"),
}
"""Names of algorithms, by call. "parts" scatters the data and gathers it at the other ranks."""

_SHORT_BCAST: Final = 12_288  # bytes, as all but _FEW_*
_FEW_BCAST: Final = 8  # ranks
_SHORT_REDUCE: Final = 2_048
_SHORT_ALLGATHER: Final = 81_920
_LONG_ALLGATHER: Final = 524_288
_SHORT_ALLTOALL: Final = 256
_MEDIUM_ALLTOALL: Final = 32_768
_FEW_ALLTOALL: Final = 8  # ranks


class Algorithms(dict[str, str]):
    """Names of the algorithms that a program chooses, by call: ``comm.algorithms["Bcast"] = "parts"``. Raises MPIError
    (ERR_ARG) for an unknown name."""

    def __setitem__(self, call: str, name: str) -> None:
        if name not in NAMES.get(call, ()):
            known = "; ".join(f"{call}: {', '.join(names)}" for call, names in NAMES.items())
            raise MPIError(ERR_ARG, f"{call} has no algorithm {name!r}. Known are {known}")
        super().__setitem__(call, name)


def bcast(size: int, length: int) -> str:
    """Choose the algorithm of Bcast. size: ranks, in all of these functions. length: bytes of the message."""
    return "binomial" if length < _SHORT_BCAST or size < _FEW_BCAST else "parts"


def allgather(size: int, length: int) -> str:
    """Choose the algorithm of Allgather. length: bytes of all blocks."""
    if length < _LONG_ALLGATHER and not size & size - 1:
        return "doubling"
    return "bruck" if length < _SHORT_ALLGATHER else "ring"


def alltoall(size: int, length: int) -> str:
    """Choose the algorithm of Alltoall. length: bytes of one block."""
    if length <= _SHORT_ALLTOALL and size >= _FEW_ALLTOALL:
        return "bruck"
    return "spread" if length <= _MEDIUM_ALLTOALL else "pairwise"


def reduce(size: int, length: int, commutes: bool, items: int) -> str:
    """Choose the algorithm of Reduce, and of Allreduce, for which "binomial" means "doubling". length, items: length and
    items of the message."""
    is_undivided = length <= _SHORT_REDUCE or not commutes or items < 1 << (size.bit_length() - 1)
    return "binomial" if is_undivided else "parts"

"""Cartesian topologies: ranks as points of a grid. MPI 4.1, section 8.5."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isqrt, prod
from operator import index
from typing import NamedTuple

from protocols.mpi.collectives.neighbourhoods import Neighbourhood
from protocols.mpi.constants import PROC_NULL
from protocols.mpi.mpi_errors import ERR_ARG, ERR_DIMS, ERR_RANK, ArgumentValueError, MPIError


class Grid(NamedTuple):
    """A grid in row-major order. dims: its extents. periods: whether each dimension is periodic."""

    dims: tuple[int, ...]
    periods: tuple[bool, ...]

    @property
    def size(self) -> int:
        return prod(self.dims)

    def coordinates(self, rank: int) -> list[int]:
        """Return the coordinates of a rank. Raises MPIError (ERR_RANK) for a rank outside of the grid."""
        if not 0 <= rank < self.size:
            raise MPIError(ERR_RANK, f"rank must be 0 to {self.size - 1}, got {rank}")
        point = []
        for extent in reversed(self.dims):
            rank, coordinate = divmod(rank, extent)
            point.append(coordinate)
        return point[::-1]

    def rank(self, point: Sequence[int]) -> int:
        """Return the rank of a point. Raises MPIError: ERR_DIMS for a wrong number of coordinates, ERR_ARG for a coordinate
        outside of a dimension that is not periodic."""
        if len(point) != len(self.dims):
            raise ArgumentValueError(ERR_DIMS, f"a point must have {len(self.dims)} coordinates, got {len(point)}")
        rank = 0
        for coordinate, extent, is_periodic in zip(point, self.dims, self.periods, strict=True):
            if not is_periodic and not 0 <= coordinate < extent:
                raise MPIError(ERR_ARG, f"point {list(point)} lies outside the grid of {list(self.dims)}")
            rank = rank * extent + coordinate % extent
        return rank

    def shift(self, rank: int, direction: int, distance: int) -> tuple[int, int]:
        """Return the source and destination ranks of a shift by `distance` points along dimension `direction`; PROC_NULL
        beyond the end of a dimension that is not periodic. Raises MPIError: ERR_DIMS for an invalid dimension."""
        if not self.dims:
            raise MPIError(ERR_DIMS, "a grid without dimensions has no direction of a shift")
        if not 0 <= direction < len(self.dims):
            raise MPIError(ERR_DIMS, f"direction must be 0 to {len(self.dims) - 1}, got {direction}")
        point = self.coordinates(rank)
        ranks = []
        for step in (-distance, distance):
            shifted = [*point]
            shifted[direction] += step
            is_inside = self.periods[direction] or 0 <= shifted[direction] < self.dims[direction]
            ranks.append(self.rank(shifted) if is_inside else PROC_NULL)
        return ranks[0], ranks[1]

    def neighbourhood(self, rank: int) -> Neighbourhood:
        """Return the edges of a rank: to the lower and the upper neighbour in each dimension. MPI 4.1, section 8.6: a block
        sent to the lower neighbour arrives as the block from the receiver's upper neighbour, also if both are one rank."""
        neighbours = [neighbour for dimension in range(len(self.dims)) for neighbour in self.shift(rank, dimension, 1)]
        return Neighbourhood(neighbours, neighbours, [edge ^ 1 for edge in range(len(neighbours))])


def make_grid(dims: Sequence[int], periods: Sequence[bool] | bool | None, size: int) -> Grid:
    """Make a grid of at most `size` points. periods: whether dimensions are periodic, for all or for each; None: none is.
    Raises MPIError: ERR_DIMS for invalid dimensions, ERR_ARG for too many points."""
    if periods is None or isinstance(periods, bool):
        periods = [bool(periods)] * len(dims)
    extents = [index(extent) for extent in dims]
    if len(periods) != len(extents):
        raise ArgumentValueError(ERR_DIMS, f"{len(periods)} periods for {len(extents)} dims")
    if any(extent < 1 for extent in extents):
        raise MPIError(ERR_DIMS, f"dims must be 1 or more, got {extents}")
    grid = Grid(tuple(extents), tuple(map(bool, periods)))
    if grid.size > size:
        raise MPIError(
            ERR_ARG, f"the grid must have at most the communicator's {size} points, got {grid.size} in {extents}"
        )
    return grid


def compute_dims(nodes: int, dims: int | Sequence[int]) -> list[int]:
    """Return extents of a grid whose product is `nodes`. dims: the number of dimensions, or their extents, with 0 for each
    extent that is to be computed. Computed extents are as close to each other as possible, and do not increase. Raises
    MPIError (ERR_DIMS) if no such extents exist."""
    if isinstance(dims, Iterable):
        extents = [index(extent) for extent in dims]
    elif dims < 0:
        raise MPIError(ERR_DIMS, f"the number of dimensions must be 0 or more, got {dims}")
    else:
        extents = [0] * index(dims)
    fixed = prod(extent for extent in extents if extent)
    free = [dimension for dimension, extent in enumerate(extents) if not extent]
    if nodes < 1 or any(extent < 0 for extent in extents) or nodes % fixed or (not free and nodes != fixed):
        raise MPIError(ERR_DIMS, f"{nodes} nodes cannot be divided into {extents}")
    for dimension, extent in zip(free, _balanced_factors(nodes // fixed, len(free)), strict=True):
        extents[dimension] = extent
    return extents


def _balanced_factors(number: int, factor_count: int, max_factor: int | None = None) -> list[int]:
    """Factorize a number into `factor_count` factors that do not increase, with the least possible first factor. max_factor:
    limit of the first factor. Returns an empty list if there are no such factors."""
    if not factor_count:
        return []
    max_factor = number if max_factor is None else max_factor
    if factor_count == 1:
        return [number] if number <= max_factor else []
    for first in _divisors(number):
        if first <= max_factor and first**factor_count >= number:
            rest = _balanced_factors(number // first, factor_count - 1, first)
            if rest:
                return [first, *rest]
    return []


def _divisors(number: int) -> list[int]:
    """Return the divisors of a number, in order."""
    small = [divisor for divisor in range(1, isqrt(number) + 1) if number % divisor == 0]
    return small + [number // divisor for divisor in reversed(small) if divisor * divisor != number]

"""Cartesian topologies: ranks as points of a grid. MPI 4.1, section 8.5."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from protocols.mpi.constants import PROC_NULL
from protocols.mpi.mpi_errors import ERR_ARG, ERR_DIMS, ERR_RANK, MPIError


class Grid(NamedTuple):
    """A grid in row-major order. dims: its extents. periods: whether it is closed in each dimension."""

    dims: tuple[int, ...]
    periods: tuple[bool, ...]

    @property
    def size(self) -> int:
        return prod(self.dims)

    def coordinates(self, rank: int) -> list[int]:
        """Return a rank's point. Raises MPIError (ERR_RANK)."""
        if not 0 <= rank < self.size:
            raise MPIError(ERR_RANK, f"a rank of {rank}: 0 to {self.size - 1}")
        point = []
        for extent in reversed(self.dims):
            rank, place = divmod(rank, extent)
            point.append(place)
        return point[::-1]

    def rank(self, point: Sequence[int]) -> int:
        """Return a point's rank. Raises MPIError: ERR_DIMS, or ERR_ARG for one beyond an open end."""
        if len(point) != len(self.dims):
            raise MPIError(ERR_DIMS, f"{len(point)} coordinates in {len(self.dims)} dimensions")
        rank = 0
        for place, extent, is_closed in zip(point, self.dims, self.periods, strict=True):
            if not is_closed and not 0 <= place < extent:
                raise MPIError(ERR_ARG, f"point {list(point)} lies outside the grid of {list(self.dims)}")
            rank = rank * extent + place % extent
        return rank

    def shift(self, rank: int, direction: int, distance: int) -> tuple[int, int]:
        """Return the ranks from which and to which data moves by so many points; PROC_NULL beyond an open end."""
        if not 0 <= direction < len(self.dims):
            raise MPIError(ERR_DIMS, f"dimension {direction}: 0 to {len(self.dims) - 1}")
        point = self.coordinates(rank)
        ranks = []
        for step in (-distance, distance):
            moved = [*point]
            moved[direction] += step
            is_inside = self.periods[direction] or 0 <= moved[direction] < self.dims[direction]
            ranks.append(self.rank(moved) if is_inside else PROC_NULL)
        return ranks[0], ranks[1]


def grid_of(dims: Sequence[int], periods: Sequence[bool] | bool | None, size: int) -> Grid:
    """Return a grid for at most `size` ranks. periods: one for all, or each; None: open. Raises MPIError: ERR_DIMS, or
    ERR_ARG if it has more points than there are ranks."""
    if periods is None or isinstance(periods, bool):
        periods = [bool(periods)] * len(dims)
    if len(periods) != len(dims) or any(extent < 1 for extent in dims):
        raise MPIError(ERR_DIMS, f"dimensions {list(dims)} with periods {list(periods)}")
    grid = Grid(tuple(dims), tuple(map(bool, periods)))
    if grid.size > size:
        raise MPIError(ERR_ARG, f"a grid of {list(dims)} has {grid.size} points, and there are {size} ranks")
    return grid


def compute_dims(nodes: int, dims: int | Sequence[int]) -> list[int]:
    """Return extents whose product is `nodes`, as close to each other as possible and not increasing; given ones that are
    not 0 stay. Raises MPIError (ERR_DIMS)."""
    extents = [0] * dims if isinstance(dims, int) else list(dims)
    fixed = prod(extent for extent in extents if extent)
    free = [place for place, extent in enumerate(extents) if not extent]
    if nodes < 1 or any(extent < 0 for extent in extents) or nodes % fixed or (not free and nodes != fixed):
        raise MPIError(ERR_DIMS, f"{nodes} nodes cannot be divided into {extents}")
    for place, extent in zip(free, _divided(nodes // fixed, len(free)), strict=True):
        extents[place] = extent
    return extents


def _divided(number: int, parts: int, most: int | None = None) -> list[int]:
    """Return the most balanced factors, not increasing: of all such lists, the one with the least first factor."""
    if not parts:
        return []
    most = number if most is None else most
    if parts == 1:
        return [number] if number <= most else []
    for first in range(1, min(number, most) + 1):
        if number % first == 0 and first**parts >= number:
            rest = _divided(number // first, parts - 1, first)
            if rest:
                return [first, *rest]
    return []

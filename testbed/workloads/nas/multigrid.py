"""MG: Poisson's equation on a cube with periodic boundaries, by V cycles of multigrid (RNR-94-007, sections 2.4 and 3.3).

Ranks form a box (NAS-95-020). Each has a part of every level's grid, and a layer of its neighbours' points around it. If a
level has fewer points along an axis than there are ranks, only some of the ranks have points of the level. Axes are z, y, x.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final, Literal

import numpy as np

from protocols.mpi.operations import MAX
from testbed.workloads.form import Comm, VerificationError
from testbed.workloads.nas.problem_classes import MgClass
from testbed.workloads.nas.random_numbers import Array, numbers

AXES: Final = (2, 1, 0)
"""Order in which the axes are handled: x first, as in NPB."""
CHARGES: Final = 10
"""Number of charges of each sign."""
_OPERATOR: Final = (-8 / 3, 0.0, 1 / 6, 1 / 12)
_TOLERANCE: Final = 1e-8
_INNER: Final = slice(1, -1)

Shape = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class RankBox:
    """Position of a rank in the box of ranks. shape: number of ranks along each axis."""

    rank: int
    shape: Shape

    @classmethod
    def of(cls, ranks: int, rank: int) -> RankBox:
        bits = ranks.bit_length() - 1
        x = bits // 3
        y = (bits - x) // 2
        return cls(rank, (1 << (bits - x - y), 1 << y, 1 << x))

    def coordinate(self, axis: int) -> int:
        _, y, x = self.shape
        return (self.rank // (x * y), self.rank // x % y, self.rank % x)[axis]

    def neighbour(self, axis: int, distance: int) -> int:
        """Return the rank at a distance along an axis."""
        stride = (self.shape[1] * self.shape[2], self.shape[2], 1)[axis]
        coordinate = self.coordinate(axis)
        return self.rank + ((coordinate + distance) % self.shape[axis] - coordinate) * stride

    def stride(self, axis: int, level: int) -> int:
        """Return the distance between ranks that have points of a level."""
        return max(1, self.shape[axis] >> level)

    def has_points(self, level: int, axes: tuple[int, ...] = AXES) -> bool:
        """Whether this rank has points of a level along these axes."""
        return all((self.coordinate(axis) + 1) % self.stride(axis, level) == 0 for axis in axes)

    def points(self, axis: int, level: int) -> int:
        """Return the number of points along an axis, of a rank that has points of the level."""
        return max(1, (1 << level) // self.shape[axis])

    def grid(self, level: int) -> Shape:
        """Return the shape of this rank's part of a level, with the layer around it."""
        z, y, x = (self.points(axis, level) + 2 for axis in range(3))
        return z, y, x

    def is_alone(self, axis: int, level: int) -> bool:
        """Whether this rank has all points along an axis."""
        return self.points(axis, level) == 1 << level

    def role(self, axis: int, level: int) -> Literal["local", "sender", "receiver", ""]:
        """Return the rank's role along an axis in the interpolation of a level: "local" if it has all points that it needs,
        "sender" if it also sends points to a rank with only finer points, "receiver" if it receives them, "" if it has no
        points."""
        if self.stride(axis, level) == 1:
            return "local"
        if self.has_points(level, (axis,)):
            return "sender"
        return "receiver" if self.has_points(level + 1, (axis,)) else ""


def axis_index(axis: int, part: slice | int) -> tuple[slice | int, ...]:
    """Return an array index that selects a part along one axis, and everything along the others."""
    return (slice(None),) * axis + (part,)


def layer_index(axis: int, index: int) -> tuple[slice | int, ...]:
    """Return the array index of the layer that is exchanged along an axis. It includes the layers of the axes that were
    exchanged before. index: index of the layer along the axis."""
    return tuple(
        index if other_axis == axis else _INNER if other_axis < axis else slice(None) for other_axis in range(3)
    )


class MultiGrid:
    """One rank of the solver."""

    def __init__(self, comm: Comm, problem: MgClass) -> None:
        self._comm = comm
        self._problem = problem
        self._box = RankBox.of(comm.size, comm.rank)
        self._top = problem.log_edge
        self._norm = 0.0
        self._right = np.zeros(0)
        self._u: dict[int, Array] = {}
        self._r: dict[int, Array] = {}

    async def prepare(self) -> None:
        self._right = await self._charges()

    async def solve(self) -> None:
        top, charges = self._top, self._right
        self._u[top] = np.zeros_like(charges)
        self._r[top] = await self._residual(top, charges)
        await self._measure()
        for _ in range(self._problem.iterations):
            await self._cycle(charges)
            self._r[top] = await self._residual(top, charges)
        self._norm = await self._measure()

    async def verify(self) -> float:
        """Return the residual's norm. Raises VerificationError if it differs from NPB's."""
        if not abs(self._norm - self._problem.norm) <= _TOLERANCE * self._problem.norm:
            raise VerificationError(f"MG: the residual's norm is {self._norm:.13e}, not {self._problem.norm:.13e}")
        return self._norm

    async def _charges(self) -> Array:
        """Return the right-hand side: 1 at the ten largest random numbers of the grid, -1 at the ten smallest."""
        box, edge = self._box, self._problem.edge
        shape = [box.points(axis, self._top) for axis in range(3)]
        first = [box.coordinate(axis) * shape[axis] for axis in range(3)]
        values = np.empty(shape)
        for z in range(shape[0]):
            plane = first[2] + edge * (first[1] + edge * (first[0] + z))
            for y in range(shape[1]):
                values[z, y] = numbers(plane + edge * y + 1, shape[2])
        order = np.argsort(values, axis=None)
        candidates_of_rank = np.zeros((2, CHARGES, 4))
        for number, indices in enumerate((order[:CHARGES], order[::-1][:CHARGES])):
            candidates_of_rank[number, : len(indices), 0] = values.flat[indices]
            candidates_of_rank[number, : len(indices), 1:] = np.transpose(np.unravel_index(indices, shape)) + first
            candidates_of_rank[number, len(indices) :, 0] = (2, -1)[number]  # never among the ten smallest or largest
        candidates_of_ranks = np.zeros((self._comm.size, *candidates_of_rank.shape))
        await self._comm.Allgather(candidates_of_rank.data, candidates_of_ranks.data)
        charges = np.zeros(box.grid(self._top))
        for number, charge in enumerate((-1.0, 1.0)):
            candidates = candidates_of_ranks[:, number].reshape(-1, 4)
            ranked = np.argsort(candidates[:, 0])
            for point in candidates[ranked[:CHARGES] if number == 0 else ranked[-CHARGES:], 1:].astype(int) - first:
                if all(0 <= index < size for index, size in zip(point, shape, strict=True)):
                    charges[tuple(point + 1)] = charge
        await self._exchange(self._top, charges)
        return charges

    async def _cycle(self, charges: Array) -> None:
        """Run one V cycle."""
        box, top = self._box, self._top
        for level in range(top, 1, -1):
            if box.has_points(level):
                await self._restrict(level)
        if box.has_points(1):
            self._u[1] = np.zeros(box.grid(1))
            await self._smooth(1)
        for level in range(2, top):
            fine = await self._interpolate(level - 1)
            if box.has_points(level):
                assert fine is not None
                self._u[level] = fine
                self._r[level] = await self._residual(level, self._r[level])
                await self._smooth(level)
        fine = await self._interpolate(top - 1)
        assert fine is not None
        self._u[top] += fine
        self._r[top] = await self._residual(top, charges)
        await self._smooth(top)

    async def _residual(self, level: int, right: Array) -> Array:
        result = np.zeros_like(right)
        result[_INNER, _INNER, _INNER] = right[_INNER, _INNER, _INNER] - _stencil(self._u[level], _OPERATOR)
        await self._exchange(level, result)
        return result

    async def _smooth(self, level: int) -> None:
        self._u[level][_INNER, _INNER, _INNER] += _stencil(self._r[level], (*self._problem.smoother, 0.0))
        await self._exchange(level, self._u[level])

    async def _restrict(self, level: int) -> None:
        """Compute the residual of the next coarser level."""
        values = self._r[level]
        for axis in range(3):
            last = values.shape[axis] - 1
            # The centres are this rank's points 1, 3, ..., or its only point.
            start = 1 if last == 2 else 2
            centre, low, high = (values[axis_index(axis, slice(start + at, last + 1 + at, 2))] for at in (0, -1, 1))
            values = centre + (low + high) / 2
        if not self._box.has_points(level - 1):
            return
        coarse = np.zeros(self._box.grid(level - 1))
        coarse[_INNER, _INNER, _INNER] = values / 2
        await self._exchange(level - 1, coarse)
        self._r[level - 1] = coarse

    async def _interpolate(self, level: int) -> Array | None:
        """Interpolate a level's solution to the points of the finer level; None if this rank has none of them."""
        box = self._box
        values = self._u[level] if box.has_points(level) else None
        for number, axis in enumerate(AXES):
            role = box.role(axis, level)
            if (
                not role
                or not box.has_points(level, AXES[number + 1 :])
                or not box.has_points(level + 1, AXES[:number])
            ):
                continue  # the rank takes part along another axis, or not at all
            distance = box.stride(axis, level + 1)
            if role == "receiver":
                shape = [
                    box.points(each, level + (each in AXES[:number])) + 2 if each != axis else 2 for each in range(3)
                ]
                values = np.empty(shape)
                await self._comm.Recv(values.data, box.neighbour(axis, distance), axis)
                values = _insert_means(values, axis)
                continue
            assert values is not None
            refined = _insert_means(values, axis)
            if role == "sender":
                # The lower neighbour has only finer points: those between this rank's first point and the next lower point.
                pair = np.ascontiguousarray(values[axis_index(axis, slice(0, 2))])
                await self._comm.Send(pair.data, box.neighbour(axis, -distance), axis)
                values = refined[axis_index(axis, slice(1, 4))]
            else:
                values = refined[axis_index(axis, slice(0, -1))]
        return np.ascontiguousarray(values) if values is not None and box.has_points(level + 1) else None

    async def _exchange(self, level: int, values: Array) -> None:
        """Fill the layer around this rank's points from the neighbours, axis by axis."""
        box, comm = self._box, self._comm
        for axis in AXES:
            edges = [(layer_index(axis, -2), layer_index(axis, 0)), (layer_index(axis, 1), layer_index(axis, -1))]
            if box.is_alone(axis, level):
                for edge, beyond in edges:
                    values[beyond] = values[edge]
                continue
            stride = box.stride(axis, level)
            received, sent = [], []
            for direction, (_, beyond) in zip((1, -1), edges, strict=True):
                buffer = np.empty_like(values[beyond], order="C")
                source = box.neighbour(axis, -direction * stride)
                received.append((beyond, buffer, await comm.Irecv(buffer.data, source, direction + 1)))
            for direction, (edge, _) in zip((1, -1), edges, strict=True):
                data = np.ascontiguousarray(values[edge])
                sent.append(await comm.Isend(data.data, box.neighbour(axis, direction * stride), direction + 1))
            for beyond, buffer, request in received:
                await request.Wait()
                values[beyond] = buffer
            for request in sent:
                await request.Wait()

    async def _measure(self) -> float:
        """Return the residual's norm. Also compute the maximum, as NPB does, since that exchanges messages."""
        inner = self._r[self._top][_INNER, _INNER, _INNER]
        total, maximum = np.zeros(1), np.zeros(1)
        await self._comm.Allreduce(np.array([np.sum(inner * inner)]).data, total.data)
        await self._comm.Allreduce(np.array([np.abs(inner).max()]).data, maximum.data, MAX)
        return float(np.sqrt(total[0] / self._problem.edge**3))


def _stencil(values: Array, factors: tuple[float, float, float, float]) -> Array:
    """Return sums over each inner point and its 26 neighbours. factors: factors of the centre, faces, edges and corners."""
    total = factors[0] * values[_INNER, _INNER, _INNER]
    for distance, factor in enumerate(factors[1:], 1):
        if factor:
            total += factor * sum(values[index] for index in _neighbours(distance))
    return total


def _neighbours(distance: int) -> Iterator[tuple[slice, slice, slice]]:
    """Yield array indices of the inner points' neighbours that differ along `distance` axes."""
    for axes in combinations(range(3), distance):
        for signs in range(1 << distance):
            parts = [_INNER, _INNER, _INNER]
            for number, axis in enumerate(axes):
                parts[axis] = slice(0, -2) if signs >> number & 1 else slice(2, None)
            yield parts[0], parts[1], parts[2]


def _insert_means(values: Array, axis: int) -> Array:
    """Insert the mean of each two adjacent points between them."""
    shape: list[Any] = list(values.shape)
    shape[axis] = 2 * shape[axis] - 1
    result = np.empty(shape)
    result[axis_index(axis, slice(0, None, 2))] = values
    low, high = values[axis_index(axis, slice(0, -1))], values[axis_index(axis, slice(1, None))]
    result[axis_index(axis, slice(1, None, 2))] = (low + high) / 2
    return result

"""CG: the smallest eigenvalue of a sparse matrix, by inverse iteration with conjugate gradients (RNR-94-007, sections
2.3.1 and 3.4).

The matrix is divided into blocks over a grid of ranks, with as many columns as rows, or twice as many (NAS-95-020). A
vector has a piece for each column of ranks; all ranks of a column have the column's piece.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from typing import Final

import numpy as np

from testbed.workloads.form import Comm, VerificationError
from testbed.workloads.nas.problem_classes import STEPS_OF_CG, CgClass
from testbed.workloads.nas.random_numbers import Array, stream

_CONDITION: Final = 0.1
_DIAGONAL: Final = 0.5
_TOLERANCE: Final = 1e-10


@dataclass(frozen=True, slots=True)
class RankGrid:
    """Position of a rank in the grid of ranks. order: order of the matrix. columns: number of columns of ranks. aspect: 2 if
    there are twice as many columns as rows, else 1."""

    order: int
    rank: int
    columns: int
    aspect: int

    @classmethod
    def of(cls, order: int, ranks: int, rank: int) -> RankGrid:
        rows = isqrt(ranks)
        aspect = 1 if rows * rows == ranks else 2
        return cls(order, rank, aspect * isqrt(ranks // aspect), aspect)

    @property
    def row(self) -> int:
        return self.rank // self.columns

    @property
    def column(self) -> int:
        return self.rank % self.columns

    def first_index(self, column: int) -> int:
        """Return the first index of a column's piece."""
        return column * self.order // self.columns

    @property
    def piece(self) -> tuple[int, int]:
        """This rank's columns of the matrix: start and end."""
        return self.first_index(self.column), self.first_index(self.column + 1)

    @property
    def rows(self) -> tuple[int, int]:
        """This rank's rows of the matrix: start and end."""
        return self.first_index(self.row * self.aspect), self.first_index((self.row + 1) * self.aspect)

    def half(self, other: bool = False) -> tuple[int, int]:
        """Return the start and end of the rows that this rank sums up; all its rows in a square grid. other: those that the
        neighbour sums up."""
        column = self.row * self.aspect + (self.column + other) % self.aspect
        return self.first_index(column), self.first_index(column + 1)

    def partners(self) -> list[int]:
        """Return the ranks of this row with which this rank adds up sums, nearest first."""
        return [self.rank ^ 1 << step for step in range((self.columns - 1).bit_length())]

    @property
    def transposed(self) -> int:
        """Rank with which this rank swaps pieces after a sum."""
        return (self.column // self.aspect) * self.columns + self.row * self.aspect + self.column % self.aspect


@dataclass(frozen=True, slots=True)
class SparseBlock:
    """A block of the matrix. Indices are relative to its first row and column; elements at equal indices are added. height:
    number of rows."""

    rows: Array
    columns: Array
    values: Array
    height: int

    def multiply(self, vector: Array) -> Array:
        return np.bincount(self.rows, self.values * vector[self.columns], self.height)


def make_block(problem: CgClass, rows: tuple[int, int], columns: tuple[int, int]) -> SparseBlock:
    """Return a block of the matrix: the sum of outer products of random sparse vectors with themselves, with weights from 1
    to 0.1 in geometric progression, plus a diagonal. rows, columns: start and end."""
    indices, values = _vectors(problem)
    weights = _CONDITION ** (np.arange(problem.order) / problem.order)
    entries: tuple[list[int], list[int], list[float]] = ([], [], [])
    for vector_indices, vector_values, weight in zip(indices, values, weights.tolist(), strict=True):
        elements = list(zip(vector_indices, vector_values, strict=True))
        row_elements = [(row, value) for row, value in elements if rows[0] <= row < rows[1]]
        if not row_elements:
            continue
        for column, value in elements:
            if columns[0] <= column < columns[1]:
                scale = weight * value
                for row, factor in row_elements:
                    entries[0].append(row - rows[0])
                    entries[1].append(column - columns[0])
                    entries[2].append(factor * scale)
    for diagonal in range(max(rows[0], columns[0]), min(rows[1], columns[1])):
        entries[0].append(diagonal - rows[0])
        entries[1].append(diagonal - columns[0])
        entries[2].append(_CONDITION - problem.shift)
    return SparseBlock(
        np.array(entries[0], np.int64), np.array(entries[1], np.int64), np.array(entries[2]), rows[1] - rows[0]
    )


def _vectors(problem: CgClass) -> tuple[list[list[int]], list[list[float]]]:
    """Return indices and values of the random vectors; the i-th vector has 0.5 at index i."""
    scale = 1 << (problem.order - 1).bit_length()
    indices: list[list[int]] = []
    values: list[list[float]] = []
    rng = stream(2)  # NPB draws number 1 before
    for row in range(problem.order):
        vector: dict[int, float] = {}
        while len(vector) < problem.nonzeros:
            value = next(rng)
            index = int(scale * next(rng))
            if index < problem.order:
                vector.setdefault(index, value)
        vector[row] = _DIAGONAL
        indices.append(list(vector))
        values.append(list(vector.values()))
    return indices, values


class ConjugateGradient:
    """One rank of the solver."""

    def __init__(self, comm: Comm, problem: CgClass) -> None:
        self._comm = comm
        self._problem = problem
        self._grid = RankGrid.of(problem.order, comm.size, comm.rank)
        self._block = make_block(problem, self._grid.rows, self._grid.piece)
        self._zeta = 0.0

    async def prepare(self) -> None:
        """Do nothing: the data need no communication."""

    async def solve(self) -> None:
        start, end = self._grid.piece
        x = np.ones(end - start)
        for _ in range(self._problem.iterations):
            z = await self._solve_system(x)
            product, square = await self._sum(np.array([x @ z, z @ z]))
            self._zeta = self._problem.shift + 1 / product
            x = z / np.sqrt(square)

    async def verify(self) -> float:
        """Return zeta. Raises VerificationError if it differs from NPB's."""
        if not abs(self._zeta - self._problem.zeta) <= _TOLERANCE:
            raise VerificationError(f"CG: zeta is {self._zeta:.13f}, not {self._problem.zeta:.13f}")
        return self._zeta

    async def _solve_system(self, x: Array) -> Array:
        """Return an approximate solution z of A z = x, after STEPS_OF_CG steps."""
        z, r, p = np.zeros_like(x), x.copy(), x.copy()
        (rho,) = await self._sum(np.array([r @ r]))
        for _ in range(STEPS_OF_CG):
            q = await self._multiply(p)
            (d,) = await self._sum(np.array([p @ q]))
            alpha = rho / d
            z += alpha * p
            r -= alpha * q
            before = rho
            (rho,) = await self._sum(np.array([r @ r]))
            p = r + rho / before * p
        difference = x - await self._multiply(z)
        await self._sum(np.array([difference @ difference]))  # NPB reports its norm
        return z

    async def _multiply(self, vector: Array) -> Array:
        """Return this rank's piece of A times a vector."""
        grid, comm = self._grid, self._comm
        first = grid.rows[0]
        product = self._block.multiply(vector)
        partners = grid.partners()
        if grid.aspect == 2:
            own, other = (slice(start - first, end - first) for start, end in (grid.half(), grid.half(other=True)))
            received = await self._swap(partners.pop(0), product[other], len(product[own]))
            product = product[own] + received
        for partner in partners:
            product = product + await self._swap(partner, product, len(product))
        if grid.transposed == comm.rank:
            return product
        return await self._swap(grid.transposed, product, len(vector))

    async def _sum(self, values: Array) -> Array:
        """Return the sums over the ranks of this row, which together have all pieces."""
        for partner in reversed(self._grid.partners()):
            values = values + await self._swap(partner, values, len(values))
        return values

    async def _swap(self, partner: int, values: Array, count: int) -> Array:
        received = np.empty(count)
        await self._comm.Sendrecv(values.data, partner, 0, received.data, partner, 0)
        return received

"""NAS kernels: verification on any power of two of ranks, and detection of wrong results."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from protocols.mpi import Comm
from testbed.workloads.form import VerificationError
from testbed.workloads.nas.conjugate_gradient import RankGrid, make_block
from testbed.workloads.nas.problem_classes import CG, FT, IS, MG
from testbed.workloads.nas.random_numbers import key_chunks, make_keys, numbers, states, stream
from testbed.workloads.nas.schedules import Messages, multigrid
from tests.unit.protocols.nicless_endpoints import LibraryRanks
from tests.unit.workloads.nas_kernels import KERNELS

RANKS_WITH_ERROR = (*IS["S"].ranks[:4], IS["S"].ranks[4] + 1)
OUTSIDE_TOLERANCE: dict[str, Any] = {
    "is": replace(IS["S"], ranks=RANKS_WITH_ERROR),
    "cg": replace(CG["S"], zeta=CG["S"].zeta + 2e-10),
    "mg": replace(MG["S"], norm=MG["S"].norm * (1 + 2e-8)),
    "ft": replace(FT["S"], checksums=(FT["S"].checksums[0] * (1 + 2e-12), *FT["S"].checksums[1:])),
}
OTHER_PROBLEMS: dict[str, Any] = {
    "is": replace(IS["S"], log_keys=15),
    "cg": replace(CG["S"], nonzeros=8),
    "mg": replace(MG["S"], iterations=3),
    "ft": replace(FT["S"], shape=(64, 32, 128)),
}
"""Different problems with the verification values of class S."""


def solve(name: str, problem: Any, size: int) -> list[float]:
    async def program(comm: Comm) -> float:
        solver = KERNELS[name][0](comm, problem)
        await solver.prepare()
        await solver.solve()
        return float(await solver.verify())

    return LibraryRanks(size).run(*[program] * size)


@pytest.mark.parametrize("size", [1, 2, 4, 16])
@pytest.mark.parametrize("name", KERNELS)
def test_class_s_is_verified_on_any_power_of_two_of_ranks(name: str, size: int) -> None:
    solve(name, KERNELS[name][1], size)


@pytest.mark.parametrize("name", OUTSIDE_TOLERANCE)
def test_a_value_just_outside_of_the_tolerance_fails(name: str) -> None:
    with pytest.raises(VerificationError, match=f"^{name.upper()}"):
        solve(name, OUTSIDE_TOLERANCE[name], 2)


@pytest.mark.parametrize("name", OTHER_PROBLEMS)
def test_another_problem_fails(name: str) -> None:
    with pytest.raises(VerificationError, match=f"^{name.upper()}"):
        solve(name, OTHER_PROBLEMS[name], 2)


def test_a_random_number_is_computed_without_its_predecessors() -> None:
    state, sequence = 314_159_265, []
    for _ in range(3000):
        state = 5**13 * state % 2**46
        sequence.append(state)
    assert states(1, 3000).tolist() == sequence
    assert states(1235, 17).tolist() == sequence[1234:1251]
    assert numbers(2, 1)[0] == sequence[1] / 2**46
    numbers_in_order = stream(1)
    assert [next(numbers_in_order) for _ in range(3000)] == numbers(1, 3000).tolist()


def test_chunks_of_keys_equal_the_complete_sequence() -> None:
    problem = IS["A"]
    all_keys = make_keys(problem, 100, 3 << 19)
    assert np.array_equal(np.concatenate(list(key_chunks(problem, 100, 3 << 19))), all_keys)
    assert 0 <= all_keys.min() <= all_keys.max() < 1 << problem.log_max


@pytest.mark.parametrize("ranks", [1, 2, 4, 8, 32])
def test_blocks_of_the_matrix_equal_the_complete_matrix(ranks: int) -> None:
    problem = CG["S"]
    complete_range = (0, problem.order)
    vector = np.linspace(0, 1, problem.order)
    expected = make_block(problem, complete_range, complete_range).multiply(vector)
    product = np.zeros(problem.order)
    for rank in range(ranks):
        grid = RankGrid.of(problem.order, ranks, rank)
        rows, columns = slice(*grid.rows), slice(*grid.piece)
        product[rows] += make_block(problem, grid.rows, grid.piece).multiply(vector[columns])
    assert np.allclose(product, expected, rtol=1e-12)


def test_a_schedule_takes_no_memory_for_the_grid() -> None:
    problem, computed = replace(MG["B"], iterations=1), []

    async def compute(operations: float) -> None:
        computed.append(operations)

    async def program(comm: Comm) -> None:
        await multigrid(Messages(comm), problem, compute)

    tracemalloc.start()
    try:
        LibraryRanks(16).run(*[program] * 16)
        peak_memory = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sum(computed) == pytest.approx(problem.operations())
    assert peak_memory < problem.edge**3 * 8 / 4, "more than a quarter of the memory of one array"

"""Groups, communicators of their members, and Cartesian topologies."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols import mpi as MPI  # noqa: N812  as programs name it
from protocols.mpi import Comm, Group
from protocols.mpi.cartesian import compute_dims, make_grid
from protocols.mpi.mpi_errors import ERR_ARG, ERR_DIMS, ERR_RANK, MPIError
from tests.unit.protocols.mpi_devices import run_program


def test_groups_are_ordered_sets() -> None:
    world = Group(range(6), 3)
    odd_ranks, low_ranks = world.Incl([1, 3, 5]), world.Range_incl([(0, 3, 1)])
    assert (odd_ranks.size, odd_ranks.rank, world.Excl([3]).Get_rank()) == (3, 1, MPI.UNDEFINED)
    assert Group.Union(odd_ranks, low_ranks).processes == (1, 3, 5, 0, 2)
    assert Group.Intersection(odd_ranks, low_ranks).processes == (1, 3)
    assert Group.Difference(odd_ranks, low_ranks).processes == (5,)
    assert world.Range_excl([(5, 1, -2)]).processes == (0, 2, 4)
    assert Group.Translate_ranks(odd_ranks, [0, 2, MPI.PROC_NULL], low_ranks) == [1, MPI.UNDEFINED, MPI.PROC_NULL]
    assert Group.Compare(odd_ranks, world.Incl([5, 3, 1])) == MPI.SIMILAR
    assert Group.Compare(odd_ranks, odd_ranks.Dup()) == MPI.IDENT
    assert Group.Compare(odd_ranks, low_ranks) == MPI.UNEQUAL
    assert odd_ranks.Compare(odd_ranks.Dup()) == MPI.IDENT  # mpi4py 4 has methods of instances
    assert odd_ranks.Translate_ranks(group=low_ranks) == [1, 3, MPI.UNDEFINED]
    for invalid_call in (lambda: world.Incl([6]), lambda: world.Incl([1, 1]), lambda: odd_ranks.Excl([3])):
        with pytest.raises(MPIError) as raised:
            invalid_call()
        assert raised.value.Get_error_class() == ERR_RANK


def test_a_group_with_other_processes_is_rejected() -> None:
    async def program(comm: Comm) -> None:
        for create in (comm.Create, comm.Create_group):
            with pytest.raises(MPIError, match=r"got also ranks \[7\]") as raised:
                await create(Group([0, 7], comm.rank))
            assert raised.value.Get_error_class() == MPI.ERR_GROUP

    run_program(1, program)


def test_communicators_of_groups_are_created_by_all_ranks_or_by_the_members() -> None:
    async def program(comm: Comm) -> object:
        group = comm.Get_group()
        odd_group, reversed_group = group.Incl([1, 3]), group.Incl([4, 2, 0])
        by_all = await comm.Create(odd_group)
        assert (by_all is None) == (comm.rank not in (1, 3))
        own_group = odd_group if comm.rank % 2 else reversed_group
        part = await comm.Create_group(own_group, tag=comm.rank % 2)
        assert part is not None
        assert Comm.Compare(part, comm) == MPI.UNEQUAL
        assert Comm.Compare(await comm.Dup(), comm) == MPI.CONGRUENT
        assert Comm.Compare(comm, comm) == MPI.IDENT
        return await part.allgather(comm.rank), None if by_all is None else await by_all.allgather(comm.rank)

    assert run_program(5, program) == [
        ([4, 2, 0], None), ([1, 3], [1, 3]), ([4, 2, 0], None), ([1, 3], [1, 3]), ([4, 2, 0], None)
    ]  # fmt: skip


@given(st.integers(1, 200), st.integers(1, 4))
def test_dimensions_are_balanced_divisors(nodes: int, number: int) -> None:
    dims = compute_dims(nodes, number)
    assert prod(dims) == nodes
    assert dims == sorted(dims, reverse=True)
    balanced = min(
        (first for first in range(1, nodes + 1) if nodes % first == 0 and number == 2 and first * first >= nodes),
        default=dims[0],
    )
    assert dims[0] == balanced


def test_fixed_dimensions_stay_unchanged() -> None:
    assert compute_dims(12, [0, 3]) == [4, 3]
    assert compute_dims(24, [0, 2, 0]) == [4, 2, 3]
    for nodes, dims in ((7, [2, 0]), (6, [2, 2]), (0, [0])):
        with pytest.raises(MPIError) as raised:
            compute_dims(nodes, dims)
        assert raised.value.Get_error_class() == ERR_DIMS


def test_dimensions_of_a_large_number_are_computed_from_its_divisors() -> None:
    assert compute_dims(100_000_007, 2) == [100_000_007, 1]  # a prime
    assert prod(compute_dims(2**20 * 3**6, 4)) == 2**20 * 3**6


def test_numbers_of_numpy_are_numbers() -> None:
    assert compute_dims(12, np.int64(2)) == [4, 3]
    assert compute_dims(12, np.array([0, 3])) == [4, 3]
    assert make_grid(np.array([2, 3]), np.array([True, False]), 6).dims == (2, 3)


def test_another_number_of_periods_than_of_dimensions_is_a_value_error_too() -> None:
    with pytest.raises(ValueError, match="1 periods for 2 dims") as raised:
        make_grid([2, 2], [True], 4)
    assert isinstance(raised.value, MPIError)
    with pytest.raises(MPIError, match="0 or more"):
        compute_dims(1, -1)
    with pytest.raises(MPIError, match="without dimensions"):
        make_grid([], None, 1).shift(0, 0, 1)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.data())
def test_ranks_and_coordinates_are_inverse_and_opposite_shifts_cancel(dims: list[int], data: st.DataObject) -> None:
    periods = [data.draw(st.booleans()) for _ in dims]
    grid = make_grid(dims, periods, prod(dims))
    for rank in range(grid.size):
        assert grid.rank(grid.coordinates(rank)) == rank
        for direction in range(len(dims)):
            source, destination = grid.shift(rank, direction, 1)
            assert destination == MPI.PROC_NULL or grid.shift(destination, direction, 1)[0] == rank
            assert source == MPI.PROC_NULL or grid.shift(source, direction, 1)[1] == rank
            assert periods[direction] or (destination == MPI.PROC_NULL) == (
                grid.coordinates(rank)[direction] == dims[direction] - 1
            )
    with pytest.raises(MPIError) as raised:
        make_grid([*dims, 2], None, prod(dims))
    assert raised.value.Get_error_class() == ERR_ARG


def test_halos_are_exchanged_on_a_grid_whose_rows_and_columns_are_communicators() -> None:
    async def program(comm: Comm) -> object:
        cart = await comm.Create_cart([2, 3], [False, True])
        if cart is None:
            return None
        halo = {}
        for direction in range(2):
            source, destination = cart.Shift(direction, 1)
            received = np.full(1, -1, "i")
            await cart.Sendrecv(np.full(1, cart.rank, "i"), destination, 0, received, source, 0)
            halo[direction] = int(received[0])
        row = await cart.Sub([False, True])
        column = await cart.Sub([True, False])
        value = np.full(1, cart.rank, "i")
        await cart.Sendrecv_replace(value, cart.Shift(1, 1)[1], source=cart.Shift(1, 1)[0])
        assert value[0] == halo[1]
        return cart.Get_coords(cart.rank), halo, await row.allgather(cart.rank), await column.allgather(cart.rank)

    results = run_program(7, program)
    assert results[6] is None, "there is one rank more than grid points"
    for rank, result in enumerate(results[:6]):
        row, column = divmod(rank, 3)
        halo = {0: rank - 3 if row else -1, 1: 3 * row + (column - 1) % 3}
        assert result == ([row, column], halo, [3 * row, 3 * row + 1, 3 * row + 2], [column, column + 3])

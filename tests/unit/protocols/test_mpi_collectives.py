"""Collective calls compared with NumPy's results: any number of ranks, root, count, type, operation and algorithm."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols import mpi as MPI  # noqa: N812  as programs name it
from protocols.mpi import Comm, Op
from protocols.mpi.collectives.choices import NAMES
from protocols.mpi.mpi_errors import ERR_ARG, ERR_COMM, ERR_COUNT, ERR_OP, ERR_ROOT, ERR_TRUNCATE, ERR_TYPE, MPIError
from tests.unit.protocols.emp_ranks import Ranks
from tests.unit.protocols.host_programs import Program
from tests.unit.protocols.mpi_devices import RanksOf, on_every_device, run_program

SIZES = st.integers(1, 9)
COUNTS = st.sampled_from([0, 1, 3, 40, 700])
TYPES = st.sampled_from(["i", "l", "d", "F", "b"])
UFUNCS = {
    "SUM": np.add, "PROD": np.multiply, "MAX": np.maximum, "MIN": np.minimum, "BAND": np.bitwise_and, "BOR": np.bitwise_or,
    "BXOR": np.bitwise_xor, "LAND": np.logical_and, "LOR": np.logical_or, "LXOR": np.logical_xor,
}  # fmt: skip
MPI_PAGE = Path(__file__).parents[3] / "docs" / "protocols" / "mpi.md"
INTEGER_OPERATIONS = ("BAND", "BOR", "BXOR")
"""Operations that take only integers."""


def random_rows(size: int, count: int, dtype: str, seed: int = 0) -> np.ndarray[Any, Any]:
    """Return a row of items for each rank, small enough that sums are exact."""
    rng = np.random.default_rng(seed)
    return rng.integers(1, 4, (size, count)).astype(dtype)


def algorithms(call: str) -> st.SearchStrategy[str | None]:
    return st.sampled_from([None, *NAMES[call]])


def set_algorithm(comm: Comm, call: str, name: str | None) -> None:
    if name is not None:
        comm.algorithms[call] = name


def noncommuting(left: memoryview, right: memoryview, _: object) -> None:
    """Compose functions x -> ax + b modulo 251, as items (a, b): associative, but not commutative."""
    first, second = np.frombuffer(left, "l").reshape(-1, 2), np.frombuffer(right, "l").reshape(-1, 2)
    a, b = (first[:, 0] * second[:, 0]) % 251, (first[:, 1] * second[:, 0] + second[:, 1]) % 251
    second[:, 0], second[:, 1] = a, b


def prefix_compositions(rows: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    """Return the compositions of all prefixes."""

    def compose(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        result = right.copy()
        noncommuting(memoryview(left.copy()).cast("B"), memoryview(result).cast("B"), None)
        return result

    return list(accumulate(rows, compose))


@settings(max_examples=60)
@given(SIZES, COUNTS, TYPES, algorithms("Bcast"), st.data())
def test_bcast_delivers_the_roots_data_to_all_ranks(
    size: int, count: int, dtype: str, name: str | None, data: st.DataObject
) -> None:
    root = data.draw(st.integers(0, size - 1))
    sent = random_rows(size, count, dtype)

    async def program(comm: Comm) -> Any:
        set_algorithm(comm, "Bcast", name)
        buffer = sent[comm.rank].copy()
        await comm.Bcast(buffer, root)
        return buffer

    assert all(np.array_equal(received, sent[root]) for received in run_program(size, program))


@settings(max_examples=60)
@given(SIZES, COUNTS, TYPES, st.booleans(), st.data())
def test_gather_collects_the_rows_of_all_ranks_and_scatter_distributes_them(
    size: int, count: int, dtype: str, in_place: bool, data: st.DataObject
) -> None:
    root = data.draw(st.integers(0, size - 1))
    rows = random_rows(size, count, dtype)

    async def program(comm: Comm) -> Any:
        is_root = comm.rank == root
        matrix = np.zeros_like(rows) if is_root else None
        if is_root and in_place:
            matrix = np.zeros_like(rows)
            matrix[root] = rows[root]
            await comm.Gather(MPI.IN_PLACE, matrix, root)
        else:
            await comm.Gather(rows[comm.rank], matrix, root)
        if is_root:
            assert np.array_equal(matrix, rows)
        own_row = np.zeros(count, dtype)
        await comm.Scatter(matrix, MPI.IN_PLACE if is_root and in_place else own_row, root)
        assert np.array_equal(own_row, rows[comm.rank]) or (is_root and in_place)

    run_program(size, program)


@settings(max_examples=60)
@given(SIZES, COUNTS, TYPES, algorithms("Allgather"), algorithms("Alltoall"), st.booleans())
def test_allgather_and_alltoall_deliver_the_blocks_of_all_ranks(
    size: int, count: int, dtype: str, gather: str | None, exchange: str | None, in_place: bool
) -> None:
    rows = random_rows(size, count, dtype)
    cube = np.arange(size * size * count).reshape(size, size, count).astype(dtype)

    async def program(comm: Comm) -> Any:
        set_algorithm(comm, "Allgather", gather)
        set_algorithm(comm, "Alltoall", exchange)
        all_rows = np.zeros_like(rows)
        if in_place:
            all_rows[comm.rank] = rows[comm.rank]
        await comm.Allgather(MPI.IN_PLACE if in_place else rows[comm.rank], all_rows)
        assert np.array_equal(all_rows, rows)
        own_rows = cube[comm.rank].copy()
        result = own_rows if in_place else np.zeros_like(own_rows)
        await comm.Alltoall(MPI.IN_PLACE if in_place else own_rows, result)
        assert np.array_equal(result, cube[:, comm.rank])

    run_program(size, program)


@pytest.mark.parametrize("size", [33, 34, 66])
def test_alltoall_of_more_ranks_than_exchange_at_once(size: int) -> None:
    cube = np.arange(size * size).reshape(size, size)

    async def program(comm: Comm) -> Any:
        comm.algorithms["Alltoall"] = "scattered"
        result = np.zeros_like(cube[0])
        await comm.Alltoall(cube[comm.rank].copy(), result)
        assert np.array_equal(result, cube[:, comm.rank])

    run_program(size, program)


@given(SIZES, COUNTS, TYPES, st.sampled_from([*UFUNCS]), algorithms("Reduce"), algorithms("Allreduce"), st.data())
def test_reductions_equal_numpys(
    size: int, count: int, dtype: str, op: str, reduce: str | None, allreduce: str | None, data: st.DataObject
) -> None:
    root = data.draw(st.integers(0, size - 1))
    in_place = data.draw(st.booleans())
    dtype = dtype if op not in INTEGER_OPERATIONS or np.dtype(dtype).kind == "i" else "i"
    dtype = dtype if op not in ("MAX", "MIN", "LAND", "LOR", "LXOR") or dtype != "F" else "d"
    rows = random_rows(size, count, dtype)
    prefixes = list(accumulate(rows, lambda left, right: UFUNCS[op](left, right).astype(dtype)))
    operation = getattr(MPI, op)

    async def program(comm: Comm) -> Any:
        set_algorithm(comm, "Reduce", reduce)
        set_algorithm(comm, "Allreduce", allreduce)
        own_row, result = rows[comm.rank].copy(), np.zeros(count, dtype)
        if in_place:
            result[:] = own_row
        send_buffer = MPI.IN_PLACE if in_place else own_row
        await comm.Reduce(
            send_buffer if comm.rank == root else own_row, result if comm.rank == root else None, operation, root
        )
        assert comm.rank != root or np.array_equal(result, prefixes[-1])
        for call, expected in (
            (comm.Allreduce, prefixes[-1]),
            (comm.Scan, prefixes[comm.rank]),
            (comm.Exscan, prefixes[comm.rank - 1] if comm.rank else None),
        ):
            result[:] = own_row if in_place else 0
            await call(send_buffer, result, operation)
            assert np.array_equal(
                result, expected if expected is not None else own_row if in_place else np.zeros(count, dtype)
            )
        assert np.array_equal(own_row, rows[comm.rank]), "operands are unchanged"

    run_program(size, program)


@settings(max_examples=40)
@given(SIZES, st.integers(0, 2**32), st.booleans())
def test_an_operation_that_does_not_commute_is_applied_in_the_order_of_ranks(
    size: int, seed: int, is_long: bool
) -> None:
    rows = np.random.default_rng(seed).integers(1, 251, (size, 600 if is_long else 4))
    prefixes = prefix_compositions(rows)
    operation = Op.Create(noncommuting)
    blocks = rows[:, : 4 * size] if not is_long else rows[:, : 2 * size * (600 // (2 * size))]

    async def program(comm: Comm) -> None:
        own_row, result = rows[comm.rank].copy(), np.zeros_like(rows[0])
        for root in {0, size - 1, size // 2}:
            await comm.Reduce(own_row, result if comm.rank == root else None, operation, root)
            assert comm.rank != root or np.array_equal(result, prefixes[-1])
        await comm.Allreduce(own_row, result, operation)
        assert np.array_equal(result, prefixes[-1])
        await comm.Scan(own_row, result, operation)
        assert np.array_equal(result, prefixes[comm.rank])
        await comm.Exscan(own_row, result, operation)
        assert not comm.rank or np.array_equal(result, prefixes[comm.rank - 1])
        if is_long:
            part = np.zeros(blocks.shape[1] // size, "l")
            await comm.Reduce_scatter_block(blocks[comm.rank].copy(), part, operation)
            assert np.array_equal(
                part, prefix_compositions(blocks)[-1][comm.rank * len(part) : (comm.rank + 1) * len(part)]
            )

    run_program(size, program)


@settings(max_examples=40)
@given(SIZES, TYPES, st.data())
def test_vector_calls_transfer_blocks_of_any_sizes(size: int, dtype: str, data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(0, 30), min_size=size, max_size=size))
    root = data.draw(st.integers(0, size - 1))
    starts = [0, *accumulate(count + 1 for count in counts)]  # a gap after each block
    total = starts[-1]
    message = random_rows(1, total, dtype)[0]
    matrix = [[(source + 2 * destination) % 5 for destination in range(size)] for source in range(size)]

    def is_filled(buffer: np.ndarray[Any, Any]) -> bool:
        blocks = zip(starts, counts, strict=False)
        return all(
            np.array_equal(buffer[offset : offset + count], message[offset : offset + count])
            for offset, count in blocks
        ) and not any(buffer[offset + count] for offset, count in zip(starts, counts, strict=False))

    async def program(comm: Comm) -> None:
        own_block = message[starts[comm.rank] : starts[comm.rank] + counts[comm.rank]].copy()
        arguments: list[Any] = [np.zeros(total, dtype), counts, starts[:-1], dtype]
        await comm.Gatherv(own_block, arguments if comm.rank == root else None, root)
        assert comm.rank != root or is_filled(arguments[0])
        arguments[0] = np.zeros(total, dtype)
        await comm.Allgatherv(own_block, arguments)
        assert is_filled(arguments[0])
        part = np.zeros_like(own_block)
        await comm.Scatterv([message, (counts, starts[:-1]), dtype] if comm.rank == root else None, part, root)
        assert np.array_equal(part, own_block)
        sent_counts, arrived = matrix[comm.rank], [row[comm.rank] for row in matrix]
        result = np.zeros(sum(arrived), dtype)
        await comm.Alltoallv([np.full(sum(sent_counts), comm.rank + 1, dtype), sent_counts], [result, arrived])
        assert np.array_equal(result, np.repeat(np.arange(1, size + 1), arrived).astype(dtype))
        summed = np.zeros(counts[comm.rank], dtype)
        row = np.arange(sum(counts)).astype(dtype)
        await comm.Reduce_scatter(row, summed, counts, MPI.MAX if dtype != "F" else MPI.SUM)
        expected = row if dtype != "F" else size * row
        assert np.array_equal(summed, expected[sum(counts[: comm.rank]) : sum(counts[: comm.rank + 1])])

    run_program(size, program)


@given(SIZES)
def test_collective_calls_of_objects_deliver_pickled_values(size: int) -> None:
    async def program(comm: Comm) -> None:
        letter = "abcdefghi"[comm.rank]
        for root in range(size):
            assert await comm.bcast([root] * 2_000 if comm.rank == root else None, root) == [root] * 2_000
            gathered = await comm.gather(letter, root)
            assert gathered == (list("abcdefghi"[:size]) if comm.rank == root else None)
            assert await comm.scatter(gathered, root) == letter
            assert await comm.reduce(letter, root=root) == ("abcdefghi"[:size] if comm.rank == root else None)
        assert await comm.allgather(letter) == list("abcdefghi"[:size])
        assert await comm.alltoall([(comm.rank, destination) for destination in range(size)]) == [
            (source, comm.rank) for source in range(size)
        ]
        assert await comm.allreduce(letter) == "abcdefghi"[:size]
        assert await comm.scan(letter) == "abcdefghi"[: comm.rank + 1]
        assert await comm.exscan(letter) == ("abcdefghi"[: comm.rank] if comm.rank else None)
        assert await comm.allreduce((comm.rank % 3, comm.rank), MPI.MAXLOC) == (min(size - 1, 2), min(size - 1, 2))

    run_program(size, program)


@on_every_device
def test_several_collective_calls_are_in_progress_on_every_protocol(ranks_of: RanksOf) -> None:
    size = 5

    async def program(comm: Comm) -> None:
        await comm.Barrier()
        rows, row = np.zeros((size, 3_000), "i"), np.full(3_000, comm.rank, "i")
        total, exchanged = np.zeros(3_000, "i"), np.zeros((size, 2), "l")
        requests = [
            await comm.Iallgather(row, rows),
            await comm.Iallreduce(row, total),
            await comm.Ialltoall(np.array([(comm.rank, destination) for destination in range(size)], "l"), exchanged),
            await comm.Ibarrier(),
        ]
        assert await comm.bcast({"k": "v" * 5_000} if not comm.rank else None) == {"k": "v" * 5_000}
        await MPI.Request.Waitall(requests)
        assert np.array_equal(rows, np.repeat(np.arange(size), 3_000).reshape(size, -1))
        assert np.array_equal(total, np.full(3_000, 10))
        assert np.array_equal(exchanged, [(source, comm.rank) for source in range(size)])

    run_program(size, program, ranks_of)


@pytest.mark.parametrize("count", [10, 5_000])
def test_no_retransmission_on_emp_if_ranks_enter_the_call_one_by_one(count: int) -> None:
    ranks = Ranks(4)
    ranks.run(*[Comm.Barrier] * 4)  # creates the mailboxes
    before = [agent.firmware.counter_values()["unmatched"] for agent in ranks.wires.agents]

    async def program(comm: Comm) -> None:
        for number in range(20):
            for _ in range((7 * comm.rank + 3 * number) % 11):  # other ranks and the network continue meanwhile
                await comm.Iprobe()
            total = np.zeros(count, "i")
            await comm.Allreduce(np.full(count, comm.rank, "i"), total)
            assert np.array_equal(total, np.full(count, 6))
            assert await comm.bcast(bytes(8 * count) if comm.rank == number % 4 else None, number % 4) == bytes(
                8 * count
            )

    ranks.run(*[program] * 4)
    assert ranks.is_idle()
    counters = [agent.firmware.counter_values() for agent in ranks.wires.agents]
    assert counters[0]["messages_received"] > 40
    assert [counts["unmatched"] for counts in counters] == before


@pytest.mark.parametrize(("sent", "expected"), [(8, 4_000), (4_000, 8), (8, 40_000), (40_000, 8), (40_000, 80_000)])
@on_every_device
def test_a_message_of_unexpected_size_is_an_error_with_every_algorithm(
    ranks_of: RanksOf, sent: int, expected: int
) -> None:
    async def program(comm: Comm) -> None:
        if not comm.rank:
            await comm.Bcast(bytes(sent))
            return
        with pytest.raises(MPIError, match=f"expects {expected} bytes from rank 0") as raised:
            await comm.Bcast(bytearray(expected))
        assert raised.value.Get_error_class() == ERR_TRUNCATE

    async def both_calls(comm: Comm) -> None:
        await program(comm)
        assert await comm.allgather(comm.rank) == [0, 1], "the next call works"

    run_program(2, both_calls, ranks_of)


def test_maxloc_and_minloc_compare_values_and_then_indexes() -> None:
    async def program(comm: Comm) -> None:
        pair = np.dtype([("value", "d"), ("index", "i")], align=True)
        own_pairs = np.array([(comm.rank % 2, comm.rank), (-comm.rank, comm.rank)], pair)
        result = np.zeros(2, pair)
        await comm.Allreduce([own_pairs, 2, MPI.DOUBLE_INT], [result, 2, MPI.DOUBLE_INT], MPI.MAXLOC)
        assert result.tolist() == [(1.0, 1), (0.0, 0)]
        await comm.Allreduce([own_pairs, 2, MPI.DOUBLE_INT], [result, 2, MPI.DOUBLE_INT], MPI.MINLOC)
        assert result.tolist() == [(0.0, 0), (-4.0, 4)]

    run_program(5, program)


def test_columns_of_a_matrix_are_gathered_into_rows_and_rows_into_columns() -> None:
    size, rows = 3, 4

    async def program(comm: Comm) -> None:
        matrix = np.arange(rows * size, dtype="i").reshape(rows, size) * (comm.rank + 1)
        column = MPI.INT.Create_vector(rows, 1, size).Create_resized(0, 4).Commit()
        result = np.zeros((size, rows), "i")
        await comm.Alltoall([matrix, 1, column], [result, rows, MPI.INT])
        assert np.array_equal(
            result, [np.arange(rows) * size * (source + 1) + comm.rank * (source + 1) for source in range(size)]
        )
        rows_received = np.zeros((rows, size), "i")
        await comm.Allgather([result[comm.rank], rows, MPI.INT], [rows_received, 1, column])
        assert np.array_equal(rows_received[:, comm.rank], result[comm.rank])

    run_program(size, program)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ([bytearray(4), [1], [-2], [MPI.BYTE]], "displacements must be 0 or more"),
        (
            [[bytearray(4), 1, MPI.BYTE.Create_vector(2, 1, 2).Commit()], [1], [0], [MPI.BYTE]],
            "a buffer without a datatype",
        ),
    ],
)
def test_alltoallw_rejects_blocks_before_the_buffer_and_buffers_with_a_datatype(
    message: list[Any], reason: str
) -> None:
    async def program(comm: Comm) -> None:
        with pytest.raises(MPIError, match=reason):
            await comm.Alltoallw(message, [bytearray(4), [1], [0], [MPI.BYTE]])

    Ranks(1).run(program)


def test_alltoallw_transfers_blocks_of_given_datatypes() -> None:
    size = 3

    async def program(comm: Comm) -> None:
        sent_bytes, received_bytes = np.zeros(40 * size, "B"), np.zeros(40 * size, "B")
        for destination in range(size):
            sent_bytes[40 * destination : 40 * destination + 16].view("d")[:] = (comm.rank, destination)
        displacements = [40 * rank for rank in range(size)]
        doubles, types = [2] * size, [MPI.DOUBLE] * size
        await comm.Alltoallw(
            [sent_bytes, (doubles, displacements), types], [received_bytes, (doubles, displacements), types]
        )
        for source in range(size):
            assert received_bytes[40 * source : 40 * source + 16].view("d").tolist() == [source, comm.rank]

    run_program(size, program)


def invalid_calls() -> Iterator[tuple[int, Callable[[Comm], Program[Any]]]]:
    ints, floats = np.zeros(4, "i"), np.zeros(4, "d")
    yield ERR_ROOT, lambda comm: comm.Bcast(ints, 3)
    yield ERR_ROOT, lambda comm: comm.reduce(1, root=-1)
    yield ERR_COUNT, lambda comm: comm.Allgather(ints, ints)
    yield ERR_COUNT, lambda comm: comm.Allreduce(ints, floats)
    yield ERR_COUNT, lambda comm: comm.scatter([1], comm.rank)
    yield ERR_COUNT, lambda comm: comm.alltoall([1])
    yield ERR_COUNT, lambda comm: comm.Alltoall(np.zeros(3, "i"), np.zeros(3, "i"))
    yield ERR_OP, lambda comm: comm.Allreduce(floats, np.zeros(4, "d"), MPI.BAND)
    yield ERR_OP, lambda comm: comm.Allreduce(floats, np.zeros(4, "d"), MPI.MAXLOC)
    yield ERR_TYPE, lambda comm: comm.Allreduce(np.zeros(4, "S3"), np.zeros(4, "S3"))


@pytest.mark.parametrize(("error_class", "call"), list(invalid_calls()), ids=lambda value: str(value)[:3])
def test_invalid_arguments_are_rejected(error_class: int, call: Callable[[Comm], Program[Any]]) -> None:
    async def program(comm: Comm) -> None:
        with pytest.raises(MPIError) as raised:
            await call(comm)
        assert raised.value.Get_error_class() == error_class

    run_program(2, program)


def test_a_nonblocking_call_rejects_invalid_arguments_before_its_request_exists() -> None:
    ints, floats = np.zeros(4, "i"), np.zeros(4, "d")

    async def program(comm: Comm) -> int:
        copy = await comm.Dup()
        copy.Free()
        for error_class, call in {
            ERR_ROOT: lambda: comm.Ibcast(ints, 3),
            ERR_COUNT: lambda: comm.Iallgather(ints, ints),
            ERR_OP: lambda: comm.Iallreduce(floats, np.zeros(4, "d"), MPI.BAND),
            ERR_TYPE: lambda: comm.Ireduce(np.zeros(4, "S3"), np.zeros(4, "S3")),
            ERR_COMM: copy.Ibarrier,
        }.items():
            with pytest.raises(MPIError) as raised:
                await call()
            assert raised.value.Get_error_class() == error_class
        return await comm.allreduce(comm.rank)

    assert run_program(2, program) == [1, 1], "the next call works"


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("call", ["Reduce", "Allreduce", "Scan", "Exscan", "Reduce_scatter_block"])
def test_every_rank_rejects_an_operation_that_the_datatype_does_not_support(call: str, size: int) -> None:
    """Including ranks that combine nothing, as a leaf of a tree or a single rank."""
    freed = Op.Create(noncommuting)
    freed.Free()

    async def program(comm: Comm) -> int:
        for operation in (MPI.BAND, MPI.MAXLOC, MPI.REPLACE, freed):
            with pytest.raises(MPIError) as raised:
                await getattr(comm, call)(np.zeros(2 * size, "d"), np.zeros(2 * size, "d"), operation)
            assert raised.value.Get_error_class() == ERR_OP
        return await comm.allreduce(1)

    assert run_program(size, program) == [size] * size


def test_the_error_names_the_ranks_whose_counts_differ() -> None:
    async def program(comm: Comm) -> None:
        buffer = np.zeros(4 + comm.rank, "i")
        if not comm.rank:
            await comm.Bcast(buffer, 0)
            return
        with pytest.raises(MPIError, match="Bcast: rank 1 expects 20 bytes from rank 0, which has sent 16") as raised:
            await comm.Bcast(buffer, 0)
        assert raised.value.Get_error_class() == ERR_TRUNCATE

    run_program(2, program)


def test_a_rejected_call_has_no_effect() -> None:
    async def program(comm: Comm) -> int:
        if comm.rank == 1:
            for invalid_call in (
                comm.Allgather(np.zeros(1, "i"), np.zeros(3, "i")),
                comm.alltoall([1]),
                comm.Bcast(b"", 9),
            ):
                with pytest.raises(MPIError):
                    await invalid_call
        total = np.zeros(1, "i")
        await comm.Allreduce(np.full(1, comm.rank + 1, "i"), total)
        return int(total[0])

    assert run_program(2, program) == [3, 3]


def test_in_place_data_of_the_root_stays_in_place_in_derived_datatypes() -> None:
    async def program(comm: Comm) -> None:
        every_other = MPI.INT.Create_vector(2, 1, 2).Commit()
        own_items, result = np.full(2, comm.rank + 1, "i"), np.zeros(8, "i")
        result[0], result[2] = 1, 1
        arguments: Any = [result, ([1, 1], [0, 1]), every_other.Create_resized(0, 16).Commit()]
        await comm.Gatherv(MPI.IN_PLACE if not comm.rank else own_items, arguments if not comm.rank else None)
        assert comm.rank or result.tolist() == [1, 0, 1, 0, 2, 0, 2, 0]

    run_program(2, program)


def test_an_unknown_algorithm_is_rejected() -> None:
    async def program(comm: Comm) -> None:
        with pytest.raises(MPIError, match="no algorithm 'fast'") as raised:
            comm.algorithms["Bcast"] = "fast"
        with pytest.raises(MPIError, match="no algorithm 'fast'"):
            comm.algorithms.update(Bcast="fast")
        with pytest.raises(MPIError, match="no algorithm 'fast'"):
            comm.algorithms.setdefault("Bcast", "fast")
        assert raised.value.Get_error_class() == ERR_ARG
        comm.algorithms["Bcast"] = "scatter_allgather"
        copy = await comm.Dup()
        assert copy.algorithms == {"Bcast": "scatter_allgather"}

    run_program(2, program)


def test_all_logical_and_bitwise_operations_exist() -> None:
    assert all(isinstance(getattr(MPI, name), Op) for name in [*UFUNCS, "MAXLOC", "MINLOC"])
    assert [op.Is_commutative() for op in (MPI.SUM, Op.Create(noncommuting), Op.Create(noncommuting, True))] == [
        True,
        False,
        True,
    ]
    with pytest.raises(MPIError, match="cannot be freed"):
        MPI.SUM.Free()
    own_operation = Op.Create(noncommuting)
    own_operation.Free()
    with pytest.raises(MPIError, match="was freed"):
        own_operation(1, 2)


def test_the_page_names_every_algorithm() -> None:
    rows = [line.split("|") for line in MPI_PAGE.read_text().splitlines() if line.startswith("| `")]
    documented = {row[1].strip(" `"): set(re.findall("`([a-z_]+)`", row[2])) for row in rows}
    for call, names in NAMES.items():
        assert documented[call] >= set(names)

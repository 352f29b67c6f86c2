"""Schedules of the kernels: their messages with sender, receiver, size and order, but without data, and simulated
computation.

All messages of a rank use the same memory, which is as long as the longest message. For IS each rank counts its keys by
bucket, which determines the sizes of its messages. tests/unit/workloads/test_nas_schedules.py compares the schedules with
the kernels.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from protocols.mpi.collectives import choices
from protocols.mpi.datatypes import BYTE, DOUBLE
from protocols.mpi.operations import MAX
from protocols.mpi.requests import Request
from testbed.workloads.form import Comm
from testbed.workloads.nas.conjugate_gradient import RankGrid
from testbed.workloads.nas.integer_sort import (
    TEST_KEYS,
    bucket_ends,
    change_keys,
    count_buckets,
    keys_per_rank,
)
from testbed.workloads.nas.multigrid import AXES, RankBox
from testbed.workloads.nas.problem_classes import (
    ITERATIONS_OF_IS,
    STEPS_OF_CG,
    CgClass,
    FtClass,
    IsClass,
    MgClass,
)
from testbed.workloads.nas.random_numbers import key_chunks, make_keys

Compute = Callable[[float], Awaitable[None]]
"""Function that uses the processor for the time of a number of operations."""

# Sizes in bytes.
_REAL: Final = 8
_COMPLEX: Final = 16
_INT: Final = 4


class Messages:
    """Messages of one rank without data. All sizes are in bytes."""

    def __init__(self, comm: Comm) -> None:
        self.comm = comm
        self._send_memory, self._receive_memory = bytearray(), bytearray()

    def send_buffer(self, size: int) -> memoryview:
        if len(self._send_memory) < size:
            self._send_memory = bytearray(size)
        return memoryview(self._send_memory)[:size]

    def receive_buffer(self, size: int) -> memoryview:
        if len(self._receive_memory) < size:
            self._receive_memory = bytearray(size)
        return memoryview(self._receive_memory)[:size]

    async def swap(self, peer: int, out_size: int, in_size: int) -> None:
        await self.comm.Sendrecv(self.send_buffer(out_size), peer, 0, self.receive_buffer(in_size), peer, 0)

    async def allreduce_real(self) -> None:
        await self.comm.Allreduce([self.send_buffer(_REAL), DOUBLE], [self.receive_buffer(_REAL), DOUBLE], MAX)

    async def alltoall(self, block: int) -> None:
        """Alltoall. All blocks use the same memory if pairs of ranks exchange them."""
        comm, size = self.comm, self.comm.size
        if choices.alltoall(size, block) != "pairwise":
            await comm.Alltoall(self.send_buffer(block * size), self.receive_buffer(block * size))
            return
        for step in range(1, size):  # a power of two
            await self.swap(comm.rank ^ step, block, block)

    async def alltoallv(self, out_sizes: Sequence[int], in_sizes: Sequence[int]) -> None:
        displacements = [0] * self.comm.size
        sent: list[Any] = [self.send_buffer(max(out_sizes)), out_sizes, displacements, BYTE]
        received: list[Any] = [self.receive_buffer(max(in_sizes)), in_sizes, displacements, BYTE]
        await self.comm.Alltoallv(sent, received)


async def integer_sort(messages: Messages, problem: IsClass, compute: Compute) -> None:
    comm = messages.comm
    share = problem.keys // comm.size
    counts = np.zeros(problem.buckets, np.int64)
    for keys in key_chunks(problem, comm.rank * share, share):
        counts += count_buckets(problem, keys)
    first = make_keys(
        problem, comm.rank * share, min(share, 2 * ITERATIONS_OF_IS + 1)
    )  # only some of these keys change
    half_operations = problem.operations() / comm.size / problem.iterations / 2
    for iteration in range(1, problem.iterations + 1):
        if comm.rank == 0:
            counts -= count_buckets(problem, first)
            change_keys(problem, first, iteration)
            counts += count_buckets(problem, first)
        contribution = np.zeros(problem.buckets + TEST_KEYS, np.int32)
        contribution[: problem.buckets] = counts
        await compute(half_operations)
        totals, received = np.zeros_like(contribution), np.zeros(comm.size, np.int32)
        await comm.Allreduce(contribution.data, totals.data)
        ends = bucket_ends(totals[: problem.buckets].astype(np.int64), comm.size)
        sent = keys_per_rank(contribution[: problem.buckets], ends)
        await comm.Alltoall(sent.data, received.data)
        await messages.alltoallv((_INT * sent).tolist(), (_INT * received).tolist())
        await compute(half_operations)


async def conjugate_gradient(messages: Messages, problem: CgClass, compute: Compute) -> None:
    comm = messages.comm
    grid = RankGrid.of(problem.order, comm.size, comm.rank)
    partners = grid.partners()
    own, other, piece = (end - start for start, end in (grid.half(), grid.half(other=True), grid.piece))
    step_operations = problem.operations() / comm.size / problem.iterations / (STEPS_OF_CG + 1)

    async def add_up(count: int) -> None:
        for partner in reversed(partners):
            await messages.swap(partner, _REAL * count, _REAL * count)

    async def multiply() -> None:
        await compute(step_operations)
        for partner in partners:
            is_other_half = grid.aspect == 2 and partner == partners[0]
            await messages.swap(partner, _REAL * (other if is_other_half else own), _REAL * own)
        if grid.transposed != comm.rank:
            await messages.swap(grid.transposed, _REAL * own, _REAL * piece)

    for _ in range(problem.iterations):
        await add_up(1)
        for _ in range(STEPS_OF_CG):
            await multiply()
            await add_up(1)
            await add_up(1)
        await multiply()
        await add_up(1)
        await add_up(2)


class _MultiGridSchedule:
    """Schedule of MG. An iteration's operations are divided among passes over the points, all with the same number of
    operations per point: four passes on each level, two on the coarsest."""

    def __init__(self, messages: Messages, problem: MgClass, compute: Compute) -> None:
        self._messages = messages
        self._problem = problem
        self._compute = compute
        self._box = RankBox.of(messages.comm.size, messages.comm.rank)
        passes = sum((4 if level > 1 else 2) << 3 * level for level in range(1, problem.log_edge + 1))
        self._pass_operations = problem.operations() / problem.iterations / passes

    async def solve(self) -> None:
        top = self._problem.log_edge
        await self._exchange(top)
        await self._measure()
        for _ in range(self._problem.iterations):
            await self._cycle()
            await self._pass(top)
        await self._measure()

    async def _measure(self) -> None:
        await self._messages.allreduce_real()
        await self._messages.allreduce_real()

    async def _cycle(self) -> None:
        box, top = self._box, self._problem.log_edge
        for level in range(top - 1, 0, -1):
            if box.has_points(level):
                await self._pass(level)
        if box.has_points(1):
            await self._pass(1)
        for level in range(2, top + 1):
            await self._interpolate(level - 1)
            if box.has_points(level):
                await self._work(level)
                await self._pass(level)
                await self._pass(level)

    async def _pass(self, level: int) -> None:
        await self._work(level)
        await self._exchange(level)

    async def _work(self, level: int) -> None:
        z, y, x = (self._box.points(axis, level) for axis in range(3))
        await self._compute(self._pass_operations * z * y * x)

    async def _interpolate(self, level: int) -> None:
        box, messages = self._box, self._messages
        for number, axis in enumerate(AXES):
            role = box.role(axis, level)
            if not box.has_points(level, AXES[number + 1 :]) or not box.has_points(level + 1, AXES[:number]):
                continue
            points = [box.points(each, level + (each in AXES[:number])) + 2 for each in range(3)]
            points[axis] = 2
            size = _REAL * points[0] * points[1] * points[2]
            distance = box.stride(axis, level + 1)
            if role == "sender":
                await messages.comm.Send(messages.send_buffer(size), box.neighbour(axis, -distance), axis)
            elif role == "receiver":
                await messages.comm.Recv(messages.receive_buffer(size), box.neighbour(axis, distance), axis)

    async def _exchange(self, level: int) -> None:
        box, messages = self._box, self._messages
        for axis in AXES:
            if box.is_alone(axis, level):
                continue
            size = _REAL
            for each in range(3):
                if each != axis:
                    size *= box.points(each, level) + (2 if each > axis else 0)
            neighbours = [
                (direction, box.neighbour(axis, direction * box.stride(axis, level))) for direction in (1, -1)
            ]
            receive_buffer, send_buffer = messages.receive_buffer(2 * size), messages.send_buffer(size)
            requests = [
                await messages.comm.Irecv(receive_buffer[number * size : (number + 1) * size], rank, 1 - direction)
                for number, (direction, rank) in enumerate(reversed(neighbours))
            ]
            requests += [await messages.comm.Isend(send_buffer, rank, direction + 1) for direction, rank in neighbours]
            await Request.Waitall(requests)


async def multigrid(messages: Messages, problem: MgClass, compute: Compute) -> None:
    await _MultiGridSchedule(messages, problem, compute).solve()


async def fourier_transform(messages: Messages, problem: FtClass, compute: Compute) -> None:
    comm = messages.comm
    block = _COMPLEX * problem.points // comm.size**2
    half_operations = problem.operations() / comm.size / (problem.iterations + 1) / 2
    for iteration in range(problem.iterations + 1):
        await compute(half_operations)
        await messages.alltoall(block)
        await compute(half_operations)
        if iteration:
            await comm.Reduce([messages.send_buffer(_COMPLEX), DOUBLE], [messages.receive_buffer(_COMPLEX), DOUBLE])


SCHEDULES: Final[Mapping[str, Callable[[Messages, Any, Compute], Awaitable[None]]]] = {
    "is": integer_sort, "cg": conjugate_gradient, "mg": multigrid, "ft": fourier_transform,
}  # fmt: skip

"""IS: rank the keys of all ranks ten times, by buckets, and sort them (RNR-94-007, section 2.3.2 and 3.5)."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from testbed.workloads.form import Comm, VerificationError
from testbed.workloads.nas.problem_classes import ITERATIONS_OF_IS, IsClass
from testbed.workloads.nas.random_numbers import Array, key_chunks

TESTED: Final = 5  # keys of partial verification


def change(problem: IsClass, keys: Array, iteration: int) -> None:
    """Make the two changes of keys of an iteration, at rank 0, so that the previous result cannot be reused."""
    keys[iteration] = iteration
    keys[iteration + ITERATIONS_OF_IS] = (1 << problem.log_max) - iteration


def bucket_shift(problem: IsClass) -> int:
    return problem.log_max - problem.log_buckets


def count_buckets(problem: IsClass, keys: Array) -> Array:
    return np.bincount(keys >> bucket_shift(problem), minlength=problem.buckets)


def last_buckets(totals: Array, ranks: int) -> Array:
    """Return the end of each rank's buckets: the last bucket reaches the rank's share of all keys."""
    share = int(totals.sum()) // ranks
    ends = np.searchsorted(np.cumsum(totals), share * np.arange(1, ranks + 1)) + 1
    ends[-1] = len(totals)
    return ends


def parcels(counts: Array, ends: Array) -> Array:
    """Return the number of keys to send to each rank. counts: counts of this rank's keys by bucket."""
    sums = np.concatenate(([0], np.cumsum(counts)))
    return np.diff(sums[np.concatenate(([0], ends))]).astype(np.int32)


class IntegerSort:
    """One rank of the sort."""

    def __init__(self, comm: Comm, problem: IsClass) -> None:
        self._comm = comm
        self._problem = problem
        self._share = problem.keys // comm.size
        self._keys = np.concatenate(list(key_chunks(problem, comm.rank * self._share, self._share)))
        self._mine: Array = self._keys
        self._tested = 0

    async def prepare(self) -> None:
        """Do nothing: the data need no communication."""

    async def solve(self) -> None:
        for iteration in range(1, ITERATIONS_OF_IS + 1):
            await self._rank_keys(iteration)

    async def verify(self) -> float:
        """Check that all keys are in order over all ranks, and that every partial verification was made; return their
        number. Raises VerificationError."""
        comm, ordered = self._comm, np.sort(self._mine)
        greatest = np.array([ordered[-1] if len(ordered) else 0], np.int32)
        before = np.zeros(1, np.int32)
        received = await comm.Irecv(before.data, comm.rank - 1, 0) if comm.rank else None
        if comm.rank + 1 < comm.size:
            await comm.Send(greatest.data, comm.rank + 1, 0)
        if received is not None:
            await received.Wait()
            if len(ordered) and before[0] > ordered[0]:
                raise VerificationError(
                    f"IS: rank {comm.rank} has the key {ordered[0]}, and the rank before it {before[0]}"
                )
        totals = np.zeros(2, np.int64)
        await comm.Allreduce(np.array([self._tested, len(ordered)], np.int64).data, totals.data)
        if totals[1] != self._problem.keys:
            raise VerificationError(f"IS: {totals[1]} keys instead of {self._problem.keys}")
        if totals[0] != TESTED * ITERATIONS_OF_IS:
            raise VerificationError(f"IS: {totals[0]} ranks of keys were right, of {TESTED * ITERATIONS_OF_IS}")
        return float(totals[0])

    async def _rank_keys(self, iteration: int) -> None:
        comm, problem = self._comm, self._problem
        if comm.rank == 0:
            change(problem, self._keys, iteration)
        own = np.zeros(problem.buckets + TESTED, np.int32)
        own[: problem.buckets] = count_buckets(problem, self._keys)
        for place, index in enumerate(problem.indexes):
            if index // self._share == comm.rank:
                own[problem.buckets + place] = self._keys[index % self._share]
        totals = np.zeros_like(own)
        await comm.Allreduce(own.data, totals.data)
        buckets, tested = totals[: problem.buckets].astype(np.int64), totals[problem.buckets :]
        ends = last_buckets(buckets, comm.size)
        sent, received_counts = parcels(own[: problem.buckets], ends), np.zeros(comm.size, np.int32)
        await comm.Alltoall(sent.data, received_counts.data)
        grouped = self._keys[np.argsort((self._keys >> bucket_shift(problem)).astype(np.uint16), kind="stable")]
        self._mine = np.empty(int(received_counts.sum()), np.int32)
        out: list[Any] = [grouped.data, sent.tolist()]
        into: list[Any] = [self._mine.data, received_counts.tolist()]
        await comm.Alltoallv(out, into)
        begin, end = int(ends[comm.rank - 1]) if comm.rank else 0, int(ends[comm.rank])
        self._check_ranks(iteration, tested, begin, end, int(buckets[:begin].sum()))

    def _check_ranks(self, iteration: int, tested: Array, begin: int, end: int, below: int) -> None:
        """Check the ranks of those of the five test keys that are in this rank's buckets. begin, end: begin and end of the
        buckets. below: number of keys in lower buckets."""
        shift = bucket_shift(self._problem)
        least = begin << shift
        population = np.cumsum(np.bincount(self._mine - least, minlength=(end - begin) << shift))
        for place, key in enumerate(tested.tolist()):
            if not least <= key < end << shift:
                continue
            rank = below + (int(population[key - least - 1]) if key > least else 0)
            factor, offset = self._problem.growth[place]
            expected = self._problem.ranks[place] + factor * (iteration - offset)
            if rank != expected:
                raise VerificationError(f"IS, iteration {iteration}: the key {key} has rank {rank}, not {expected}")
            self._tested += 1

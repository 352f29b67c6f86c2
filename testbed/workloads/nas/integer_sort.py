"""IS: rank the keys of all ranks ten times, by buckets, and sort them (RNR-94-007, sections 2.3.2 and 3.5)."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from testbed.workloads.form import Comm, VerificationError
from testbed.workloads.nas.problem_classes import ITERATIONS_OF_IS, IsClass
from testbed.workloads.nas.random_numbers import Array, key_chunks

TEST_KEYS: Final = 5
"""Number of keys whose ranks are verified in each iteration."""


def change_keys(problem: IsClass, keys: Array, iteration: int) -> None:
    """Change two keys of rank 0, as in each iteration, so that the previous result cannot be reused."""
    keys[iteration] = iteration
    keys[iteration + ITERATIONS_OF_IS] = (1 << problem.log_max) - iteration


def bucket_shift(problem: IsClass) -> int:
    return problem.log_max - problem.log_buckets


def count_buckets(problem: IsClass, keys: Array) -> Array:
    return np.bincount(keys >> bucket_shift(problem), minlength=problem.buckets)


def bucket_ends(totals: Array, ranks: int) -> Array:
    """Return the end of each rank's buckets, at which the keys so far reach the share of all ranks so far. totals: counts of
    all keys by bucket."""
    share = int(totals.sum()) // ranks
    ends = np.searchsorted(np.cumsum(totals), share * np.arange(1, ranks + 1)) + 1
    ends[-1] = len(totals)
    return ends


def keys_per_rank(counts: Array, ends: Array) -> Array:
    """Return the number of keys to send to each rank. counts: counts of this rank's keys by bucket. ends: see
    `bucket_ends`."""
    sums = np.concatenate(([0], np.cumsum(counts)))
    return np.diff(sums[np.concatenate(([0], ends))]).astype(np.int32)


class IntegerSort:
    """One rank of the sort."""

    def __init__(self, comm: Comm, problem: IsClass) -> None:
        self._comm = comm
        self._problem = problem
        self._share = problem.keys // comm.size
        self._keys = np.concatenate(list(key_chunks(problem, comm.rank * self._share, self._share)))
        self._bucket_keys: Array = self._keys  # keys in this rank's buckets
        self._verified = 0  # number of test keys whose rank was right

    async def prepare(self) -> None:
        """Do nothing: the data need no communication."""

    async def solve(self) -> None:
        for iteration in range(1, ITERATIONS_OF_IS + 1):
            await self._rank_keys(iteration)

    async def verify(self) -> float:
        """Check that all keys are in order over all ranks, and that every test key's rank was verified; return the number
        of these verifications. Raises VerificationError."""
        comm, ordered = self._comm, np.sort(self._bucket_keys)
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
        await comm.Allreduce(np.array([self._verified, len(ordered)], np.int64).data, totals.data)
        if totals[1] != self._problem.keys:
            raise VerificationError(f"IS: {totals[1]} keys instead of {self._problem.keys}")
        if totals[0] != TEST_KEYS * ITERATIONS_OF_IS:
            raise VerificationError(
                f"IS: {totals[0]} of {TEST_KEYS * ITERATIONS_OF_IS} ranks of test keys were verified"
            )
        return float(totals[0])

    async def _rank_keys(self, iteration: int) -> None:
        comm, problem = self._comm, self._problem
        if comm.rank == 0:
            change_keys(problem, self._keys, iteration)
        contribution = np.zeros(problem.buckets + TEST_KEYS, np.int32)
        contribution[: problem.buckets] = count_buckets(problem, self._keys)
        for number, index in enumerate(problem.indexes):
            if index // self._share == comm.rank:
                contribution[problem.buckets + number] = self._keys[index % self._share]
        totals = np.zeros_like(contribution)
        await comm.Allreduce(contribution.data, totals.data)
        buckets, test_keys = totals[: problem.buckets].astype(np.int64), totals[problem.buckets :]
        ends = bucket_ends(buckets, comm.size)
        sent_counts = keys_per_rank(contribution[: problem.buckets], ends)
        received_counts = np.zeros(comm.size, np.int32)
        await comm.Alltoall(sent_counts.data, received_counts.data)
        grouped = self._keys[np.argsort((self._keys >> bucket_shift(problem)).astype(np.uint16), kind="stable")]
        self._bucket_keys = np.empty(int(received_counts.sum()), np.int32)
        out: list[Any] = [grouped.data, sent_counts.tolist()]
        into: list[Any] = [self._bucket_keys.data, received_counts.tolist()]
        await comm.Alltoallv(out, into)
        start, end = int(ends[comm.rank - 1]) if comm.rank else 0, int(ends[comm.rank])
        self._check_ranks(iteration, test_keys, start, end, int(buckets[:start].sum()))

    def _check_ranks(self, iteration: int, test_keys: Array, start: int, end: int, below: int) -> None:
        """Check the ranks of the test keys that are in this rank's buckets. start, end: start and end of these buckets.
        below: number of keys in lower buckets."""
        shift = bucket_shift(self._problem)
        min_key = start << shift
        counts_up_to = np.cumsum(np.bincount(self._bucket_keys - min_key, minlength=(end - start) << shift))
        for number, key in enumerate(test_keys.tolist()):
            if not min_key <= key < end << shift:
                continue
            rank = below + (int(counts_up_to[key - min_key - 1]) if key > min_key else 0)
            factor, offset = self._problem.growth[number]
            expected = self._problem.ranks[number] + factor * (iteration - offset)
            if rank != expected:
                raise VerificationError(f"IS, iteration {iteration}: the key {key} has rank {rank}, not {expected}")
            self._verified += 1

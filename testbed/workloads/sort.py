"""Parallel sort: a verified sample sort of keys that are distributed over all ranks."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from itertools import pairwise
from typing import Final

from testbed.workloads.form import Comm, Node, VerificationError, Workload
from testbed.workloads.workload_settings import LARGEST_MESSAGE

_COUNT, _KEYS, _EDGE = 1, 2, 3
_OVERSAMPLING: Final = 16  # samples of each rank for each splitter
_TYPE: Final = "I"  # 32-bit keys
_MAX_KEYS: Final = LARGEST_MESSAGE // array(_TYPE).itemsize  # of a rank, since all of them may go to one other rank


class Sort(Workload):
    """Sample sort of random 32-bit keys that are distributed over all ranks, with one all-to-all exchange.

    Verified: every rank's keys are in order, no key of a rank is below the last key of the previous rank, and no key is lost
    or new. keys: number of keys of each rank.
    """

    supports_restarts = False

    keys: int = 20_000

    def __post_init__(self) -> None:
        if not 1 <= self.keys <= _MAX_KEYS:
            raise ValueError(f"keys: 1 to {_MAX_KEYS:,}")

    async def rank(self, comm: Comm, node: Node) -> int:
        rng = node.random("keys")
        unsorted = array(_TYPE, rng.randbytes(self.keys * array(_TYPE).itemsize))
        await node.barrier()
        started = node.now()
        gathered = await node.gather(sorted(rng.sample(unsorted, min(len(unsorted), _OVERSAMPLING * comm.size))))
        samples = sorted(key for rank_samples in gathered or () for key in rank_samples)
        root_splitters = [samples[len(samples) * rank // comm.size] for rank in range(1, comm.size)] if samples else []
        splitters = await node.share(root_splitters)
        received = await _exchange(comm, _split(unsorted, splitters))
        merged = array(_TYPE, sorted(key for keys in received for key in keys))
        await node.barrier()
        elapsed = node.now() - started
        await self._verify(comm, node, unsorted, merged)
        results = await node.gather((elapsed, len(merged)))
        if results is not None:
            slowest = max(time for time, _ in results)
            counts = [count for _, count in results]
            keys = self.keys * comm.size
            node.row(
                keys=keys, took_ns=slowest, keys_per_s=1e9 * keys / max(1, slowest), largest_share=max(counts) / keys
            )
        return len(merged)

    async def _verify(self, comm: Comm, node: Node, keys: array[int], merged: array[int]) -> None:
        if any(first > second for first, second in pairwise(merged)):
            raise VerificationError(f"the keys of rank {comm.rank} are not in order")
        await _check_edge(comm, merged)
        sums = await node.gather((len(keys), sum(keys), _checksum(keys), len(merged), sum(merged), _checksum(merged)))
        if sums is not None:
            before = [sum(column) for column in zip(*(values[:3] for values in sums), strict=True)]
            after = [sum(column) for column in zip(*(values[3:] for values in sums), strict=True)]
            if before != after:
                raise VerificationError(
                    f"{before[0]} keys before and {after[0]} after, with other sums: keys are lost or new"
                )


def _split(keys: array[int], splitters: list[int]) -> list[array[int]]:
    """Sort keys, and split them into a part for each rank, in order."""
    ordered = array(_TYPE, sorted(keys))
    edges = [0, *(bisect_right(ordered, splitter) for splitter in splitters), len(ordered)]
    return [ordered[first:last] for first, last in pairwise(edges)]


async def _exchange(comm: Comm, parts: list[array[int]]) -> list[array[int]]:
    """Exchange parts with all ranks in the order of their distance, so that each step is a permutation."""
    received = [parts[comm.rank]]
    for distance in range(1, comm.size):
        destination, source = (comm.rank + distance) % comm.size, (comm.rank - distance) % comm.size
        length = array("Q", [0])
        await comm.Sendrecv(array("Q", [len(parts[destination])]), destination, _COUNT, length, source, _COUNT)
        keys = array(_TYPE, bytes(array(_TYPE).itemsize * length[0]))
        await comm.Sendrecv(parts[destination], destination, _KEYS, keys, source, _KEYS)
        received.append(keys)
    return received


async def _check_edge(comm: Comm, merged: array[int]) -> None:
    """Check that no key is below the maximum of all previous ranks, which is passed from rank to rank."""
    maximum = array("q", [-1])
    if comm.rank:
        await comm.Recv(maximum, comm.rank - 1, _EDGE)
        if merged and merged[0] < maximum[0]:
            raise VerificationError(f"rank {comm.rank} has the key {merged[0]}, and a rank before it {maximum[0]}")
    if comm.rank + 1 < comm.size:
        await comm.Send(array("q", [merged[-1] if merged else maximum[0]]), comm.rank + 1, _EDGE)


def _checksum(keys: array[int]) -> int:
    """Return a checksum that also detects changes of keys that leave their sum unchanged."""
    return sum(key * key % 2_147_483_647 for key in keys)

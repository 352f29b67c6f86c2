"""Parallel sort: a sample sort of keys that are spread over all ranks, verified."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from itertools import pairwise
from typing import Final

from testbed.workloads.form import Comm, Node, VerificationError, Workload
from testbed.workloads.workload_settings import LARGEST_MESSAGE

_COUNT, _KEYS, _EDGE = 1, 2, 3
_OVERSAMPLED: Final = 16  # samples of each rank for each splitter
_TYPE: Final = "I"  # 32-bit keys
_MAX: Final = LARGEST_MESSAGE // array(_TYPE).itemsize  # all of a rank's may go to one other


class Sort(Workload):
    """Sort random 32-bit keys that are spread over all ranks: splitters from samples, one exchange of all with all.

    Verified: every rank's keys are in order, no key of a rank is below the last of the rank before, and no key is lost or
    new. keys: of each rank.
    """

    bears_restarts = False

    keys: int = 20_000

    def __post_init__(self) -> None:
        if not 1 <= self.keys <= _MAX:
            raise ValueError(f"keys: 1 to {_MAX:,}")

    async def rank(self, comm: Comm, node: Node) -> int:
        chance = node.random("keys")
        unsorted = array(_TYPE, chance.randbytes(self.keys * array(_TYPE).itemsize))
        await node.barrier()
        started = node.now()
        gathered = await node.gather(sorted(chance.sample(unsorted, min(len(unsorted), _OVERSAMPLED * comm.size))))
        samples = sorted(key for some in gathered or () for key in some)
        splitters = await node.share([samples[len(samples) * part // comm.size] for part in range(1, comm.size)] if samples
                                     else [])  # fmt: skip
        received = await _exchange(comm, _parts(unsorted, splitters))
        merged = array(_TYPE, sorted(key for part in received for key in part))
        await node.barrier()
        elapsed = node.now() - started
        await self._verify(comm, node, unsorted, merged)
        everybody = await node.gather((elapsed, len(merged)))
        if everybody is not None:
            slowest = max(time for time, _ in everybody)
            counts = [count for _, count in everybody]
            keys = self.keys * comm.size
            node.row(
                keys=keys, took_ns=slowest, keys_per_s=1e9 * keys / max(1, slowest), largest_share=max(counts) / keys
            )
        return len(merged)

    async def _verify(self, comm: Comm, node: Node, keys: array[int], merged: array[int]) -> None:
        if any(first > second for first, second in pairwise(merged)):
            raise VerificationError(f"the keys of rank {comm.rank} are not in order")
        await _check_edge(comm, merged)
        sums = await node.gather((len(keys), sum(keys), _mixed(keys), len(merged), sum(merged), _mixed(merged)))
        if sums is not None:
            before = [sum(column) for column in zip(*(values[:3] for values in sums), strict=True)]
            after = [sum(column) for column in zip(*(values[3:] for values in sums), strict=True)]
            if before != after:
                raise VerificationError(
                    f"{before[0]} keys before and {after[0]} after, with other sums: keys are lost or new"
                )


def _parts(keys: array[int], splitters: list[int]) -> list[array[int]]:
    """Split the sorted keys into the parts of all ranks, in order."""
    ordered = array(_TYPE, sorted(keys))
    edges = [0, *(bisect_right(ordered, splitter) for splitter in splitters), len(ordered)]
    return [ordered[first:last] for first, last in pairwise(edges)]


async def _exchange(comm: Comm, parts: list[array[int]]) -> list[array[int]]:
    """Exchange parts with all ranks at growing distance, so that no rank is the target of all at once."""
    received = [parts[comm.rank]]
    for distance in range(1, comm.size):
        to, source = (comm.rank + distance) % comm.size, (comm.rank - distance) % comm.size
        length = array("Q", [0])
        await comm.Sendrecv(array("Q", [len(parts[to])]), to, _COUNT, length, source, _COUNT)
        keys = array(_TYPE, bytes(array(_TYPE).itemsize * length[0]))
        await comm.Sendrecv(parts[to], to, _KEYS, keys, source, _KEYS)
        received.append(keys)
    return received


async def _check_edge(comm: Comm, merged: array[int]) -> None:
    """Check that no key is below the greatest of all ranks before, which is passed from rank to rank."""
    greatest = array("q", [-1])
    if comm.rank:
        await comm.Recv(greatest, comm.rank - 1, _EDGE)
        if merged and merged[0] < greatest[0]:
            raise VerificationError(f"rank {comm.rank} has the key {merged[0]}, and a rank before it {greatest[0]}")
    if comm.rank + 1 < comm.size:
        await comm.Send(array("q", [merged[-1] if merged else greatest[0]]), comm.rank + 1, _EDGE)


def _mixed(keys: array[int]) -> int:
    """Return a sum that detects changes of keys that keep their plain sum."""
    return sum(key * key % 2_147_483_647 for key in keys)

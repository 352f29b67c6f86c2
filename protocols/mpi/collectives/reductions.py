"""Collective calls that reduce: allreduce, reduce-scatter, scan.

Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", 2005, sections 4.4 and 4.5;
Rabenseifner, "Optimization of collective reduction operations", 2004. Where the number of ranks is no power of two, the
first ones meet in pairs before and after (section 4.5): the odd one of each stands for both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from protocols.mpi.collectives.collective_exchange import Exchange, parts, power_below
from protocols.mpi.datatypes import Datatype
from protocols.mpi.operations import Op

Cut = tuple[int, int]
"""Begin and end of a part, in bytes."""


class Reduction(NamedTuple):
    """An operation on a datatype."""

    op: Op
    datatype: Datatype

    @property
    def commutes(self) -> bool:
        return self.op.commutes

    def append(self, data: memoryview, theirs: memoryview) -> None:
        """data = data op theirs; `theirs` is overwritten."""
        self.op.combine(data, theirs, self.datatype)
        data[:] = theirs

    def prepend(self, theirs: memoryview, data: memoryview) -> None:
        """data = theirs op data."""
        self.op.combine(theirs, data, self.datatype)


async def _pair_up(exchange: Exchange, reduction: Reduction, data: memoryview) -> int:
    """Reduce to a power of two of ranks that go on. Returns this rank's number among them; -1: another stands for it."""
    rank, extra = exchange.rank, exchange.size - power_below(exchange.size)
    if rank >= 2 * extra:
        return rank - extra
    if not rank % 2:
        await exchange.send(rank + 1, data)
        return -1
    theirs = memoryview(bytearray(len(data)))
    await exchange.receive(rank - 1, theirs)
    reduction.prepend(theirs, data)
    return rank // 2


def _rank_of(number: int, size: int) -> int:
    """Return the rank of a number that `_pair_up` has given."""
    extra = size - power_below(size)
    return 2 * number + 1 if number < extra else number + extra


async def _split_up(exchange: Exchange, data: memoryview) -> None:
    """Give the result to the ranks that others stood for."""
    rank, extra = exchange.rank, exchange.size - power_below(exchange.size)
    if rank < 2 * extra:
        await (exchange.send(rank - 1, data) if rank % 2 else exchange.receive(rank + 1, data))


async def allreduce_doubling(exchange: Exchange, reduction: Reduction, data: memoryview) -> None:
    """Recursive doubling: log2(n) rounds, in each of which pairs swap all of their data."""
    number, distance = await _pair_up(exchange, reduction, data), 1
    theirs = memoryview(bytearray(len(data)))
    while number >= 0 and distance < power_below(exchange.size):
        other = number ^ distance
        peer = _rank_of(other, exchange.size)
        await exchange.swap(peer, data, peer, theirs)
        if other < number:
            reduction.prepend(theirs, data)
        else:
            reduction.append(data, theirs)
        distance *= 2
    await _split_up(exchange, data)


async def allreduce_in_parts(exchange: Exchange, reduction: Reduction, data: memoryview) -> None:
    """Rabenseifner's: a reduce-scatter by recursive halving, and an allgather by recursive doubling. For operations that
    commute."""
    number = await _pair_up(exchange, reduction, data)
    if number >= 0:
        power = power_below(exchange.size)
        cuts = parts(len(data), power, reduction.datatype.extent)
        await _halve(exchange, reduction, data, number, cuts)
        distance = 1
        while distance < power:
            other = number ^ distance
            peer, ours, theirs = _rank_of(other, exchange.size), number & -distance, other & -distance
            await exchange.swap(
                peer,
                data[cuts[ours][0] : cuts[ours + distance - 1][1]],
                peer,
                data[cuts[theirs][0] : cuts[theirs + distance - 1][1]],
            )
            distance *= 2
    await _split_up(exchange, data)


async def _halve(exchange: Exchange, reduction: Reduction, data: memoryview, number: int, cuts: Sequence[Cut]) -> None:
    """Recursive halving among a power of two of ranks: afterwards, part `number` is reduced."""
    distance = len(cuts) // 2
    while distance:
        other = number ^ distance
        peer, ours, theirs = _rank_of(other, exchange.size), number & -distance, other & -distance
        keep = data[cuts[ours][0] : cuts[ours + distance - 1][1]]
        came = memoryview(bytearray(len(keep)))
        await exchange.swap(peer, data[cuts[theirs][0] : cuts[theirs + distance - 1][1]], peer, came)
        reduction.prepend(came, keep)
        distance //= 2


async def reduce_to_parts(exchange: Exchange, reduction: Reduction, data: memoryview) -> list[Cut]:
    """Reduce such that each rank has a part of the result in place, by recursive halving. Returns each rank's part; those
    that another stood for have none."""
    number, power = await _pair_up(exchange, reduction, data), power_below(exchange.size)
    cuts = parts(len(data), power, reduction.datatype.extent)
    if number >= 0:
        await _halve(exchange, reduction, data, number, cuts)
    by_rank = dict.fromkeys(range(exchange.size), (0, 0))
    by_rank |= {_rank_of(place, exchange.size): cut for place, cut in enumerate(cuts)}
    return [by_rank[rank] for rank in range(exchange.size)]


async def reduce_scatter_pairwise(
    exchange: Exchange, reduction: Reduction, data: memoryview, cuts: Sequence[Cut], out: memoryview
) -> None:
    """n - 1 rounds: each rank sends every other one the part that this one reduces. For operations that commute. data:
    changed. cuts: each rank's part."""
    rank, size = exchange.rank, exchange.size
    mine = data[slice(*cuts[rank])]
    came = memoryview(bytearray(len(mine)))
    for step in range(1, size):
        to, source = (rank + step) % size, (rank - step) % size
        await exchange.swap(to, data[slice(*cuts[to])], source, came)
        reduction.prepend(came, mine)
    out[:] = mine


async def scan_doubling(exchange: Exchange, reduction: Reduction, data: memoryview, inclusive: bool) -> None:
    """Recursive doubling: `data` becomes the reduction of all lower ranks' data, and of its own if inclusive. If not, rank
    0's stays as it was. MPICH's intra-communicator scan: log2(n) rounds."""
    rank, size, distance = exchange.rank, exchange.size, 1
    group = memoryview(bytearray(data))  # of all ranks that it has met
    below = memoryview(bytearray(data)) if inclusive else None  # of the lower ones of them
    theirs = memoryview(bytearray(len(data)))
    while distance < size:
        other = rank ^ distance
        if other < size:
            await exchange.swap(other, group, other, theirs)
            if other < rank:
                if below is None:
                    below = memoryview(bytearray(theirs))
                else:
                    reduction.prepend(theirs, below)
                reduction.prepend(theirs, group)
            else:
                reduction.append(group, theirs)
        distance *= 2
    if below is not None:
        data[:] = below

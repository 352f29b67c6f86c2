"""Algorithms of reductions at all ranks: allreduce, reduce-scatter and scan.

Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", 2005, sections 4.4 and 4.5;
Rabenseifner, "Optimization of collective reduction operations", 2004. If the number of ranks is not a power of two, the
first ranks combine their data in pairs (section 4.5): the odd rank of each pair takes part for both ranks, and sends the
result to the even rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from protocols.mpi.collectives.collective_exchange import Exchange, floor_power_of_two, split_evenly
from protocols.mpi.datatypes import Datatype
from protocols.mpi.operations import Op

Bounds = tuple[int, int]
"""Begin and end of a part of a message, in bytes."""


class Reduction(NamedTuple):
    """An operation on a datatype."""

    op: Op
    datatype: Datatype

    @property
    def commutes(self) -> bool:
        return self.op.commutes

    def append(self, data: memoryview, received: memoryview) -> None:
        """Set `data` to ``data op received``; `received` is overwritten."""
        self.op.combine(data, received, self.datatype)
        data[:] = received

    def prepend(self, received: memoryview, data: memoryview) -> None:
        """Set `data` to ``received op data``."""
        self.op.combine(received, data, self.datatype)


async def _combine_pairs(exchange: Exchange, reduction: Reduction, data: memoryview) -> int:
    """Combine the data of pairs, so that the number of ranks that take part is a power of two. Returns this rank's number
    among these ranks; -1 if it does not take part."""
    rank, extra = exchange.rank, exchange.size - floor_power_of_two(exchange.size)
    if rank >= 2 * extra:
        return rank - extra
    if not rank % 2:
        await exchange.send(rank + 1, data)
        return -1
    received = memoryview(bytearray(len(data)))
    await exchange.receive(rank - 1, received)
    reduction.prepend(received, data)
    return rank // 2


def _rank_of(number: int, size: int) -> int:
    """Convert a number from `_combine_pairs` to a rank of the communicator."""
    extra = size - floor_power_of_two(size)
    return 2 * number + 1 if number < extra else number + extra


async def _distribute_to_pairs(exchange: Exchange, data: memoryview) -> None:
    """Send the result to the ranks that did not take part."""
    rank, extra = exchange.rank, exchange.size - floor_power_of_two(exchange.size)
    if rank < 2 * extra:
        await (exchange.send(rank - 1, data) if rank % 2 else exchange.receive(rank + 1, data))


async def allreduce_doubling(exchange: Exchange, reduction: Reduction, data: memoryview) -> None:
    """Allreduce by recursive doubling: log2(n) rounds, in each of which pairs of ranks exchange all of their data."""
    number, distance = await _combine_pairs(exchange, reduction, data), 1
    received = memoryview(bytearray(len(data)))
    while number >= 0 and distance < floor_power_of_two(exchange.size):
        partner = number ^ distance
        peer = _rank_of(partner, exchange.size)
        await exchange.sendrecv(peer, data, peer, received)
        if partner < number:
            reduction.prepend(received, data)
        else:
            reduction.append(data, received)
        distance *= 2
    await _distribute_to_pairs(exchange, data)


async def allreduce_rabenseifner(exchange: Exchange, reduction: Reduction, data: memoryview) -> None:
    """Allreduce by Rabenseifner's algorithm: a reduce-scatter by recursive halving, and an allgather by recursive doubling.
    For operations that commute."""
    number = await _combine_pairs(exchange, reduction, data)
    if number >= 0:
        power = floor_power_of_two(exchange.size)
        bounds = split_evenly(len(data), power, reduction.datatype.extent)
        await _halve(exchange, reduction, data, number, bounds)
        distance = 1
        while distance < power:
            partner = number ^ distance
            peer, own_first, partner_first = _rank_of(partner, exchange.size), number & -distance, partner & -distance
            await exchange.sendrecv(
                peer,
                data[bounds[own_first][0] : bounds[own_first + distance - 1][1]],
                peer,
                data[bounds[partner_first][0] : bounds[partner_first + distance - 1][1]],
            )
            distance *= 2
    await _distribute_to_pairs(exchange, data)


async def _halve(
    exchange: Exchange, reduction: Reduction, data: memoryview, number: int, bounds: Sequence[Bounds]
) -> None:
    """Reduce-scatter by recursive halving, for a power of two of ranks. Afterwards, part `number` of `data` has the
    result."""
    distance = len(bounds) // 2
    while distance:
        partner = number ^ distance
        peer, own_first, partner_first = _rank_of(partner, exchange.size), number & -distance, partner & -distance
        kept_part = data[bounds[own_first][0] : bounds[own_first + distance - 1][1]]
        received = memoryview(bytearray(len(kept_part)))
        await exchange.sendrecv(
            peer, data[bounds[partner_first][0] : bounds[partner_first + distance - 1][1]], peer, received
        )
        reduction.prepend(received, kept_part)
        distance //= 2


async def reduce_scatter_halving(exchange: Exchange, reduction: Reduction, data: memoryview) -> list[Bounds]:
    """Reduce-scatter in place, by recursive halving. Returns the bounds of each rank's part of the result, which is
    empty for ranks that did not take part."""
    number, power = await _combine_pairs(exchange, reduction, data), floor_power_of_two(exchange.size)
    bounds = split_evenly(len(data), power, reduction.datatype.extent)
    if number >= 0:
        await _halve(exchange, reduction, data, number, bounds)
    by_rank = dict.fromkeys(range(exchange.size), (0, 0))
    by_rank |= {_rank_of(index, exchange.size): part for index, part in enumerate(bounds)}
    return [by_rank[rank] for rank in range(exchange.size)]


async def reduce_scatter_pairwise(
    exchange: Exchange, reduction: Reduction, data: memoryview, bounds: Sequence[Bounds], out: memoryview
) -> None:
    """Reduce-scatter in n - 1 rounds: each rank sends every other rank the part that the other rank reduces. For operations
    that commute. data: overwritten. bounds: of each rank's part. out: memory for this rank's part."""
    rank, size = exchange.rank, exchange.size
    own_part = data[slice(*bounds[rank])]
    received = memoryview(bytearray(len(own_part)))
    for offset in range(1, size):
        destination, source = (rank + offset) % size, (rank - offset) % size
        await exchange.sendrecv(destination, data[slice(*bounds[destination])], source, received)
        reduction.prepend(received, own_part)
    out[:] = own_part


async def scan_doubling(exchange: Exchange, reduction: Reduction, data: memoryview, inclusive: bool) -> None:
    """Scan by recursive doubling, in log2(n) rounds, as in MPICH. `data` becomes the reduction of the data of all lower
    ranks and, if inclusive, of this rank. If not inclusive, the data of rank 0 stays unchanged."""
    rank, size, distance = exchange.rank, exchange.size, 1
    group_result = memoryview(bytearray(data))  # of this rank and all ranks with which it has exchanged data
    lower_result = (
        memoryview(bytearray(data)) if inclusive else None
    )  # of the lower ranks among these, and of this rank
    received = memoryview(bytearray(len(data)))
    while distance < size:
        partner = rank ^ distance
        if partner < size:
            await exchange.sendrecv(partner, group_result, partner, received)
            if partner < rank:
                if lower_result is None:
                    lower_result = memoryview(bytearray(received))
                else:
                    reduction.prepend(received, lower_result)
                reduction.prepend(received, group_result)
            else:
                reduction.append(group_result, received)
        distance *= 2
    if lower_result is not None:
        data[:] = lower_result

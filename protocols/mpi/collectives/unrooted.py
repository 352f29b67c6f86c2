"""Collective calls that give every rank something of every rank: allgather and alltoall.

Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", 2005, sections 4.1 and 4.3;
Bruck and others, "Efficient algorithms for all-to-all communications in multiport message-passing systems", 1997.
"""

from __future__ import annotations

from collections.abc import Sequence

from protocols.mpi.collectives.collective_exchange import Exchange

# Blocks: one for each rank, in order; before an allgather, a rank's own is filled.


async def allgather_ring(exchange: Exchange, blocks: Sequence[memoryview]) -> None:
    """n - 1 rounds: each rank passes on to the next one what it has got last. Blocks may have any sizes."""
    rank, size = exchange.rank, exchange.size
    for step in range(size - 1):
        out, into = blocks[(rank - step) % size], blocks[(rank - step - 1) % size]
        await exchange.swap((rank + 1) % size, out, (rank - 1) % size, into)


async def allgather_doubling(exchange: Exchange, data: memoryview) -> None:
    """Recursive doubling, for a power of two of ranks: log2(n) rounds, in each of which pairs swap all that they have.
    data: blocks of one size."""
    rank, step, distance = exchange.rank, len(data) // exchange.size, 1
    while distance < exchange.size:
        other = rank ^ distance
        ours, theirs = rank & -distance, other & -distance
        await exchange.swap(
            other, data[ours * step : (ours + distance) * step], other, data[theirs * step : (theirs + distance) * step]
        )
        distance *= 2


async def allgather_bruck(exchange: Exchange, data: memoryview) -> None:
    """Bruck's, for any number of ranks: log2(n) rounds. data: blocks of one size."""
    rank, size, step, distance = exchange.rank, exchange.size, len(data) // exchange.size, 1
    have = memoryview(bytearray(len(data)))  # blocks of this rank, the next one, and so on
    have[:step] = data[rank * step : (rank + 1) * step]
    while distance < size:
        number = min(distance, size - distance)
        await exchange.swap(
            (rank - distance) % size,
            have[: number * step],
            (rank + distance) % size,
            have[distance * step : (distance + number) * step],
        )
        distance *= 2
    first = (size - rank) * step
    data[rank * step :] = have[:first]
    data[: rank * step] = have[first:]


async def alltoall_bruck(exchange: Exchange, data: memoryview, out: memoryview) -> None:
    """Bruck's: log2(n) rounds, in each of which half of the blocks moves. data, out: blocks of one size."""
    rank, size, step, distance = exchange.rank, exchange.size, len(data) // exchange.size, 1
    moving = [bytes(data[to * step : (to + 1) * step]) for to in (*range(rank, size), *range(rank))]
    while distance < size:
        places = [place for place in range(size) if place & distance]
        theirs = memoryview(bytearray(len(places) * step))
        packed = memoryview(b"".join(moving[place] for place in places))
        await exchange.swap((rank + distance) % size, packed, (rank - distance) % size, theirs)
        for number, place in enumerate(places):
            moving[place] = bytes(theirs[number * step : (number + 1) * step])
        distance *= 2
    for place, block in enumerate(moving):
        source = (rank - place) % size
        out[source * step : (source + 1) * step] = block


async def alltoall_spread(exchange: Exchange, data: Sequence[memoryview], out: Sequence[memoryview]) -> None:
    """All sends and receives at once, each rank beginning with its neighbour. Blocks may have any sizes."""
    rank, size = exchange.rank, exchange.size
    sources = [(rank - step) % size for step in range(1, size)]
    receives = [exchange.begin_receive(source, out[source]) for source in sources]
    sends = [exchange.begin_send(to, data[to]) for to in ((rank + step) % size for step in range(1, size))]
    out[rank][:] = data[rank]
    for source, completion in zip(sources, receives, strict=True):
        await exchange.end_receive(source, out[source], completion)
    for send in sends:
        await exchange.end(send)


async def alltoall_pairwise(exchange: Exchange, data: Sequence[memoryview], out: Sequence[memoryview]) -> None:
    """n - 1 rounds of exchanges with one rank each, so that no port has two senders. Blocks may have any sizes."""
    rank, size = exchange.rank, exchange.size
    out[rank][:] = data[rank]
    in_pairs = not size & size - 1
    for step in range(1, size):
        to, source = (rank ^ step, rank ^ step) if in_pairs else ((rank + step) % size, (rank - step) % size)
        await exchange.swap(to, data[to], source, out[source])

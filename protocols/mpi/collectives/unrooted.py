"""Algorithms of collective calls in which every rank receives data of every rank: allgather and alltoall.

Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", 2005, sections 4.1 and 4.3;
Bruck and others, "Efficient algorithms for all-to-all communications in multiport message-passing systems", 1997.

Arguments named `blocks` have one block for each rank, in rank order; before an allgather only the rank's own block has
data.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from protocols.core.completion import Completion
from protocols.mpi.collectives.collective_exchange import Exchange
from protocols.mpi.mpi_errors import Envelope

_MAX_CONCURRENT: Final = 32
"""Maximum sends, and maximum receives, that `alltoall_scattered` has in progress at once: MPICH's default
(MPIR_CVAR_ALLTOALL_THROTTLE)."""
_MAX_CONCURRENT_BYTES: Final = 32_768
"""Maximum bytes of these sends, except that a single send may have more. A quarter of a link's default queue (128 KiB): the
protocols limit the bytes in flight to each peer, but not to all peers together, and a queue that overflows costs a timeout.
MPICH relies on its transport here."""


async def allgather_ring(exchange: Exchange, blocks: Sequence[memoryview]) -> None:
    """Allgather in a ring, in n - 1 rounds: each rank forwards the block received last to the next rank. Blocks may have
    any sizes."""
    rank, size = exchange.rank, exchange.size
    for round_number in range(size - 1):
        out, buffer = blocks[(rank - round_number) % size], blocks[(rank - round_number - 1) % size]
        await exchange.sendrecv((rank + 1) % size, out, (rank - 1) % size, buffer)


async def allgather_doubling(exchange: Exchange, data: memoryview) -> None:
    """Allgather by recursive doubling, for a power of two of ranks: log2(n) rounds, in each of which pairs of ranks exchange
    all blocks that they have. data: blocks of equal size."""
    rank, block_size, distance = exchange.rank, len(data) // exchange.size, 1
    while distance < exchange.size:
        partner = rank ^ distance
        own_first, partner_first = rank & -distance, partner & -distance
        await exchange.sendrecv(
            partner,
            data[own_first * block_size : (own_first + distance) * block_size],
            partner,
            data[partner_first * block_size : (partner_first + distance) * block_size],
        )
        distance *= 2


async def allgather_bruck(exchange: Exchange, data: memoryview) -> None:
    """Allgather by Bruck's algorithm, for any number of ranks: log2(n) rounds. data: blocks of equal size."""
    rank, size, block_size, distance = exchange.rank, exchange.size, len(data) // exchange.size, 1
    gathered = memoryview(bytearray(len(data)))  # blocks of this rank, the next rank, and so on
    gathered[:block_size] = data[rank * block_size : (rank + 1) * block_size]
    while distance < size:
        count = min(distance, size - distance)
        await exchange.sendrecv(
            (rank - distance) % size,
            gathered[: count * block_size],
            (rank + distance) % size,
            gathered[distance * block_size : (distance + count) * block_size],
        )
        distance *= 2
    first = (size - rank) * block_size
    data[rank * block_size :] = gathered[:first]
    data[: rank * block_size] = gathered[first:]


async def alltoall_bruck(exchange: Exchange, data: memoryview, out: memoryview) -> None:
    """Alltoall by Bruck's algorithm: log2(n) rounds, in each of which half of the blocks moves. data, out: blocks of equal
    size."""
    rank, size, block_size, distance = exchange.rank, exchange.size, len(data) // exchange.size, 1
    moving_blocks = [
        bytes(data[destination * block_size : (destination + 1) * block_size])
        for destination in (*range(rank, size), *range(rank))
    ]
    while distance < size:
        relative_ranks = [relative_rank for relative_rank in range(size) if relative_rank & distance]
        received = memoryview(bytearray(len(relative_ranks) * block_size))
        packed = memoryview(b"".join(moving_blocks[relative_rank] for relative_rank in relative_ranks))
        await exchange.sendrecv((rank + distance) % size, packed, (rank - distance) % size, received)
        for index, relative_rank in enumerate(relative_ranks):
            moving_blocks[relative_rank] = bytes(received[index * block_size : (index + 1) * block_size])
        distance *= 2
    for relative_rank, block in enumerate(moving_blocks):
        source = (rank - relative_rank) % size
        out[source * block_size : (source + 1) * block_size] = block


async def alltoall_scattered(exchange: Exchange, data: Sequence[memoryview], out: Sequence[memoryview]) -> None:
    """Alltoall with several sends, and as many receives, in progress at once; each rank begins with the next rank.
    Blocks may have any sizes.

    The number of concurrent transfers may differ among ranks without a deadlock: each rank waits for its oldest transfer,
    and of these the one with the least offset has been begun by both of its ranks.
    """
    rank, size = exchange.rank, exchange.size
    out[rank][:] = data[rank]
    longest = max(map(len, data))
    concurrency = max(1, min(_MAX_CONCURRENT, exchange.max_transfers, _MAX_CONCURRENT_BYTES // max(longest, 1)))
    transfers: deque[tuple[int, Completion[Envelope], Completion[Envelope]]] = deque()
    for offset in range(1, size + concurrency):
        if offset < size:
            source, destination = (rank - offset) % size, (rank + offset) % size
            receive = exchange.begin_receive(source, out[source])
            transfers.append((source, receive, exchange.begin_send(destination, data[destination])))
        if offset >= concurrency and transfers:
            source, receive, send = transfers.popleft()
            await exchange.end_receive(source, out[source], receive)
            await exchange.wait_for(send)


async def alltoall_pairwise(exchange: Exchange, data: Sequence[memoryview], out: Sequence[memoryview]) -> None:
    """Alltoall in n - 1 rounds. In each round a rank receives from one rank only, so that the frames of only one sender
    share its link. Blocks may have any sizes."""
    rank, size = exchange.rank, exchange.size
    out[rank][:] = data[rank]
    is_power_of_two = not size & size - 1
    for offset in range(1, size):
        destination, source = (
            (rank ^ offset, rank ^ offset) if is_power_of_two else ((rank + offset) % size, (rank - offset) % size)
        )
        await exchange.sendrecv(destination, data[destination], source, out[source])

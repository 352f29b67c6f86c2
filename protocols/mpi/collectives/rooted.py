"""Collective calls with a root: broadcast, gather, scatter and reduce, by binomial trees unless said otherwise.

Ranks are taken relative to the root, so that it has 0. In a binomial tree the parent of a rank is the rank without its
lowest set bit; a rank's subtree are the ranks from it up to the next multiple of that bit. It takes log2(n) rounds.
Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", 2005, sections 4.2 and 4.4;
van de Geijn, "On global combine operations", 1994, for broadcasts in parts; Rabenseifner, "Optimization of collective
reduction operations", 2004.
"""

from __future__ import annotations

from collections.abc import Sequence

from protocols.mpi.collectives.collective_exchange import Exchange, parts
from protocols.mpi.collectives.reductions import Reduction, reduce_to_parts
from protocols.mpi.collectives.unrooted import allgather_ring


async def barrier(exchange: Exchange) -> None:
    """Dissemination: in round k each rank tells the one 2^k behind it. Hensgen, Finkel, Manber, "Two algorithms for barrier
    synchronization", 1988."""
    rank, size, distance, nothing = exchange.rank, exchange.size, 1, memoryview(b"")
    while distance < size:
        await exchange.swap((rank + distance) % size, nothing, (rank - distance) % size, memoryview(bytearray()))
        distance *= 2


def children(relative: int, size: int) -> list[tuple[int, int]]:
    """Return the children of a rank in the binomial tree, the one with the greatest subtree first: (relative rank, end of
    its subtree)."""
    bit = relative & -relative if relative else 1 << (size - 1).bit_length()
    found = []
    while bit > 1:
        bit >>= 1
        if relative + bit < size:
            found.append((relative + bit, min(relative + 2 * bit, size)))
    return found


async def broadcast_binomial(exchange: Exchange, data: memoryview, root: int) -> None:
    """Broadcast the root's bytes into every rank's `data`."""
    size, relative = exchange.size, (exchange.rank - root) % exchange.size
    if relative:
        await exchange.receive((root + (relative & relative - 1)) % size, data)
    for child, _ in children(relative, size):
        await exchange.send((root + child) % size, data)


async def broadcast_in_parts(exchange: Exchange, data: memoryview, root: int) -> None:
    """Broadcast by scattering equal parts and gathering them at all ranks (ring): each rank sends about twice the data,
    however many there are."""
    size, relative = exchange.size, (exchange.rank - root) % exchange.size
    cuts = parts(len(data), size, 1)
    if relative:
        bit = relative & -relative
        mine = data[cuts[relative][0] : cuts[min(relative + bit, size) - 1][1]]
        await exchange.receive((root + relative - bit) % size, mine)
    for child, end in children(relative, size):
        await exchange.send((root + child) % size, data[cuts[child][0] : cuts[end - 1][1]])
    # Part k belongs to the rank k behind the root.
    blocks = [data[begin:end] for begin, end in cuts]
    await allgather_ring(exchange, [blocks[(rank - root) % size] for rank in range(size)])


async def gather_binomial(exchange: Exchange, block: memoryview, root: int, out: memoryview | None) -> None:
    """Gather blocks of one size at the root, into `out`, by rank."""
    size, relative, step = exchange.size, (exchange.rank - root) % exchange.size, len(block)
    subtrees = children(relative, size)
    width = (subtrees[0][1] if subtrees else relative + 1) - relative
    have = memoryview(bytearray(width * step))
    have[:step] = block
    blocks = {
        (root + child) % size: have[(child - relative) * step : (end - relative) * step] for child, end in subtrees
    }
    await exchange.receive_all(blocks)
    if relative:
        await exchange.send((root + (relative & relative - 1)) % size, have)
    elif out is not None:
        first = (size - root) * step  # bytes of the root and those behind it
        out[root * step :] = have[:first]
        out[: root * step] = have[first:]


async def scatter_binomial(exchange: Exchange, data: memoryview | None, root: int, block: memoryview) -> None:
    """Scatter the root's `data`, blocks of one size by rank, into each rank's `block`."""
    size, relative, step = exchange.size, (exchange.rank - root) % exchange.size, len(block)
    subtrees = children(relative, size)
    width = (subtrees[0][1] if subtrees else relative + 1) - relative
    if relative:
        have = memoryview(bytearray(width * step))
        await exchange.receive((root + (relative & relative - 1)) % size, have)
    else:
        assert data is not None
        have = memoryview(b"".join((data[root * step :], data[: root * step])))
    for child, end in subtrees:
        await exchange.send((root + child) % size, have[(child - relative) * step : (end - relative) * step])
    block[:] = have[:step]


async def gather_linear(exchange: Exchange, block: memoryview, root: int, out: Sequence[memoryview] | None) -> None:
    """Gather blocks of any sizes at the root, each into its place of `out`; each rank sends to the root itself."""
    if exchange.rank != root or out is None:
        await exchange.send(root, block)
        return
    out[root][:] = block
    await exchange.receive_all({rank: out[rank] for rank in range(exchange.size) if rank != root})


async def scatter_linear(exchange: Exchange, data: Sequence[memoryview] | None, root: int, block: memoryview) -> None:
    """Scatter the root's blocks of any sizes; the root sends to each rank itself."""
    if exchange.rank != root or data is None:
        await exchange.receive(root, block)
        return
    sends = [exchange.begin_send(rank, data[rank]) for rank in range(exchange.size) if rank != root]
    block[:] = data[root]
    for send in sends:
        await exchange.end(send)


async def reduce_binomial(exchange: Exchange, reduction: Reduction, data: memoryview, root: int) -> None:
    """Reduce every rank's `data` into the root's. It is the ranks' order in which operands are combined if the operation
    does not commute: the tree's root then is rank 0, which passes the result on."""
    size = exchange.size
    top = root if reduction.commutes else 0
    relative = (exchange.rank - top) % size
    sources = [(top + child) % size for child, _ in reversed(children(relative, size))]
    operands = {source: memoryview(bytearray(len(data))) for source in sources}
    await exchange.receive_all(operands)
    for theirs in operands.values():
        reduction.append(data, theirs)
    if relative:
        await exchange.send((top + (relative & relative - 1)) % size, data)
    if top != root and exchange.rank in (top, root):
        await (exchange.send(root, data) if exchange.rank == top else exchange.receive(top, data))


async def reduce_in_parts(exchange: Exchange, reduction: Reduction, data: memoryview, root: int) -> None:
    """Rabenseifner's: each rank reduces one part, and the root gathers them. For operations that commute."""
    cuts = await reduce_to_parts(exchange, reduction, data)
    if exchange.rank == root:
        others = [rank for rank in range(exchange.size) if rank != root and cuts[rank][0] < cuts[rank][1]]
        await exchange.receive_all({rank: data[slice(*cuts[rank])] for rank in others})
    elif cuts[exchange.rank][0] < cuts[exchange.rank][1]:
        await exchange.send(root, data[slice(*cuts[exchange.rank])])

"""Algorithms of the rooted collective calls (broadcast, gather, scatter and reduce) and of the barrier.

Ranks are relative to the root, which has relative rank 0. In a binomial tree the parent of a rank is the rank without
its lowest set bit; the subtree of a rank consists of the ranks from it up to the next multiple of that bit. A tree takes
log2(n) rounds. Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", 2005,
sections 4.2 and 4.4; van de Geijn, "On global combine operations", 1994, for the broadcast by scatter and allgather;
Rabenseifner, "Optimization of collective reduction operations", 2004.
"""

from __future__ import annotations

from collections.abc import Sequence

from protocols.mpi.collectives.collective_exchange import Exchange, split_evenly
from protocols.mpi.collectives.reductions import Reduction, reduce_scatter_halving
from protocols.mpi.collectives.unrooted import allgather_ring


async def barrier(exchange: Exchange) -> None:
    """Dissemination barrier: in round k each rank signals the rank 2^k above. Hensgen, Finkel, Manber, "Two algorithms for
    barrier synchronization", 1988."""
    rank, size, distance, empty = exchange.rank, exchange.size, 1, memoryview(b"")
    while distance < size:
        await exchange.sendrecv((rank + distance) % size, empty, (rank - distance) % size, memoryview(bytearray()))
        distance *= 2


def children(relative: int, size: int) -> list[tuple[int, int]]:
    """Return the children of a rank in the binomial tree, the one with the largest subtree first, as (relative rank, end of
    its subtree)."""
    bit = relative & -relative if relative else 1 << (size - 1).bit_length()
    ranks = []
    while bit > 1:
        bit >>= 1
        if relative + bit < size:
            ranks.append((relative + bit, min(relative + 2 * bit, size)))
    return ranks


async def broadcast_binomial(exchange: Exchange, data: memoryview, root: int) -> None:
    """Broadcast the root's bytes into every rank's `data`."""
    size, relative = exchange.size, (exchange.rank - root) % exchange.size
    if relative:
        await exchange.receive((root + (relative & relative - 1)) % size, data)
    for child, _ in children(relative, size):
        await exchange.send((root + child) % size, data)


async def broadcast_scatter_allgather(exchange: Exchange, data: memoryview, root: int) -> None:
    """Broadcast by a scatter of equal parts and a ring allgather: each rank sends about twice the data, regardless of the
    number of ranks."""
    size, relative = exchange.size, (exchange.rank - root) % exchange.size
    bounds = split_evenly(len(data), size, 1)
    if relative:
        bit = relative & -relative
        own_parts = data[bounds[relative][0] : bounds[min(relative + bit, size) - 1][1]]
        await exchange.receive((root + relative - bit) % size, own_parts)
    for child, end in children(relative, size):
        await exchange.send((root + child) % size, data[bounds[child][0] : bounds[end - 1][1]])
    # Part k is scattered to relative rank k.
    blocks = [data[begin:end] for begin, end in bounds]
    await allgather_ring(exchange, [blocks[(rank - root) % size] for rank in range(size)])


async def gather_binomial(exchange: Exchange, block: memoryview, root: int, out: memoryview | None) -> None:
    """Gather blocks of equal size at the root, into `out`, by rank. out: None at other ranks."""
    size, relative, block_size = exchange.size, (exchange.rank - root) % exchange.size, len(block)
    subtrees = children(relative, size)
    subtree_size = (subtrees[0][1] if subtrees else relative + 1) - relative
    subtree_data = memoryview(bytearray(subtree_size * block_size))
    subtree_data[:block_size] = block
    blocks = {
        (root + child) % size: subtree_data[(child - relative) * block_size : (end - relative) * block_size]
        for child, end in subtrees
    }
    await exchange.receive_all(blocks)
    if relative:
        await exchange.send((root + (relative & relative - 1)) % size, subtree_data)
    elif out is not None:
        begin_of_rank_0 = (size - root) * block_size  # after the blocks of the root and the ranks above it
        out[root * block_size :] = subtree_data[:begin_of_rank_0]
        out[: root * block_size] = subtree_data[begin_of_rank_0:]


async def scatter_binomial(exchange: Exchange, data: memoryview | None, root: int, block: memoryview) -> None:
    """Scatter the root's `data`, blocks of equal size by rank, into each rank's `block`."""
    size, relative, block_size = exchange.size, (exchange.rank - root) % exchange.size, len(block)
    subtrees = children(relative, size)
    subtree_size = (subtrees[0][1] if subtrees else relative + 1) - relative
    if relative:
        subtree_data = memoryview(bytearray(subtree_size * block_size))
        await exchange.receive((root + (relative & relative - 1)) % size, subtree_data)
    else:
        assert data is not None
        subtree_data = memoryview(b"".join((data[root * block_size :], data[: root * block_size])))
    for child, end in subtrees:
        await exchange.send(
            (root + child) % size, subtree_data[(child - relative) * block_size : (end - relative) * block_size]
        )
    block[:] = subtree_data[:block_size]


async def gather_linear(exchange: Exchange, block: memoryview, root: int, out: Sequence[memoryview] | None) -> None:
    """Gather blocks of any sizes at the root, into `out` by rank; each rank sends directly to the root."""
    if exchange.rank != root or out is None:
        await exchange.send(root, block)
        return
    out[root][:] = block
    await exchange.receive_all({rank: out[rank] for rank in range(exchange.size) if rank != root})


async def scatter_linear(exchange: Exchange, data: Sequence[memoryview] | None, root: int, block: memoryview) -> None:
    """Scatter the root's blocks of any sizes; the root sends directly to each rank."""
    if exchange.rank != root or data is None:
        await exchange.receive(root, block)
        return
    sends = [exchange.begin_send(rank, data[rank]) for rank in range(exchange.size) if rank != root]
    block[:] = data[root]
    for send in sends:
        await exchange.wait_for(send)


async def reduce_binomial(exchange: Exchange, reduction: Reduction, data: memoryview, root: int) -> None:
    """Reduce every rank's `data` into the root's. For an operation that does not commute, the root of the tree is rank 0,
    to combine the operands in rank order; rank 0 then forwards the result."""
    size = exchange.size
    tree_root = root if reduction.commutes else 0
    relative = (exchange.rank - tree_root) % size
    sources = [(tree_root + child) % size for child, _ in reversed(children(relative, size))]
    operands = {source: memoryview(bytearray(len(data))) for source in sources}
    await exchange.receive_all(operands)
    for operand in operands.values():
        reduction.append(data, operand)
    if relative:
        await exchange.send((tree_root + (relative & relative - 1)) % size, data)
    if tree_root != root and exchange.rank in (tree_root, root):
        await (exchange.send(root, data) if exchange.rank == tree_root else exchange.receive(tree_root, data))


async def reduce_scatter_gather(exchange: Exchange, reduction: Reduction, data: memoryview, root: int) -> None:
    """Reduce by Rabenseifner's algorithm: each rank reduces one part, and the root gathers the parts. For operations that
    commute."""
    bounds = await reduce_scatter_halving(exchange, reduction, data)
    if exchange.rank == root:
        sources = [rank for rank in range(exchange.size) if rank != root and bounds[rank][0] < bounds[rank][1]]
        await exchange.receive_all({rank: data[slice(*bounds[rank])] for rank in sources})
    elif bounds[exchange.rank][0] < bounds[exchange.rank][1]:
        await exchange.send(root, data[slice(*bounds[exchange.rank])])

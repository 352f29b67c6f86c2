"""Collective calls on pickled objects, whose sizes only their senders know."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from protocols.mpi.collectives.collective_exchange import Exchange
from protocols.mpi.collectives.rooted import children

T = TypeVar("T")


async def broadcast(exchange: Exchange, obj: Any, root: int) -> Any:
    """Binomial tree."""
    size, relative = exchange.size, (exchange.rank - root) % exchange.size
    if relative:
        obj = await exchange.receive_object((root + (relative & relative - 1)) % size)
    for child, _ in children(relative, size):
        await exchange.send_object((root + child) % size, obj)
    return obj


async def gather(exchange: Exchange, obj: T, root: int) -> list[T] | None:
    """Binomial tree, in which each rank passes on the list of its subtree's."""
    size, relative, have = exchange.size, (exchange.rank - root) % exchange.size, [obj]
    for child, _ in reversed(children(relative, size)):
        have += await exchange.receive_object((root + child) % size)
    if relative:
        await exchange.send_object((root + (relative & relative - 1)) % size, have)
        return None
    return [have[(rank - root) % size] for rank in range(size)]


async def scatter(exchange: Exchange, objects: Sequence[T] | None, root: int) -> T:
    """Binomial tree, the reverse of `gather`."""
    size, relative = exchange.size, (exchange.rank - root) % exchange.size
    have: Sequence[T]
    if relative:
        have = await exchange.receive_object((root + (relative & relative - 1)) % size)
    else:
        assert objects is not None
        have = [objects[(root + place) % size] for place in range(size)]
    for child, end in children(relative, size):
        await exchange.send_object((root + child) % size, have[child - relative : end - relative])
    return have[0]


async def allgather(exchange: Exchange, obj: T) -> list[T]:
    """log2(n) rounds, in each of which the known objects double (Bruck and others, "Efficient algorithms for all-to-all
    communications", 1997, section 4)."""
    rank, size, distance = exchange.rank, exchange.size, 1
    known = [obj]  # of this rank, the one before it, and so on
    while distance < size:
        known += await exchange.swap_objects(
            (rank + distance) % size, known[: size - distance], (rank - distance) % size
        )
        distance *= 2
    return [known[(rank - other) % size] for other in range(size)]


async def alltoall(exchange: Exchange, objects: Sequence[T]) -> list[T]:
    """n - 1 rounds of exchanges."""
    rank, size = exchange.rank, exchange.size
    got = dict[int, T]({rank: objects[rank]})
    for step in range(1, size):
        to, source = (rank + step) % size, (rank - step) % size
        got[source] = await exchange.swap_objects(to, objects[to], source)
    return [got[source] for source in range(size)]


async def reduce(exchange: Exchange, obj: Any, op: Callable[[Any, Any], Any], root: int) -> Any:
    """Binomial tree with rank 0 on top, so that operands keep the ranks' order; it passes the result on to the root."""
    rank, size = exchange.rank, exchange.size
    for child, _ in reversed(children(rank, size)):
        obj = op(obj, await exchange.receive_object(child))
    if rank:
        await exchange.send_object(rank & rank - 1, obj)
    if root and rank == 0:
        await exchange.send_object(root, obj)
    if root and rank == root:
        obj = await exchange.receive_object(0)
    return obj if rank == root else None


async def scan(exchange: Exchange, obj: Any, op: Callable[[Any, Any], Any], inclusive: bool) -> Any:
    """Recursive doubling. If not inclusive, rank 0 gets None."""
    rank, size, distance = exchange.rank, exchange.size, 1
    group, below, has_below = obj, obj if inclusive else None, inclusive
    while distance < size:
        other = rank ^ distance
        if other < size:
            theirs = await exchange.swap_objects(other, group, other)
            if other < rank:
                below, has_below = op(theirs, below) if has_below else theirs, True
                group = op(theirs, group)
            else:
                group = op(group, theirs)
        distance *= 2
    return below

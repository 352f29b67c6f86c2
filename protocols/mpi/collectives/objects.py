"""Algorithms of collective calls on pickled objects, whose sizes are known only at their senders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from protocols.mpi.collectives.collective_exchange import Exchange
from protocols.mpi.collectives.rooted import children

T = TypeVar("T")


async def broadcast(exchange: Exchange, obj: Any, root: int) -> Any:
    """Broadcast by a binomial tree; return the root's object."""
    size, relative = exchange.size, (exchange.rank - root) % exchange.size
    if relative:
        obj = await exchange.receive_object((root + (relative & relative - 1)) % size)
    for child, _ in children(relative, size):
        await exchange.send_object((root + child) % size, obj)
    return obj


async def gather(exchange: Exchange, obj: T, root: int) -> list[T] | None:
    """Gather by a binomial tree, in which each rank forwards the list of its subtree's objects."""
    size, relative, subtree_objects = exchange.size, (exchange.rank - root) % exchange.size, [obj]
    for child, _ in reversed(children(relative, size)):
        subtree_objects += await exchange.receive_object((root + child) % size)
    if relative:
        await exchange.send_object((root + (relative & relative - 1)) % size, subtree_objects)
        return None
    return [subtree_objects[(rank - root) % size] for rank in range(size)]


async def scatter(exchange: Exchange, objects: Sequence[T] | None, root: int) -> T:
    """Scatter by a binomial tree, the reverse of `gather`."""
    size, relative = exchange.size, (exchange.rank - root) % exchange.size
    subtree_objects: Sequence[T]
    if relative:
        subtree_objects = await exchange.receive_object((root + (relative & relative - 1)) % size)
    else:
        assert objects is not None
        subtree_objects = [objects[(root + child) % size] for child in range(size)]
    for child, end in children(relative, size):
        await exchange.send_object((root + child) % size, subtree_objects[child - relative : end - relative])
    return subtree_objects[0]


async def allgather(exchange: Exchange, obj: T) -> list[T]:
    """Allgather by Bruck's algorithm: log2(n) rounds, each of which doubles the objects that a rank has (Bruck and others,
    "Efficient algorithms for all-to-all communications", 1997, section 4)."""
    rank, size, distance = exchange.rank, exchange.size, 1
    gathered = [obj]  # objects of this rank, the rank below, and so on
    while distance < size:
        gathered += await exchange.sendrecv_objects(
            (rank + distance) % size, gathered[: size - distance], (rank - distance) % size
        )
        distance *= 2
    return [gathered[(rank - source) % size] for source in range(size)]


async def alltoall(exchange: Exchange, objects: Sequence[T]) -> list[T]:
    """Alltoall in n - 1 rounds: in round k each rank sends to the rank k above."""
    rank, size = exchange.rank, exchange.size
    received = dict[int, T]({rank: objects[rank]})
    for step in range(1, size):
        destination, source = (rank + step) % size, (rank - step) % size
        received[source] = await exchange.sendrecv_objects(destination, objects[destination], source)
    return [received[source] for source in range(size)]


async def reduce(exchange: Exchange, obj: Any, op: Callable[[Any, Any], Any], root: int) -> Any:
    """Reduce by a binomial tree whose root is rank 0, to keep the operands in rank order; rank 0 forwards the result to
    `root`."""
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
    """Scan by recursive doubling. inclusive: include the rank's own object; otherwise rank 0 gets None."""
    rank, size, distance = exchange.rank, exchange.size, 1
    group_result, lower_result, has_lower_result = obj, obj if inclusive else None, inclusive
    while distance < size:
        partner = rank ^ distance
        if partner < size:
            partner_result = await exchange.sendrecv_objects(partner, group_result, partner)
            if partner < rank:
                lower_result = op(partner_result, lower_result) if has_lower_result else partner_result
                has_lower_result = True
                group_result = op(partner_result, group_result)
            else:
                group_result = op(group_result, partner_result)
        distance *= 2
    return lower_result

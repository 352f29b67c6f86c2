"""A stream of messages between two ranks: so many under way, every one verified, and a trailing acknowledgement.

The receiver's first receives are begun before the sender begins, and time runs until the acknowledgement is there: a
message counts when its receiver has it.
"""

from __future__ import annotations

from collections import deque

from protocols.mpi.requests import Request
from testbed.workloads.contents import Contents
from testbed.workloads.form import Comm, Node

_DATA, _READY, _DONE, _TOLD = 1, 2, 3, 4


async def send_stream(comm: Comm, node: Node, peer: int, contents: Contents, size: int, count: int, window: int) -> int:
    """Nanoseconds from the first message to the acknowledgement of all."""
    await comm.Recv(None, peer, _READY)
    return await send_at_once(comm, node, peer, contents, size, count, window)


async def ready(comm: Comm, peer: int) -> Request:
    """Over when that receiver has begun its first receives; `send_at_once` may follow."""
    return await comm.Irecv(None, peer, _READY)


async def send_at_once(
    comm: Comm, node: Node, peer: int, contents: Contents, size: int, count: int, window: int
) -> int:
    """`send_stream` to a receiver that is ready."""
    begun = node.now()
    under_way = deque(
        [await comm.Isend(contents.of(number, size), peer, _DATA) for number in range(min(count, window))]
    )
    for number in range(len(under_way), count):
        await under_way.popleft().Wait()
        under_way.append(await comm.Isend(contents.of(number, size), peer, _DATA))
    for sent in under_way:
        await sent.Wait()
    await comm.Recv(None, peer, _DONE)
    return node.now() - begun


async def receive_stream(comm: Comm, peer: int, contents: Contents, size: int, count: int, window: int) -> None:
    """The other end. Raises VerificationError."""
    buffers = [bytearray(size) for _ in range(min(count, window))]
    under_way = deque([(buffer, await comm.Irecv(buffer, peer, _DATA)) for buffer in buffers])
    await comm.Send(None, peer, _READY)
    who = f"from rank {peer}"
    for number in range(count):
        buffer, arrival = under_way.popleft()
        await arrival.Wait()
        contents.check(number, buffer, who)
        if number + len(buffers) < count:
            under_way.append((buffer, await comm.Irecv(buffer, peer, _DATA)))
    await comm.Send(None, peer, _DONE)


async def tell(comm: Comm, peer: int, count: int) -> None:
    """Say how many messages there will be; `told` hears it."""
    await comm.send(count, peer, _TOLD)


async def told(comm: Comm, peer: int) -> int:
    count = await comm.recv(source=peer, tag=_TOLD)
    assert isinstance(count, int)
    return count


def enough(count: int, tried: int, took: int, most: int) -> int:
    """How many there may be, at most count, so that it takes no longer than most, when so many took so long (ns)."""
    return max(1, min(count, most * tried // max(1, took)))

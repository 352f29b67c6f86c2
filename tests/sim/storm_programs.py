"""Programs for storms of crashes, restarts and resets: each incarnation repeats the messages of the previous one.

An incarnation runs for a fixed time, whatever its peers do. The checkers verify the messages, not the programs.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from protocols.mpi.mpi_errors import ERR_PROC_FAILED, MPIError
from testbed.workloads.form import Comm, Node

OUTSTANDING = 4
MAX_SIZE = 3000
MILLISECOND = 1_000_000


async def start_transfer(call: Callable[[], Any]) -> Any:
    """Return the request of a transfer. The call is repeated while it reports the failure of an earlier send."""
    while True:
        try:
            return await call()
        except MPIError as error:
            raise_unless_peer_failed(error)


async def succeeds(request: Any) -> bool:
    """Wait for a send or receive and return whether it has succeeded; its peer may be gone."""
    try:
        await request.Wait()
    except MPIError as error:
        raise_unless_peer_failed(error)
        return False
    return True


def raise_unless_peer_failed(error: MPIError) -> None:
    if error.error_class != ERR_PROC_FAILED:
        raise error


async def listen(comm: Comm, source: int, tag: int) -> None:
    """Keep some receives posted forever."""
    buffers = [bytearray(MAX_SIZE) for _ in range(OUTSTANDING)]
    transfers = [await start_transfer(partial(comm.Irecv, buffer, source, tag)) for buffer in buffers]
    while True:
        request, buffer = transfers.pop(0), buffers.pop(0)
        await succeeds(request)
        buffers.append(buffer)
        transfers.append(await start_transfer(partial(comm.Irecv, buffer, source, tag)))


async def repeats(comm: Comm, node: Node, *, milliseconds: int = 100, contents: int = 2, tags: int = 2) -> int:
    """Send to random receivers with random tags and few different contents, the same in each incarnation."""
    rng = random.Random(f"{node.seed} {comm.rank}")
    for tag in range(tags):
        node.spawn(listen(comm, -1, tag), f"receives of tag {tag}")
    end, outstanding, sent_count = node.now() + milliseconds * MILLISECOND, Counter[int](), 0

    async def send(destination: int, tag: int, data: bytes) -> None:
        await succeeds(await start_transfer(partial(comm.Isend, data, destination, tag)))
        outstanding[destination] -= 1

    while node.now() < end:
        destination, tag, content_index = (
            rng.randrange(comm.size),
            rng.randrange(tags),
            rng.randrange(contents),
        )
        if destination != comm.rank and outstanding[destination] < OUTSTANDING:
            outstanding[destination] += 1
            sent_count += 1
            node.spawn(send(destination, tag, bytes([content_index]) * ((content_index * 997) % MAX_SIZE)), "a send")
        await node.sleep(round(rng.expovariate(1.0) * MILLISECOND))
    return sent_count


async def constant(comm: Comm, node: Node, *, milliseconds: int = 100, size: int = 64) -> int:
    """Send equal messages to the next rank one by one, and receive from the previous rank."""
    following, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    node.spawn(listen(comm, before, 0), "receives")
    sent_count = 0

    async def send() -> None:
        nonlocal sent_count
        while True:
            sent_count += await succeeds(await start_transfer(partial(comm.Isend, bytes(size), following)))
            await node.sleep(MILLISECOND // 2)

    node.spawn(send(), "sends")
    await node.sleep(milliseconds * MILLISECOND)
    return sent_count


async def raises(comm: Comm, node: Node, *, milliseconds: int = 100) -> int:
    """Run `repeats` with one rank that raises an error half way."""
    if comm.rank == node.seed % comm.size:
        node.spawn(repeats(comm, node, milliseconds=milliseconds), "traffic")
        await node.sleep(milliseconds * MILLISECOND // 2)
        raise ValueError("enough")
    return await repeats(comm, node, milliseconds=milliseconds)

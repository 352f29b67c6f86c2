"""A workload that returns the received tags, for rules that change tags in flight."""

from __future__ import annotations

from protocols.mpi.mpi_status import Status
from testbed.workloads.form import Comm, Node

COUNT = 3
TAG = 5
SET_TAG = "set emp.tag = 7 emp.message == 1"
"""The second message gets another tag and a valid checksum, also when it is retransmitted."""

SET_TAG_KEEP_CHECK = "set emp.tag = 7 keep-check emp.message == 1 and nth(1)"
"""The second message's header frame is corrupt once: the receiver drops it, and it is retransmitted."""


async def tags(comm: Comm, _: Node) -> list[tuple[int, bytes]]:
    """Send COUNT messages with TAG from rank 0 to 1, which returns the received tags and contents.

    Rank 1 requests the messages after posting all receives, so that none is dropped and retransmitted.
    """
    tags_received: list[tuple[int, bytes]] = []
    if comm.rank == 0:
        await comm.Recv(bytearray(0), 1)
        for number in range(COUNT):
            await comm.Send(bytes([number]) * 4, 1, TAG)
        return tags_received
    buffers = [bytearray(4) for _ in range(COUNT)]
    requests = [await comm.Irecv(buffer, 0) for buffer in buffers]
    await comm.Send(b"", 0)
    for request, buffer in zip(requests, buffers, strict=True):
        status = Status()
        await request.Wait(status)
        tags_received.append((status.Get_tag(), bytes(buffer)))
    return tags_received


def expected(second: int) -> list[tuple[int, bytes]]:
    """Return rank 1's result if the second message has this tag."""
    return [(second if number == 1 else TAG, bytes([number]) * 4) for number in range(COUNT)]

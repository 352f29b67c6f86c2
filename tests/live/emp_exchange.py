"""Two host programs that exchange EMP messages of zero, one and many frames in both directions."""

from __future__ import annotations

import random

from protocols.emp import host as emp
from testbed.runtime.nodes.run_orders import ProgramNode

SIZES = [0, 1, 1_400, 4_096, 100_000, 1 << 20]


def content(size: int, number: int) -> bytes:
    return random.Random(size + number).randbytes(size)


async def exchange_messages(endpoint: emp.Endpoint, _node: ProgramNode) -> list[bool]:
    """Exchange every size with the peer; return for each message whether it arrived intact."""
    peer, intact = 1 - endpoint.number, []
    for size in SIZES:
        buffer = bytearray(size)
        arrival = endpoint.post_receive(peer, 7, buffer)
        await endpoint.send(peer, 7, content(size, endpoint.number))
        received = await arrival
        intact.append(received.length == size and buffer == content(size, peer))
    return intact

"""Exchange with a rank's neighbours in a topology. MPI 4.1, section 8.6.

All receives and sends are posted at once. An edge to PROC_NULL transfers nothing. Several edges may join two ranks; the
messages along them match in the order in which they are posted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from protocols.mpi.collectives.collective_exchange import Exchange
from protocols.mpi.constants import PROC_NULL


class Neighbourhood(NamedTuple):
    """Edges of one rank. sources, destinations: the ranks at the other ends of its incoming and outgoing edges. send_order:
    indices of `destinations` in the order in which messages are sent, so that the messages to one rank match its receives,
    which are posted in the order of its sources."""

    sources: Sequence[int]
    destinations: Sequence[int]
    send_order: Sequence[int]


async def exchange_blocks(
    exchange: Exchange, neighbourhood: Neighbourhood, data: Sequence[memoryview], out: Sequence[memoryview]
) -> None:
    """Exchange bytes. data: a block for each outgoing edge. out: memory for each incoming block, of its exact size."""
    receives = [
        (source, buffer, exchange.begin_receive(source, buffer))
        for source, buffer in zip(neighbourhood.sources, out, strict=True)
        if source != PROC_NULL
    ]
    sends = [
        exchange.begin_send(neighbourhood.destinations[edge], data[edge])
        for edge in neighbourhood.send_order
        if neighbourhood.destinations[edge] != PROC_NULL
    ]
    for source, buffer, receive in receives:
        await exchange.end_receive(source, buffer, receive)
    for send in sends:
        await exchange.wait_for(send)


async def exchange_objects(exchange: Exchange, neighbourhood: Neighbourhood, data: Sequence[object]) -> list[object]:
    """Exchange objects. data: an object for each outgoing edge. Returns the object of each incoming edge; None for an edge
    from PROC_NULL."""
    receives = [
        exchange.begin_receive_object(source) if source != PROC_NULL else None for source in neighbourhood.sources
    ]
    sends = [
        exchange.begin_send_object(neighbourhood.destinations[edge], data[edge])
        for edge in neighbourhood.send_order
        if neighbourhood.destinations[edge] != PROC_NULL
    ]
    for receive in receives:
        if receive is not None:
            await exchange.wait_for(receive.completion)
    for send in sends:
        await exchange.wait_for(send)
    return [
        None if receive is None else exchange.load(source, receive)
        for source, receive in zip(neighbourhood.sources, receives, strict=True)
    ]

"""Workload of AM-II whose programs only poll."""

from __future__ import annotations

from protocols.active_messages.endpoint_names import EndpointName
from protocols.am2.host.library import ActiveMessages
from protocols.am2.host.token import Token
from testbed.workloads.active_messages.barrier import Collectives
from testbed.workloads.form import Native, Node

TAG, COUNT = 5, 20
REQUEST, REPLY = 1, 2
SQUARES = [number * number for number in range(COUNT)]


class PollingWorkload(Native[ActiveMessages]):
    """Request squares from the next node, one at a time. awaits: whether the program awaits its polls."""

    protocol = "am2"

    awaits: bool = True

    async def program(self, library: ActiveMessages, node: Node) -> list[int]:
        collectives = Collectives(library, node, library.size)
        bundle = library.allocate_bundle()
        endpoint = bundle.allocate_endpoint()
        endpoint.tag = TAG
        requested: list[int] = []
        squares: list[int] = []

        def on_request(token: Token, number: int) -> None:
            requested.append(number)
            token.reply(REPLY, number * number)

        endpoint.set_handler(REQUEST, on_request)
        endpoint.set_handler(REPLY, lambda _, word: squares.append(word))
        await collectives.barrier()
        endpoint.map(0, EndpointName((library.node + 1) % library.size, 1), TAG)
        for number in range(COUNT):
            while not endpoint.try_request(0, REQUEST, number):
                await endpoint.poll()
            while len(squares) <= number:
                if self.awaits:
                    await endpoint.poll()
                else:
                    endpoint.poll()  # type: ignore[unused-coroutine]  # the error that must be reported
        while len(requested) < COUNT:
            await bundle.poll()
        await collectives.barrier()
        return squares

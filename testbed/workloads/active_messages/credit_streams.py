"""Streams of medium messages, as many under way as there are credits."""

from __future__ import annotations

from typing import Final

from protocols.am2.host.endpoint import Endpoint
from protocols.am2.host.endpoint_names import EndpointName
from protocols.am2.host.library import ActiveMessages
from protocols.am2.host.token import Token
from testbed.workloads.active_messages.barrier import TAG, serve_until
from testbed.workloads.form import Node, VerificationError

_DATA, _TAKEN = 5, 6


class CreditStream:
    """Stream from an endpoint of its own to a server's (see `take`)."""

    def __init__(self, library: ActiveMessages, node: Node, server: EndpointName, size: int) -> None:
        """size: bytes of each message."""
        self._now = node.now
        self._size = size
        self._taken = 0
        endpoint = library.allocate_bundle().allocate_endpoint()
        self.endpoint: Final = endpoint
        endpoint.tag = TAG
        endpoint.set_handler(_TAKEN, self._count)
        endpoint.map(0, server, TAG)

    def take(self, server: Endpoint) -> None:
        """Let an endpoint of this node receive streams."""
        server.set_handler(_DATA, _taken)

    async def send(self, count: int) -> int:
        """Send `count` messages and await all replies; return the time taken, in nanoseconds."""
        begun, self._taken = self._now(), 0
        for number in range(count):
            await self.endpoint.request_medium(0, _DATA, bytes((number & 0xFF,)) * self._size, number)
        await serve_until(self.endpoint, lambda: self._taken >= count)
        return self._now() - begun

    def _count(self, _: Token) -> None:
        self._taken += 1


def _taken(token: Token, data: memoryview, number: int) -> None:
    if not data[0] == data[-1] == number & 0xFF:
        raise VerificationError(f"message {number} has come with other data than was sent")
    token.reply(_TAKEN)

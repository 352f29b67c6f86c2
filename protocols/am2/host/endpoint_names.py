"""Names, tags and translations of endpoints."""

from __future__ import annotations

from typing import Final, NamedTuple

ANY: Final = 0xFFFF_FFFF_FFFF_FFFF
"""AM_ALL: an endpoint with this tag accepts requests with any tag."""
NONE: Final = 0
"""AM_NONE: an endpoint with this tag accepts no requests. It is the initial tag."""


class EndpointName(NamedTuple):
    """en_t: an endpoint anywhere in the cluster. endpoint: its number on its node, from 0, in order of allocation."""

    node: int
    endpoint: int


class Correspondent:
    """State of an endpoint for a destination under one tag. credits: requests that it may still send before a reply is
    required. most: initial credits. key: name and tag. mapped: number of its places in the translation table."""

    __slots__ = ("credits", "endpoint", "key", "mapped", "most", "node", "tag")

    def __init__(self, node: int, endpoint: int, tag: int, most: int) -> None:
        self.node = node
        self.endpoint = endpoint
        self.tag = tag
        self.key = (node, endpoint, tag)
        self.credits = self.most = most
        self.mapped = 0

    @property
    def name(self) -> EndpointName:
        return EndpointName(self.node, self.endpoint)


Asked = tuple[Correspondent, int, tuple[int, ...]]
"""A request that has not ended: destination, handler and arguments."""


class Origin:
    """Sender of the message that is being handled, and the destination of a reply. incarnation: of the sender's NIC.
    message: the number of the request, which its reply repeats."""

    __slots__ = ("endpoint", "incarnation", "message", "node", "tag")

    def __init__(self) -> None:
        self.node = self.endpoint = self.tag = self.incarnation = self.message = 0

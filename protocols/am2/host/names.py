"""How endpoints are called, and who may speak to them: names, tags, translations."""

from __future__ import annotations

from typing import Final, NamedTuple

ANY: Final = 0xFFFF_FFFF_FFFF_FFFF
"""AM_ALL: an endpoint with this tag takes requests with any."""
NONE: Final = 0
"""AM_NONE: an endpoint with this tag takes no request. Every endpoint begins with it."""


class EndpointName(NamedTuple):
    """en_t: an endpoint anywhere in the cluster. endpoint: its number on its node, from 0 on, in the order in which
    they are allocated."""

    node: int
    endpoint: int


class Correspondent:
    """What an endpoint knows of one that it may send requests to, under one tag. credits: requests that it may still send
    before a reply must come; most: of them. key: the name and the tag. mapped: in how many places of the translation
    table."""

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
"""A request that has come to no end: to whom, handler and arguments."""


class Origin:
    """Who has sent the message that is handled, under which tag; where a reply goes. incarnation: of its NIC. message: the
    number of the request, which its reply has, too."""

    __slots__ = ("endpoint", "incarnation", "message", "node", "tag")

    def __init__(self) -> None:
        self.node = self.endpoint = self.tag = self.incarnation = self.message = 0

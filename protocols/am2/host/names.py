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
    table. doubtful: requests whose credits came back without a reply, and that may have one yet."""

    __slots__ = ("_renewed", "credits", "doubtful", "endpoint", "key", "mapped", "most", "node", "tag")

    def __init__(self, node: int, endpoint: int, tag: int, most: int) -> None:
        self.node = node
        self.endpoint = endpoint
        self.tag = tag
        self.key = (node, endpoint, tag)
        self.credits = self.most = most
        self.mapped = 0
        self.doubtful = 0
        self._renewed: int | None = None

    @property
    def name(self) -> EndpointName:
        return EndpointName(self.node, self.endpoint)

    def settle(self) -> bool:
        """A reply has come though all credits are there: whether it may be one to a request in doubt, or to one whose credit
        such a reply has given back. Which, cannot be told: none is dropped."""
        if not self.doubtful:
            return False
        self.doubtful -= 1
        return True

    def give_back(self, message: int, in_doubt: bool) -> None:
        """A request has come back. in_doubt: it may have been handled."""
        if self._renewed is not None and self._renewed - message & 0xFFFF_FFFF < 0x8000_0000:
            return  # sent before there were all credits again
        self.doubtful += in_doubt
        self.credits = min(self.credits + 1, self.most)

    def renew(self, message: int) -> None:
        """Nothing that was asked for will be replied to. message: the last one that was sent to anybody."""
        self.doubtful += self.most - self.credits
        self.credits = self.most
        self._renewed = message

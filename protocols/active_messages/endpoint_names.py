"""Names and tags of endpoints, and of what they send to each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from protocols.core.firmware import Buffer

ANY: Final = 0xFFFF_FFFF_FFFF_FFFF
"""AM_ALL: an endpoint with this tag accepts requests with any tag."""
NONE: Final = 0
"""AM_NONE: an endpoint with this tag accepts no requests. It is the initial tag."""
NO_HANDLER: Final = 0
"""Handler of a reply that the library has made, since the request's handler made none: it calls nobody."""


class EndpointName(NamedTuple):
    """en_t: an endpoint anywhere in the cluster. endpoint: its number on its node, from 0, in order of allocation."""

    node: int
    endpoint: int


class RequestName(NamedTuple):
    """Name of a request, by which its handler's node and its sender mean the same one.

    node, endpoint: of the sender. life: of the sender's NIC, which has another one after each restart. number: of the
    request, unique within endpoint and life, also if the endpoint's number is used again.
    """

    node: int
    life: int
    endpoint: int
    number: int


class MessageContent(NamedTuple):
    """Content of a message. handler: the number by which it names its handler. arguments: its words. data: the bytes
    beside them, valid only during the call that passes them."""

    handler: int
    arguments: Sequence[int]
    data: Buffer


class Unhandled(NamedTuple):
    """Numbers of an endpoint's messages that have arrived and are not handled. answers: replies and returned messages."""

    endpoint: int
    requests: int
    answers: int

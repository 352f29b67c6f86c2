"""Names and tags of endpoints, and names of requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from protocols.core.firmware import Buffer

ANY: Final = 0xFFFF_FFFF_FFFF_FFFF
"""AM_ALL: an endpoint with this tag accepts requests with any tag."""
NONE: Final = 0
"""AM_NONE: an endpoint with this tag accepts no requests. It is the initial tag."""
NO_HANDLER: Final = 0
"""Handler of the library's reply to a request whose handler did not reply. No handler is called for it."""


class EndpointName(NamedTuple):
    """en_t: an endpoint anywhere in the cluster. endpoint: its number on its node, from 0, in order of allocation."""

    node: int
    endpoint: int


class RequestName(NamedTuple):
    """Name of a request, the same at its sender and its receiver.

    node, endpoint: node and endpoint of the sender. life: life of the sender's NIC, different after each restart. number:
    number of the request, unique within endpoint and life, even if the endpoint's number is reused.
    """

    node: int
    life: int
    endpoint: int
    number: int


class MessageContent(NamedTuple):
    """Content of a message. handler: number of its handler. arguments: its words. data: its bytes, valid only during
    the call that passes them."""

    handler: int
    arguments: Sequence[int]
    data: Buffer


class Unhandled(NamedTuple):
    """Numbers of an endpoint's arrived and unhandled messages. answers: replies and returned messages."""

    endpoint: int
    requests: int
    answers: int

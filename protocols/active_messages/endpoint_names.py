"""Names and tags of endpoints, names of requests, and contents of messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from protocols.core.firmware import Buffer

ANY: Final = 0xFFFF_FFFF_FFFF_FFFF
"""AM_ALL: an endpoint with this tag accepts requests with any tag."""
NONE: Final = 0
"""AM_NONE: an endpoint with this tag accepts no requests. It is the initial tag."""
NO_HANDLER: Final = 0
"""Handler of the library's reply to a request whose handler did not reply. The reply calls no handler."""


class EndpointName(NamedTuple):
    """Name of an endpoint in the cluster (AM-2: en_t). node: number of the node. endpoint: number of the endpoint on
    the node, in order of allocation, from 0 unless several processes share the NIC. A freed number may be used
    again."""

    node: int
    endpoint: int


class RequestName(NamedTuple):
    """Name of a request, by which sender and receiver identify it.

    node, endpoint: of the sender. life: identifies the time from one restart of the sender's NIC to the next. number:
    number of the request, unique for this endpoint and life, even if the endpoint's number is reused.
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

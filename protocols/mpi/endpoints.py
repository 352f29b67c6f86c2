"""The interface between `device` and a protocol's host library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from protocols.core.completion import Completion
from protocols.mpi.iovec import IoVec

if TYPE_CHECKING:
    from protocols.mpi.device import SendCompletion, ProbeResult, ReceiveCompletion


class MatchingEndpoint(Protocol):
    """A node's access to a NIC that matches messages. `matching.SoftwareMatchingEndpoint` implements most of it for other
    NICs.

    A message goes to the oldest receive begun for its context, for its source or ANY_SOURCE, and for its tag or
    ANY_TAG; a receive takes the oldest such message; two messages of one sender in one context never overtake each
    other in matching. Nodes 0 to size - 1 are ranks 0 to size - 1 of all; a node may send to itself.

    contexts: number of contexts, from 0; a receive, even for any tag, gets messages of its own context only. max_tag:
    tags are 0 to max_tag. max_message_size: in bytes.

    All calls return False, with no effect, if descriptors are short for that transfer; the device tries again when
    another of its transfers has completed. Neither sends nor receives may take all descriptors, or two programs that
    both first send, or first receive, many messages could deadlock; together they leave one for probes. Otherwise calls
    complete `completion`, possibly at once, or fail it with an MPIError:

    - ERR_TRUNCATE: the message is longer than the buffer, which is full; the envelope describes the message. The sender
      does not notice.
    - ERR_PROC_FAILED: the peer has restarted, has given up or does not answer. Whether a sent message has arrived is
      not known; a receive's buffer may hold a part.

    Calls may come from a completion's callback. Ranks, tags and lengths have been checked.
    """

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def contexts(self) -> int: ...

    @property
    def max_tag(self) -> int: ...

    @property
    def max_message_size(self) -> int: ...

    def send(self, destination: int, context: int, tag: int, data: memoryview, completion: SendCompletion) -> bool:
        """Send. Completes when the buffer may be reused; the envelope's source is then the destination. An endpoint
        that can tell later whether the message has arrived does so: see `SendCompletion`."""
        ...

    def send_synchronously(
        self, destination: int, context: int, tag: int, data: memoryview, completion: SendCompletion
    ) -> bool:
        """Send as `send`, but complete only after the message has been matched."""
        ...

    def receive(self, source: int, context: int, tag: int, buffer: memoryview, completion: ReceiveCompletion) -> bool:
        """Receive. Completes when a message has been received. source: a rank, or ANY_SOURCE. tag: a tag, or
        ANY_TAG."""
        ...

    def receive_claimed(self, found: ProbeResult, buffer: memoryview, completion: ReceiveCompletion) -> bool:
        """Receive a message that a probe has claimed."""
        ...

    def probe(
        self, source: int, context: int, tag: int, wait: bool, claim: bool, completion: Completion[ProbeResult | None]
    ) -> bool:
        """Find the oldest message that such a receive would get, which stays there. Completes when there is one, or,
        without wait, soon, with None if there is none. claim: only `receive_claimed` can receive it afterwards."""
        ...


@runtime_checkable
class ScatteringEndpoint(MatchingEndpoint, Protocol):
    """An endpoint whose NIC gathers sends from several segments, and scatters receives to them, where that is useful."""

    def is_gathered(self, iov: IoVec) -> bool:
        """Whether the NIC gathers and scatters such a message. The device copies others."""
        ...

    def send_iov(
        self, destination: int, context: int, tag: int, data: IoVec, synchronous: bool, completion: SendCompletion
    ) -> bool:
        """Send an I/O vector, as `send` or `send_synchronously`."""
        ...

    def receive_iov(self, source: int, context: int, tag: int, buffer: IoVec, completion: ReceiveCompletion) -> bool:
        """Receive into an I/O vector, as `receive`."""
        ...


@runtime_checkable
class DroppingEndpoint(MatchingEndpoint, Protocol):
    """An endpoint whose NIC drops the data of messages that have no receive, and gets it again after a time-out."""

    @property
    def slots(self) -> int:
        """Number of standing receives that there are descriptors for, equal at all ranks."""
        ...

    def receive_standing(self, context: int, tag: int, buffer: memoryview, completion: ReceiveCompletion) -> bool:
        """Receive from any rank, as `receive`. Nobody waits for such a receive: reports of what is waited for leave it
        out."""
        ...


@runtime_checkable
class ConnectingEndpoint(MatchingEndpoint, Protocol):
    """An endpoint whose ranks are connected before they exchange messages."""

    async def connect_ranks(self) -> None:
        """Make the connections that a program is to find, before it begins. Raises MPIError (ERR_PROC_FAILED) if a rank
        refuses, restarts, or does not answer for as long as the protocol's settings allow."""
        ...

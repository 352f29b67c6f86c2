"""The interfaces between `device` and a protocol's host library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from protocols.core.completion import Completion
from protocols.mpi.iovec import IoVec

if TYPE_CHECKING:
    from protocols.mpi.device import ProbeResult, ReceiveCompletion, SendCompletion


class MatchingEndpoint(Protocol):
    """A node's access to a NIC that matches messages. `matching.SoftwareMatchingEndpoint` implements most of it for other
    NICs.

    A message matches the oldest receive for its context, its source or ANY_SOURCE, and its tag or ANY_TAG. A receive
    matches the oldest such message. Messages of one sender in one context do not overtake each other in matching. Ranks
    are the numbers of nodes; a node may send to itself.

    size: number of ranks. contexts: number of contexts, counted from 0; a receive matches messages of its own context
    only. max_tag: tags are 0 to max_tag. max_message_size: in bytes; a program that sends more gets an error, so a host
    library splits messages that are too long for its NIC.

    A call returns False, without effect, if too few descriptors are free; the device calls again when another of its
    transfers has completed. Neither sends nor receives may take all descriptors: otherwise two programs that both begin
    with many sends, or with many receives, could deadlock. Together they leave one descriptor for probes. Otherwise calls
    return True and complete `completion`, possibly at once, or fail it with an MPIError:

    - ERR_TRUNCATE: the message is longer than the buffer, which is full. The error's envelope has the message's source and
      tag, and the size of the buffer. The send succeeds.
    - ERR_PROC_FAILED: the peer has crashed or restarted, has given up or does not answer. Whether a sent message has
      arrived is not known; a receive's buffer may hold part of a message.

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
        """Send. Completes when the buffer may be reused; the source of the resulting envelope is the destination. If the
        endpoint learns later whether the message has arrived, it reports that: see `SendCompletion`."""
        ...

    def send_synchronously(
        self, destination: int, context: int, tag: int, data: memoryview, completion: SendCompletion
    ) -> bool:
        """Send as `send`, but complete only after the message has been matched."""
        ...

    def receive(self, source: int, context: int, tag: int, buffer: memoryview, completion: ReceiveCompletion) -> bool:
        """Receive. Completes when a message has been received. source: may be ANY_SOURCE. tag: may be ANY_TAG."""
        ...

    def receive_claimed(self, probe_result: ProbeResult, buffer: memoryview, completion: ReceiveCompletion) -> bool:
        """Receive a message that a probe has claimed."""
        ...

    def probe(
        self, source: int, context: int, tag: int, wait: bool, claim: bool, completion: Completion[ProbeResult | None]
    ) -> bool:
        """Find the oldest message that such a receive would match, without receiving it. wait: complete when there is one;
        otherwise complete soon, with None if there is none. claim: only `receive_claimed` can receive the message
        afterwards."""
        ...


@runtime_checkable
class ScatteringEndpoint(MatchingEndpoint, Protocol):
    """An endpoint whose NIC gathers sends from several segments of memory, and scatters receives to them."""

    def is_gathered(self, iov: IoVec) -> bool:
        """Whether the NIC gathers and scatters such a message. The device copies other messages to contiguous memory."""
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
    """An endpoint whose NIC drops the data of messages without a posted receive; the sender retransmits it after a
    timeout."""

    @property
    def slots(self) -> int:
        """Number of standing receives for which there are descriptors, equal at all ranks."""
        ...

    def receive_standing(self, context: int, tag: int, buffer: memoryview, completion: ReceiveCompletion) -> bool:
        """Receive from any rank, as `receive`. No program waits for such a receive, and reports of stalls omit it."""
        ...


@runtime_checkable
class CrashAwareEndpoint(MatchingEndpoint, Protocol):
    """An endpoint that does not wait for the rest of a crashed rank's messages."""

    def report_crash(self, rank: int) -> None:
        """Report that a rank has crashed and will not restart: receives that have matched an incomplete message from it
        fail with ERR_PROC_FAILED, and its incomplete messages without a receive are discarded."""
        ...


@runtime_checkable
class ConnectingEndpoint(MatchingEndpoint, Protocol):
    """An endpoint whose ranks must be connected before they exchange messages."""

    async def connect_ranks(self) -> None:
        """Connect to all ranks before the program begins. Raises MPIError (ERR_PROC_FAILED) if a rank refuses, restarts,
        or does not answer within the time limit of the protocol's settings."""
        ...

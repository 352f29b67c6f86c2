"""Matching: queues of posted receives and of unexpected messages, in order (mx_irecv).

A message matches a receive if their match information is equal in the bits of the receive's mask. If an endpoint has
context ids, these are bits of the match information that every receive must specify, and each context id has separate
queues.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from protocols.core.completion import Completion
from protocols.openmx.mx_names import MATCH_NONE, MAX_CONTEXT_BITS, MxError, Status
from protocols.openmx.mx_requests import Incoming, Request

if TYPE_CHECKING:
    from protocols.openmx.partners import Partner


class _Probe(NamedTuple):
    match_info: int
    mask: int
    result: Completion[Incoming | None]


class ReceiveQueues:
    """The queues of one endpoint."""

    def __init__(self, context_bits: int = 0, context_shift: int = 0) -> None:
        """context_bits, context_shift: the bits of the match information that are the context id. Raises MxError."""
        if not 0 <= context_bits <= MAX_CONTEXT_BITS or not 0 <= context_shift <= 64 - context_bits:
            raise MxError(
                Status.NO_RESOURCES,
                f"context_bits must be 0 to {MAX_CONTEXT_BITS} within 64 bits, got {context_bits} at bit {context_shift}",
            )
        self._contexts: Final = (1 << context_bits) - 1 << context_shift
        self._posted: dict[int, deque[Request]] = {}
        self._unexpected: dict[int, deque[Incoming]] = {}
        self._probes: list[_Probe] = []

    def check(self, match_info: int, mask: int) -> None:
        """Raise MxError unless a receive specifies its context, and its match information is within its mask."""
        if mask == MATCH_NONE and 0 <= match_info <= MATCH_NONE:  # all bits are compared, those of the context, too
            return
        if not 0 <= match_info < 1 << 64 or not 0 <= mask < 1 << 64:
            raise MxError(Status.NO_RESOURCES, f"match 0x{match_info:x} and mask 0x{mask:x} must have 64 bits or fewer")
        if match_info & ~mask:
            raise MxError(Status.NO_RESOURCES, f"match 0x{match_info:x} has bits outside of its mask 0x{mask:x}")
        if mask & self._contexts != self._contexts:
            raise MxError(Status.NO_RESOURCES, f"mask 0x{mask:x} must contain the context bits 0x{self._contexts:x}")

    def post(self, request: Request) -> Incoming | None:
        """Post a receive; return the oldest unexpected message that it matches, or None if the receive is queued."""
        incoming = self.find(request.match_info, request.mask)
        context = request.match_info & self._contexts
        if incoming is not None:
            self._unexpected[context].remove(incoming)
        elif context in self._posted:
            self._posted[context].append(request)
        else:
            self._posted[context] = deque([request])
        return incoming

    def match(self, match_info: int) -> Request | None:
        """Dequeue and return the oldest receive that matches a message."""
        posted = self._posted.get(match_info & self._contexts)
        if posted:
            for request in posted:
                if match_info & request.mask == request.match_info:
                    posted.remove(request)
                    return request
        return None

    def keep(self, incoming: Incoming) -> None:
        """Queue an unexpected message, and complete the probes that it matches."""
        self._unexpected.setdefault(incoming.match_info & self._contexts, deque()).append(incoming)
        matching = [probe for probe in self._probes if incoming.match_info & probe.mask == probe.match_info]
        for probe in matching:
            self._probes.remove(probe)
        for probe in matching:
            probe.result.complete(incoming)

    def find(self, match_info: int, mask: int) -> Incoming | None:
        """Return the oldest unexpected message that matches."""
        for incoming in self._unexpected.get(match_info & self._contexts, ()):
            if incoming.match_info & mask == match_info:
                return incoming
        return None

    def claim(self, incoming: Incoming) -> None:
        """Remove an unexpected message from the queue."""
        self._unexpected[incoming.match_info & self._contexts].remove(incoming)

    def probe(self, match_info: int, mask: int) -> Completion[Incoming | None]:
        """Wait for an unexpected message that matches."""
        result: Completion[Incoming | None] = Completion("a message that matches 0x%x", match_info)
        incoming = self.find(match_info, mask)
        if incoming is not None:
            result.complete(incoming)
        else:
            self._probes.append(_Probe(match_info, mask, result))
        return result

    def wake(self) -> None:
        """End all probes without a message."""
        probes, self._probes = self._probes, []
        for probe in probes:
            probe.result.complete(None)

    def cancel(self, request: Request) -> bool:
        """Cancel a posted receive. Returns False if a message has matched it."""
        posted = self._posted.get(request.match_info & self._contexts, deque())
        if request not in posted:
            return False
        posted.remove(request)
        return True

    def forget(self, incoming: Incoming) -> None:
        """Remove an incomplete unexpected message."""
        unexpected = self._unexpected.get(incoming.match_info & self._contexts, deque())
        if incoming in unexpected:
            unexpected.remove(incoming)

    def unpulled(self, source: Partner) -> list[Incoming]:
        """Return a partner's unexpected rendezvous messages."""
        unexpected = [incoming for queue in self._unexpected.values() for incoming in queue]
        return [incoming for incoming in unexpected if incoming.source is source and incoming.region >= 0]

    def posted(self) -> list[Request]:
        """Return the posted receives."""
        return [request for posted in self._posted.values() for request in posted]

    def clear(self) -> list[Request]:
        """Clear all queues; return the posted receives."""
        posted = self.posted()
        self._posted.clear()
        self._unexpected.clear()
        self.wake()
        return posted

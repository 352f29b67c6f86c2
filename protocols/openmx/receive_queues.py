"""Matching: posted receives without a message, and unexpected messages, both in order (mx_irecv).

A message matches a receive whose mask's bits of the match information are equal. Where an endpoint has context ids, they are
bits of the match information that every receive names, and each has queues of its own.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from protocols.core.completion import Completion
from protocols.openmx.mx_names import MAX_CONTEXT_BITS, MxError, Status
from protocols.openmx.mx_requests import Incoming, Request

if TYPE_CHECKING:
    from protocols.openmx.partners import Partner


class _Probe(NamedTuple):
    match_info: int
    mask: int
    found: Completion[Incoming | None]


class ReceiveQueues:
    """The queues of one endpoint."""

    def __init__(self, context_bits: int = 0, context_shift: int = 0) -> None:
        """context_bits, context_shift: the bits of the match information that are the context id. MxError."""
        if not 0 <= context_bits <= MAX_CONTEXT_BITS or not 0 <= context_shift <= 64 - context_bits:
            raise MxError(Status.NO_RESOURCES, f"{context_bits} bits of context at bit {context_shift}: not within 64")
        self._contexts: Final = (1 << context_bits) - 1 << context_shift
        self._posted: dict[int, deque[Request]] = {}
        self._unexpected: dict[int, deque[Incoming]] = {}
        self._probes: list[_Probe] = []

    def check(self, match_info: int, mask: int) -> None:
        """Raise MxError unless a receive names its context and nothing outside its mask."""
        if not 0 <= match_info < 1 << 64 or not 0 <= mask < 1 << 64:
            raise MxError(Status.NO_RESOURCES, "match information and mask have 64 bits")
        if match_info & ~mask:
            raise MxError(Status.NO_RESOURCES, f"match 0x{match_info:x} has bits outside of its mask 0x{mask:x}")
        if mask & self._contexts != self._contexts:
            raise MxError(Status.NO_RESOURCES, f"mask 0x{mask:x} leaves the context 0x{self._contexts:x} open")

    def post(self, request: Request) -> Incoming | None:
        """Post a receive; return the oldest message that it matches, otherwise it waits."""
        found = self.find(request.match_info, request.mask)
        if found is None:
            self._posted.setdefault(request.match_info & self._contexts, deque()).append(request)
        else:
            self._unexpected[found.match_info & self._contexts].remove(found)
        return found

    def match(self, match_info: int) -> Request | None:
        """Return the oldest receive for a message, which is then matched."""
        posted = self._posted.get(match_info & self._contexts)
        if posted:
            for request in posted:
                if match_info & request.mask == request.match_info:
                    posted.remove(request)
                    return request
        return None

    def keep(self, incoming: Incoming) -> None:
        """Keep an unexpected message, and answer the probes that it matches."""
        self._unexpected.setdefault(incoming.match_info & self._contexts, deque()).append(incoming)
        told = [probe for probe in self._probes if incoming.match_info & probe.mask == probe.match_info]
        for probe in told:
            self._probes.remove(probe)
        for probe in told:
            probe.found.complete(incoming)

    def find(self, match_info: int, mask: int) -> Incoming | None:
        """Return the oldest unexpected message that matches."""
        for incoming in self._unexpected.get(match_info & self._contexts, ()):
            if incoming.match_info & mask == match_info:
                return incoming
        return None

    def claim(self, incoming: Incoming) -> None:
        """Take an unexpected message out of the queue."""
        self._unexpected[incoming.match_info & self._contexts].remove(incoming)

    def probe(self, match_info: int, mask: int) -> Completion[Incoming | None]:
        """Wait for a message that matches."""
        found: Completion[Incoming | None] = Completion("a message that matches 0x%x", match_info)
        known = self.find(match_info, mask)
        if known is not None:
            found.complete(known)
        else:
            self._probes.append(_Probe(match_info, mask, found))
        return found

    def wake(self) -> None:
        """End all probes without a message."""
        probes, self._probes = self._probes, []
        for probe in probes:
            probe.found.complete(None)

    def cancel(self, request: Request) -> bool:
        """Take back a posted receive; False if it has been matched."""
        posted = self._posted.get(request.match_info & self._contexts, deque())
        if request not in posted:
            return False
        posted.remove(request)
        return True

    def forget(self, incoming: Incoming) -> None:
        """Remove an unexpected message that will not be complete."""
        kept = self._unexpected.get(incoming.match_info & self._contexts, deque())
        if incoming in kept:
            kept.remove(incoming)

    def unpulled(self, source: Partner) -> list[Incoming]:
        """Return a partner's unexpected messages that would have to be pulled."""
        kept = [incoming for queue in self._unexpected.values() for incoming in queue]
        return [incoming for incoming in kept if incoming.source is source and incoming.region >= 0]

    def posted(self) -> list[Request]:
        """Return the receives without a message."""
        return [request for posted in self._posted.values() for request in posted]

    def clear(self) -> list[Request]:
        """Forget everything; return the receives."""
        posted = self.posted()
        self._posted.clear()
        self._unexpected.clear()
        self.wake()
        return posted

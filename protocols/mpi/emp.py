"""MPI's device on EMP. EMP's NIC matches by source and by a tag of 32 bits, of which the upper eight are the context.

A send completes when its message has been received into a buffer: EMP acknowledges nothing else. So every Send is
synchronous, which MPI permits, and the receive of a message to oneself must begin before the send is waited for.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from protocols.core.completion import Completion
from protocols.core.memory import PAGE
from protocols.emp import descriptors
from protocols.emp.descriptors import MAX_PAGES, chained
from protocols.emp.host import (
    DescriptorsExhaustedError,
    EmpError,
    Endpoint,
    Received,
    TakenBackError,
    TruncatedError,
    any_tag,
    pages_of,
)
from protocols.emp.host import ProbeResult as EmpFound
from protocols.mpi.constants import ANY_SOURCE, ANY_TAG
from protocols.mpi.device import Device, Dispatch, ProbeResult, Receipt
from protocols.mpi.iovec import IoVec
from protocols.mpi.mpi_errors import CANCELLED, ERR_OTHER, ERR_PROC_FAILED, ERR_TRUNCATE, Envelope, MPIError

_TAG_BITS: Final = 24
_TAG: Final = (1 << _TAG_BITS) - 1
_LONGEST_CHAIN: Final = 4
"""Descriptors."""
_SLOTS: Final = 8
"""Standing receives (ours): each is posted again as soon as its message has been copied."""
_WORTH: Final = 256
"""Minimum mean size of the segments, in bytes, for which the NIC moves a message in place; the host copies others. Ours."""


class EmpEndpoint:
    """Adapter of EMP's host library to MPI. Implements `MatchingEndpoint`.

    Of the descriptors free at first, an eighth is reserved from sends, and an eighth from receives; if there are
    enough, one is reserved for probes. A transfer counts with the descriptors of its chain, though it may get by with
    one.
    """

    __slots__ = (
        "_host",
        "_max_together",
        "_most",
        "_receives",
        "_sends",
        "contexts",
        "max_message_size",
        "max_tag",
        "rank",
        "size",
        "slots",
    )  # fmt: skip

    def __init__(self, host: Endpoint) -> None:
        self._host = host
        self.rank = host.number
        self.size = host.size
        self.contexts = 256
        self.max_tag = _TAG
        self.max_message_size = MAX_PAGES * PAGE
        count = host.free
        self._most = count - max(count // 8, min(_LONGEST_CHAIN, count // 2))
        self._max_together = count - 1 if count // 8 > _LONGEST_CHAIN else 2 * count
        self.slots = min(_SLOTS, count // 16)
        self._sends = 0  # descriptors in use
        self._receives = 0

    def send(self, destination: int, context: int, tag: int, data: memoryview, over: Dispatch) -> bool:
        taken = _descriptors(data)
        if (self._sends and self._sends + taken > self._most) or self._is_full(taken):
            return False
        try:
            posted = self._host.post_send(destination, context << _TAG_BITS | tag, data)
        except DescriptorsExhaustedError:
            return False
        self._sends += taken
        posted.add_callback(partial(self._sent, taken, over))
        return True

    def send_synchronously(self, destination: int, context: int, tag: int, data: memoryview, over: Dispatch) -> bool:
        return self.send(destination, context, tag, data, over)  # all sends are

    def is_gathered(self, iov: IoVec) -> bool:
        """Each segment costs an entry of a descriptor and a DMA transfer: short ones are copied faster."""
        return len(iov) >= _WORTH * len(iov.spans) and _pages(iov) <= MAX_PAGES

    def send_iov(
        self,
        destination: int,
        context: int,
        tag: int,
        data: IoVec,
        synchronous: bool,  # noqa: ARG002  all are
        over: Completion[Envelope],
    ) -> bool:
        taken = chained(_pages(data))
        if (self._sends and self._sends + taken > self._most) or self._is_full(taken):
            return False
        try:
            posted = self._host.post_send_iov(destination, context << _TAG_BITS | tag, data.views())
        except DescriptorsExhaustedError:
            return False
        self._sends += taken
        posted.add_callback(partial(self._sent, taken, over))
        return True

    def receive_iov(self, source: int, context: int, tag: int, buffer: IoVec, over: Receipt) -> bool:
        post = partial(self._host.post_receive_iov, *_wanted(source, context, tag), buffer.views())
        return self._receive(post, chained(_pages(buffer)), len(buffer), over)

    def receive(self, source: int, context: int, tag: int, buffer: memoryview, over: Receipt) -> bool:
        post = partial(self._host.post_receive, *_wanted(source, context, tag), buffer)
        return self._receive(post, _descriptors(buffer), len(buffer), over)

    def receive_standing(self, context: int, tag: int, buffer: memoryview, over: Receipt) -> bool:
        try:
            posted = self._host.post_standing(context << _TAG_BITS | tag, buffer)
        except DescriptorsExhaustedError:
            return False
        posted.add_callback(partial(_finish, over, size=len(buffer)))
        return True

    def receive_claimed(self, found: ProbeResult, buffer: memoryview, over: Receipt) -> bool:
        assert isinstance(found.handle, EmpFound)
        post = partial(self._host.post_claimed, found.handle, buffer)
        return self._receive(post, _descriptors(buffer), len(buffer), over)

    def probe(
        self, source: int, context: int, tag: int, wait: bool, claim: bool, over: Completion[ProbeResult | None]
    ) -> bool:
        try:
            posted = self._host.post_probe(*_wanted(source, context, tag), wait=wait, claim=claim)
        except DescriptorsExhaustedError:
            return False
        posted.add_callback(partial(_answer, over))
        return True

    def _receive(self, post: Callable[[], Completion[Received]], taken: int, size: int, over: Receipt) -> bool:
        if (self._receives and self._receives + taken > self._most) or self._is_full(taken):
            return False
        try:
            posted = post()
        except DescriptorsExhaustedError:
            return False
        self._receives += taken
        over.take_back = partial(self._host.take_back, posted)
        posted.add_callback(partial(self._received, taken, size, over))
        return True

    def _is_full(self, taken: int) -> bool:
        return self._sends + self._receives + taken > self._max_together

    def _sent(self, taken: int, over: Completion[Envelope], posted: Completion[Received]) -> None:
        self._sends -= taken
        _finish(over, posted, 0)

    def _received(self, taken: int, size: int, over: Completion[Envelope], posted: Completion[Received]) -> None:
        self._receives -= taken
        _finish(over, posted, size)


def device(host: Endpoint) -> Device:
    """Make the device for a node's communicators; one for each endpoint."""
    return Device(EmpEndpoint(host))


def _descriptors(buffer: memoryview) -> int:
    return 1 if len(buffer) <= PAGE else chained((len(buffer) + PAGE - 1) // PAGE)


def _pages(iov: IoVec) -> int:
    return pages_of([length for _, length in iov.spans])


def _wanted(source: int, context: int, tag: int) -> tuple[int, int]:
    """Convert source and tag to EMP's."""
    return (
        descriptors.ANY_SOURCE if source == ANY_SOURCE else source,
        any_tag(context) if tag == ANY_TAG else context << _TAG_BITS | tag,
    )


def _answer(over: Completion[ProbeResult | None], posted: Completion[EmpFound | None]) -> None:
    try:
        found = posted.result()
    except EmpError as error:
        over.fail(MPIError(ERR_OTHER, str(error)))
        return
    if found is None:
        over.complete(None)
    else:
        over.complete(ProbeResult(Envelope(found.source, found.tag & _TAG, found.length), found))


def _finish(over: Completion[Envelope], posted: Completion[Received], size: int) -> None:
    try:
        source, tag, length = posted.result()
    except TruncatedError as error:
        source, tag, length = error.received
        tag &= _TAG
        message = f"a message of {length} bytes from rank {source}, tag {tag}, for a buffer of {size} bytes"
        over.fail(MPIError(ERR_TRUNCATE, message, Envelope(source, tag, size)))
    except TakenBackError:
        over.complete(CANCELLED)
    except EmpError as error:
        over.fail(MPIError(ERR_PROC_FAILED, str(error)))
    else:
        over.complete(Envelope(source, tag & _TAG, length))

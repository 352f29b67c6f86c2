"""MPI's device on EMP. EMP's NIC matches by source and by a tag of 32 bits: the upper eight are the context.

A message that has been sent has been received, into a buffer: EMP acknowledges nothing else. So a Send waits for its
receive, which MPI permits, and a message to oneself needs the receive begun before one waits for the send.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from protocols.core.completion import Completion
from protocols.core.memory import PAGE
from protocols.emp import descriptors
from protocols.emp.descriptors import MOST_PAGES, chained
from protocols.emp.host import DescriptorsExhaustedError, EmpError, Endpoint, Received, TruncatedError, any_tag
from protocols.mpi.constants import ANY_SOURCE, ANY_TAG
from protocols.mpi.device import Device
from protocols.mpi.errors import ERR_PROC_FAILED, ERR_TRUNCATE, Envelope, MPIError

_TAG_BITS: Final = 24
_TAG: Final = (1 << _TAG_BITS) - 1
_LONGEST_CHAIN: Final = 4
"""Descriptors."""


class EmpEndpoint:
    """EMP's host library as MPI wants it. Implements `MatchingEndpoint`.

    Of the descriptors free at first, an eighth is out of bounds for sends, and an eighth for receives. A transfer is counted
    with as many as its chain takes, though it may get by with one.
    """

    __slots__ = ("_host", "_most", "_receives", "_sends", "contexts", "most_bytes", "most_tag", "rank", "size")

    def __init__(self, host: Endpoint) -> None:
        self._host = host
        self.rank = host.number
        self.size = host.size
        self.contexts = 256
        self.most_tag = _TAG
        self.most_bytes = MOST_PAGES * PAGE
        count = host.free
        self._most = count - max(count // 8, min(_LONGEST_CHAIN, count // 2))
        self._sends = 0  # descriptors in use
        self._receives = 0

    def send(self, destination: int, context: int, tag: int, data: memoryview, over: Completion[Envelope]) -> bool:
        taken = _descriptors(data)
        if self._sends and self._sends + taken > self._most:
            return False
        try:
            posted = self._host.post_send(destination, context << _TAG_BITS | tag, data)
        except DescriptorsExhaustedError:
            return False
        self._sends += taken
        posted.add_callback(partial(self._sent, taken, over))
        return True

    def receive(self, source: int, context: int, tag: int, buffer: memoryview, over: Completion[Envelope]) -> bool:
        taken = _descriptors(buffer)
        if self._receives and self._receives + taken > self._most:
            return False
        node = descriptors.ANY_SOURCE if source == ANY_SOURCE else source
        try:
            posted = self._host.post_receive(
                node, any_tag(context) if tag == ANY_TAG else context << _TAG_BITS | tag, buffer
            )
        except DescriptorsExhaustedError:
            return False
        self._receives += taken
        posted.add_callback(partial(self._received, taken, len(buffer), over))
        return True

    def _sent(self, taken: int, over: Completion[Envelope], posted: Completion[Received]) -> None:
        self._sends -= taken
        _finish(over, posted, 0)

    def _received(self, taken: int, size: int, over: Completion[Envelope], posted: Completion[Received]) -> None:
        self._receives -= taken
        _finish(over, posted, size)


def device(host: Endpoint) -> Device:
    """For a node's communicators; one for each endpoint."""
    return Device(EmpEndpoint(host))


def _descriptors(buffer: memoryview) -> int:
    return chained((len(buffer) + PAGE - 1) // PAGE)


def _finish(over: Completion[Envelope], posted: Completion[Received], size: int) -> None:
    try:
        source, tag, length = posted.result()
    except TruncatedError as error:
        source, tag, length = error.received
        tag &= _TAG
        message = f"a message of {length} bytes from rank {source}, tag {tag}, for a buffer of {size} bytes"
        over.fail(MPIError(ERR_TRUNCATE, message, Envelope(source, tag, size)))
    except EmpError as error:
        over.fail(MPIError(ERR_PROC_FAILED, str(error)))
    else:
        over.complete(Envelope(source, tag & _TAG, length))

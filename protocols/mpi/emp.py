"""MPI's device on EMP. EMP's NIC matches by source and by a tag of 32 bits, of which the upper eight are the context.

EMP acknowledges a message only when it has been received into a posted buffer. So every send is synchronous, which MPI
permits for a standard send: a program that sends to itself must post the receive before it waits for the send.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from protocols.core.completion import Completion
from protocols.core.memory import PAGE
from protocols.emp import descriptors
from protocols.emp.descriptors import MAX_PAGES, chain_length
from protocols.emp.host import (
    DescriptorsExhaustedError,
    EmpError,
    Endpoint,
    ReceiveCancelledError,
    ReceiveResult,
    TruncatedError,
    any_tag,
    page_count,
)
from protocols.emp.host import ProbeResult as EmpProbeResult
from protocols.mpi.constants import ANY_SOURCE, ANY_TAG
from protocols.mpi.device import Device, ProbeResult, ReceiveCompletion, SendCompletion
from protocols.mpi.iovec import IoVec
from protocols.mpi.mpi_errors import CANCELLED, ERR_OTHER, ERR_PROC_FAILED, ERR_TRUNCATE, Envelope, MPIError

_TAG_BITS: Final = 24
_TAG_MASK: Final = (1 << _TAG_BITS) - 1
_MAX_CHAIN: Final = 4  # descriptors
_MAX_SLOTS: Final = 8
"""Maximum number of standing receives, each of which is reposted as soon as its message has been copied. Our choice."""
_MIN_MEAN_SEGMENT: Final = 256
"""Minimum mean size of a message's segments, in bytes, for which the NIC gathers or scatters them; otherwise the host copies
them. Our choice."""


class EmpEndpoint:
    """Adapter of EMP's host library to MPI. Implements `ScatteringEndpoint`, `DroppingEndpoint` and `CrashAwareEndpoint`.

    Sends leave an eighth of the descriptors to receives, and receives leave an eighth to sends, but at least four, or half
    if there are fewer than eight. With enough descriptors, one is reserved for probes, and one for each standing receive. A
    transfer is charged for the longest chain that it may need, even if the host library uses a list of pages instead.

    slots: see `DroppingEndpoint`.
    """

    __slots__ = (
        "_host",
        "_max_in_use",
        "_max_per_direction",
        "_receive_descriptors",
        "_send_descriptors",
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
        self.max_tag = _TAG_MASK
        self.max_message_size = MAX_PAGES * PAGE
        count = host.free_descriptors
        self._max_per_direction = count - max(count // 8, min(_MAX_CHAIN, count // 2))
        self.slots = min(_MAX_SLOTS, count // 16)
        # With too few descriptors for the reservations, only the limits per direction apply.
        self._max_in_use = count - 1 - self.slots if count // 8 > _MAX_CHAIN else 2 * count
        self._send_descriptors = 0  # charged to sends in progress
        self._receive_descriptors = 0  # charged to receives in progress

    def send(self, destination: int, context: int, tag: int, data: memoryview, completion: SendCompletion) -> bool:
        descriptor_count = _count_descriptors(data)
        if self._must_wait(self._send_descriptors, descriptor_count):
            return False
        try:
            operation = self._host.post_send(destination, context << _TAG_BITS | tag, data)
        except DescriptorsExhaustedError:
            return False
        self._send_descriptors += descriptor_count
        operation.add_callback(partial(self._on_send_done, descriptor_count, completion))
        return True

    def send_synchronously(
        self, destination: int, context: int, tag: int, data: memoryview, completion: SendCompletion
    ) -> bool:
        return self.send(destination, context, tag, data, completion)  # all sends are synchronous

    def is_gathered(self, iov: IoVec) -> bool:
        """Whether the NIC gathers or scatters the segments. Each segment costs an entry in a descriptor and a DMA transfer,
        so short ones are copied instead."""
        return len(iov) >= _MIN_MEAN_SEGMENT * len(iov.spans) and _count_pages(iov) <= MAX_PAGES

    def send_iov(
        self,
        destination: int,
        context: int,
        tag: int,
        data: IoVec,
        synchronous: bool,  # noqa: ARG002  all sends are synchronous
        completion: Completion[Envelope],
    ) -> bool:
        descriptor_count = chain_length(_count_pages(data))
        if self._must_wait(self._send_descriptors, descriptor_count):
            return False
        try:
            operation = self._host.post_send_iov(destination, context << _TAG_BITS | tag, data.views())
        except DescriptorsExhaustedError:
            return False
        self._send_descriptors += descriptor_count
        operation.add_callback(partial(self._on_send_done, descriptor_count, completion))
        return True

    def receive_iov(self, source: int, context: int, tag: int, buffer: IoVec, completion: ReceiveCompletion) -> bool:
        post = partial(self._host.post_receive_iov, *_match_arguments(source, context, tag), buffer.views())
        return self._receive(post, chain_length(_count_pages(buffer)), len(buffer), completion)

    def receive(self, source: int, context: int, tag: int, buffer: memoryview, completion: ReceiveCompletion) -> bool:
        post = partial(self._host.post_receive, *_match_arguments(source, context, tag), buffer)
        return self._receive(post, _count_descriptors(buffer), len(buffer), completion)

    def receive_standing(self, context: int, tag: int, buffer: memoryview, completion: ReceiveCompletion) -> bool:
        try:
            operation = self._host.post_standing(context << _TAG_BITS | tag, buffer)
        except DescriptorsExhaustedError:
            return False
        operation.add_callback(partial(_complete_transfer, completion, size=len(buffer)))
        return True

    def receive_claimed(self, probe_result: ProbeResult, buffer: memoryview, completion: ReceiveCompletion) -> bool:
        assert isinstance(probe_result.handle, EmpProbeResult)
        post = partial(self._host.post_claimed, probe_result.handle, buffer)
        return self._receive(post, _count_descriptors(buffer), len(buffer), completion)

    def probe(
        self, source: int, context: int, tag: int, wait: bool, claim: bool, completion: Completion[ProbeResult | None]
    ) -> bool:
        try:
            operation = self._host.post_probe(*_match_arguments(source, context, tag), wait=wait, claim=claim)
        except DescriptorsExhaustedError:
            return False
        operation.add_callback(partial(_complete_probe, completion))
        return True

    def report_crash(self, rank: int) -> None:
        self._host.report_crash(rank)

    def _receive(
        self,
        post: Callable[[], Completion[ReceiveResult]],
        descriptor_count: int,
        size: int,
        completion: ReceiveCompletion,
    ) -> bool:
        if self._must_wait(self._receive_descriptors, descriptor_count):
            return False
        try:
            operation = post()
        except DescriptorsExhaustedError:
            return False
        self._receive_descriptors += descriptor_count
        completion.cancel = partial(self._host.cancel, operation)
        operation.add_callback(partial(self._on_receive_done, descriptor_count, size, completion))
        return True

    def _must_wait(self, direction_count: int, descriptor_count: int) -> bool:
        """Whether a transfer of this many descriptors must wait. direction_count: descriptors charged to transfers in its
        direction; if there are none, the limit per direction does not apply."""
        return (direction_count > 0 and direction_count + descriptor_count > self._max_per_direction) or (
            self._send_descriptors + self._receive_descriptors + descriptor_count > self._max_in_use
        )

    def _on_send_done(
        self, descriptor_count: int, completion: Completion[Envelope], operation: Completion[ReceiveResult]
    ) -> None:
        self._send_descriptors -= descriptor_count
        _complete_transfer(completion, operation, 0)

    def _on_receive_done(
        self, descriptor_count: int, size: int, completion: Completion[Envelope], operation: Completion[ReceiveResult]
    ) -> None:
        self._receive_descriptors -= descriptor_count
        _complete_transfer(completion, operation, size)


def device(host: Endpoint) -> Device:
    """Make the device for a node's communicators; one for each endpoint."""
    return Device(EmpEndpoint(host))


def _count_descriptors(buffer: memoryview) -> int:
    return 1 if len(buffer) <= PAGE else chain_length((len(buffer) + PAGE - 1) // PAGE)


def _count_pages(iov: IoVec) -> int:
    return page_count([length for _, length in iov.spans])


def _match_arguments(source: int, context: int, tag: int) -> tuple[int, int]:
    """Convert MPI's source, context and tag to EMP's source and tag."""
    return (
        descriptors.ANY_SOURCE if source == ANY_SOURCE else source,
        any_tag(context) if tag == ANY_TAG else context << _TAG_BITS | tag,
    )


def _complete_probe(completion: Completion[ProbeResult | None], operation: Completion[EmpProbeResult | None]) -> None:
    try:
        probe_result = operation.result()
    except EmpError as error:
        completion.fail(MPIError(ERR_OTHER, str(error)))
        return
    if probe_result is None:
        completion.complete(None)
    else:
        completion.complete(
            ProbeResult(Envelope(probe_result.source, probe_result.tag & _TAG_MASK, probe_result.length), probe_result)
        )


def _complete_transfer(completion: Completion[Envelope], operation: Completion[ReceiveResult], size: int) -> None:
    try:
        source, tag, length = operation.result()
    except TruncatedError as truncated:
        source, tag, length = truncated.received
        tag &= _TAG_MASK
        message = f"a message of {length} bytes from rank {source}, tag {tag}, for a buffer of {size} bytes"
        completion.fail(MPIError(ERR_TRUNCATE, message, Envelope(source, tag, size)))
    except ReceiveCancelledError:
        completion.complete(CANCELLED)
    except EmpError as error:
        completion.fail(MPIError(ERR_PROC_FAILED, str(error)))
    else:
        completion.complete(Envelope(source, tag & _TAG_MASK, length))

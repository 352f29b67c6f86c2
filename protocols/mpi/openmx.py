"""MPI on Open-MX: MX matches messages by 64 bits of match information, which hold MPI's context, source and tag.

The upper 16 bits are the context, the next 16 the source, and the lower 32 the tag. The context selects the endpoint's
matching queue (MX's context ids). Each rank has one endpoint. The first message to a rank connects to its endpoint. A send
is complete when its buffer may be reused; its message is known to have arrived when it has been acknowledged. When a
connection is lost, the transfers in progress with that rank fail, and the next message connects again.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from protocols.core.completion import Completion
from protocols.mpi.constants import ANY_SOURCE, ANY_TAG
from protocols.mpi.device import Device, ProbeResult, ReceiveCompletion, SendCompletion
from protocols.mpi.mpi_errors import CANCELLED, ERR_PROC_FAILED, ERR_TRUNCATE, Envelope, MPIError
from protocols.openmx.host import Library
from protocols.openmx.mx_names import MATCH_NONE, Status
from protocols.openmx.mx_requests import Incoming, Request, Result
from protocols.openmx.partners import Partner

_TAG_BITS: Final = 32
_SOURCE_BITS: Final = 16
_TAG_MASK: Final = (1 << _TAG_BITS) - 1
_SOURCE_MASK: Final = (1 << _SOURCE_BITS) - 1
_CONTEXT_SHIFT: Final = _TAG_BITS + _SOURCE_BITS
_CONTEXT_BITS: Final = 64 - _CONTEXT_SHIFT


class OpenMxEndpoint:
    """Adapter of Open-MX's library to MPI. Implements `CrashAwareEndpoint`."""

    def __init__(self, host: Library) -> None:
        self.rank = host.number
        self.size = host.size
        self.contexts = 1 << _CONTEXT_BITS
        self.max_tag = (1 << 31) - 1
        self.max_message_size = (1 << 32) - 1
        self._endpoint: Final = host.open_endpoint(context_bits=_CONTEXT_BITS, context_shift=_CONTEXT_SHIFT)
        self._endpoint.on_lost = self._on_connection_lost
        self._index_of = host.index_of
        self._partners: dict[int, Partner] = {}  # by rank
        self._receives: dict[Request, tuple[int, ReceiveCompletion]] = {}  # those in progress, with their source
        self._probes: list[tuple[int, Completion[ProbeResult | None]]] = []  # waiting ones, with their source
        if host.is_restarted:  # messages to the former incarnation are lost, which their senders may not detect
            for rank in range(self.size):
                if rank != self.rank:
                    self._endpoint.iconnect(self._partner(rank))

    def send(self, destination: int, context: int, tag: int, data: memoryview, completion: SendCompletion) -> bool:
        self._send(destination, context, tag, data, completion, synchronous=False)
        return True

    def send_synchronously(
        self, destination: int, context: int, tag: int, data: memoryview, completion: SendCompletion
    ) -> bool:
        self._send(destination, context, tag, data, completion, synchronous=True)
        return True

    def receive(self, source: int, context: int, tag: int, buffer: memoryview, completion: ReceiveCompletion) -> bool:
        match_info, mask = _match_arguments(source, context, tag)
        request = self._endpoint.irecv(buffer, match_info, mask, forget=True)
        if not request.done:
            completion.cancel = partial(self._endpoint.cancel, request)
            self._receives[request] = source, completion
        request.add_callback(partial(self._on_received, completion, request))
        return True

    def receive_claimed(self, probe_result: ProbeResult, buffer: memoryview, completion: ReceiveCompletion) -> bool:
        assert isinstance(probe_result.handle, Incoming)
        request = self._endpoint.receive_claimed(probe_result.handle, buffer)
        request.add_callback(partial(self._on_received, completion, request))
        return True

    def probe(
        self, source: int, context: int, tag: int, wait: bool, claim: bool, completion: Completion[ProbeResult | None]
    ) -> bool:
        match_info, mask = _match_arguments(source, context, tag)
        if not wait:
            self._complete_probe(completion, claim, self._endpoint.iprobe(match_info, mask))
            return True
        self._probes.append((source, completion))
        search = self._endpoint.probe(match_info, mask)
        search.add_callback(lambda done: self._complete_probe(completion, claim, done.result()))
        return True

    def _send(
        self,
        destination: int,
        context: int,
        tag: int,
        data: memoryview,
        completion: SendCompletion,
        *,
        synchronous: bool,
    ) -> None:
        endpoint, partner = self._endpoint, self._partner(destination)
        match_info = context << _CONTEXT_SHIFT | self.rank << _TAG_BITS | tag
        send = endpoint.issend if synchronous else endpoint.isend
        request = send([data], partner, match_info, forget=True)
        envelope = Envelope(destination, tag, len(data))
        if request.is_settled:
            _settle(completion, envelope, partner, request.result().status)
            return
        request.on_arrival = partial(_settle, completion, envelope, partner)
        request.add_callback(partial(_release, completion, envelope, request))

    def _partner(self, rank: int) -> Partner:
        """Return the library's record of a rank's endpoint, creating it for the first transfer."""
        partner = self._partners.get(rank)
        if partner is None:
            partner = self._partners[rank] = self._endpoint.partner(rank, self._index_of(rank))
        return partner

    def _on_received(self, completion: ReceiveCompletion, request: Request, done: Completion[Result]) -> None:
        self._receives.pop(request, None)
        result = done.result()
        status, match_info, length = result.status, result.match_info, result.length
        envelope = Envelope(match_info >> _TAG_BITS & _SOURCE_MASK, match_info & _TAG_MASK, length)
        if completion.done:
            return
        if status is Status.SUCCESS:
            completion.complete(envelope)
        elif status is Status.CANCELLED:
            completion.complete(CANCELLED)
        elif status is Status.TRUNCATED:
            size = len(request.buffer)
            message = f"a message of {length} bytes from rank {envelope.source}, tag {envelope.tag},"
            completion.fail(
                MPIError(ERR_TRUNCATE, f"{message} for a buffer of {size} bytes", envelope._replace(length=size))
            )
        else:
            completion.fail(MPIError(ERR_PROC_FAILED, f"{result.source}: {status.name}"))

    def _complete_probe(
        self, completion: Completion[ProbeResult | None], claim: bool, incoming: Incoming | None
    ) -> None:
        self._probes = [probe for probe in self._probes if probe[1] is not completion]
        if completion.done:
            return
        if incoming is None:
            completion.complete(None)
            return
        if claim:
            self._endpoint.claim(incoming)
        match_info = incoming.match_info
        completion.complete(
            ProbeResult(
                Envelope(match_info >> _TAG_BITS & _SOURCE_MASK, match_info & _TAG_MASK, incoming.length), incoming
            )
        )

    def report_crash(self, rank: int) -> None:
        self._endpoint.report_crash(self._partner(rank))

    def _on_connection_lost(self, partner: Partner, status: Status) -> None:
        """Fail the receives without a message, and the probes, that name a rank whose connection is lost."""
        error = MPIError(ERR_PROC_FAILED, f"rank {partner.node}: {status.name}")
        for request, (source, completion) in list(self._receives.items()):
            if source == partner.node and self._endpoint.cancel_quietly(request):
                self._receives.pop(request, None)
                completion.fail(error)
        for source, probe in list(self._probes):
            if source == partner.node:
                self._probes.remove((source, probe))
                probe.fail(error)


def device(host: Library) -> Device:
    """Make the device for a node's communicators; one for each host library."""
    return Device(OpenMxEndpoint(host))


def _match_arguments(source: int, context: int, tag: int) -> tuple[int, int]:
    """Convert source, context and tag to match information and a mask."""
    match_info, mask = context << _CONTEXT_SHIFT, MATCH_NONE
    if source == ANY_SOURCE:
        mask &= ~(_SOURCE_MASK << _TAG_BITS)
    else:
        match_info |= source << _TAG_BITS
    if tag == ANY_TAG:
        mask &= ~_TAG_MASK
    else:
        match_info |= tag
    return match_info, mask


def _release(completion: SendCompletion, envelope: Envelope, request: Request, done: Completion[Result]) -> None:
    """Complete a send whose buffer may be reused, although its message may not have arrived yet."""
    if not completion.done and not request.is_settled and done.result().status is Status.SUCCESS:
        completion.release(envelope)


def _settle(completion: SendCompletion, envelope: Envelope, partner: Partner, status: Status) -> None:
    """Record the outcome of a send: its message has been acknowledged, or is lost."""
    if status is Status.SUCCESS:
        if completion.done:
            completion.deliver()
        else:
            completion.complete(envelope)
        return
    error = MPIError(ERR_PROC_FAILED, f"{partner}: {status.name}: whether the message has arrived is not known")
    completion.abandon(error)

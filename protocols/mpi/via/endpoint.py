"""MPI on VIA: a VI to each rank, connected on demand, and matching by the library.

The receive queues of all VIs share one completion queue, so that one wait suffices for receives from any source. Unmatched
messages are kept in a list (`protocols.mpi.matching`). A synchronous send completes when the receiver reports the match.

Both ranks of a pair request a peer-to-peer connection: one because it has a message, the other in answer to the request.
A send completes when its last part has been copied or, for memory registered on the fly, when its last RDMA write
completes. When a connection is lost, transfers in progress fail, and the next message connects again. At the unreliable
delivery level, a gap in the sequence numbers reveals a lost message; the connection then ends, since the paper leaves
recovery to future work.

The NIC's slots, which hold descriptors and commands, limit the number of a rank's connections. Beyond the limit, a new
connection fails with an error that names the setting, and a peer's request is rejected.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from functools import partial
from typing import Final

from protocols.core.completion import drive
from protocols.core.host_work import COPY
from protocols.mpi.device import SendCompletion
from protocols.mpi.matching import CONTEXTS, SoftwareMatchingEndpoint
from protocols.mpi.mpi_errors import ERR_PROC_FAILED, MPIError
from protocols.mpi.via.rdma_pairs import MIN_TRANSFER, LostPartError, OutgoingMessage, Pair
from protocols.via.host import ViaNic
from protocols.via.vip_descriptors import Memory
from protocols.via.vipl_names import AsyncError, Result, ViaError, ViState
from protocols.via.virtual_interface import CompletionQueue, Descriptor, ErrorReport, Vi, WorkQueue

MPI: Final = "mpi"
"""Kind of work on the host (`protocols.core.host_work`): the MPI library's work for one message, at sender and receiver."""
_DISCRIMINATOR: Final = b"mpi"
_MIN_DEPTH: Final = 8
"""Minimum receive descriptors of a VI."""
_COMMAND_SLOTS: Final = 16
"""Slots of the NIC that are reserved for commands; two are always occupied by pending commands."""


class ViaEndpoint(SoftwareMatchingEndpoint):
    """Adapter of VIA's host library to MPI. Implements `ConnectingEndpoint` and `CrashAwareEndpoint`. pairs: connections, by
    the peer's rank."""

    def __init__(self, host: ViaNic) -> None:
        super().__init__()
        self.rank = host.number
        self.size = host.size
        self.contexts = CONTEXTS
        self.max_tag = (1 << 31) - 1
        self.max_message_size = 1 << 30
        self._host = host
        self._depth = min(host.settings.depth, max(_MIN_DEPTH, host.settings.slots // 2 // host.size))
        self._max_connections = max(0, min(host.size - 1, (host.settings.slots - _COMMAND_SLOTS) // (self._depth + 1)))
        self._allocated_count = 0  # number of connections that use slots, or will use them
        self._posted_count = 0  # number of connections whose receives are posted
        self._unopened: deque[Pair] = deque()  # connections that wait until lost ones are closed
        self._lost_pairs: deque[tuple[Pair, Vi]] = deque()
        self._is_closing = False
        self.pairs: dict[int, Pair] = {}
        self._by_vi: dict[Vi, Pair] = {}
        self._cq: CompletionQueue = host.create_cq(self._depth * host.size)
        self._cq.notify(self._on_receives_done)
        self._ptag = 0
        host.on_error = self._on_error
        drive(self._listen())

    def send(self, destination: int, context: int, tag: int, data: memoryview, completion: SendCompletion) -> bool:
        if destination == self.rank:
            self.matching.send_to_self(destination, context, tag, data, completion)
            return True
        self._host.work.spend(MPI)
        outgoing = OutgoingMessage(context, tag, data, completion)
        pair = self.pairs.get(destination)
        if pair is None:
            pair = self._connect(destination, outgoing)
        else:
            pair.queue.append(outgoing)
        limit = self._host.settings.register_from
        if limit and len(data) >= limit and pair.is_open and self._has_room():
            outgoing.is_registering = True
            drive(self._register_message(pair, outgoing))
        pair.pump()
        return True

    async def _register_message(self, pair: Pair, outgoing: OutgoingMessage) -> None:
        """Register a message's memory on the fly. If that fails, the message is copied."""
        try:
            memory = await self._host.register(outgoing.data, self._ptag)
        except (ViaError, MemoryError):
            outgoing.is_registering = False
        else:
            outgoing.is_registering = False
            if pair.is_lost:
                await self._host.deregister(memory)
                return
            outgoing.memory = memory
        pair.pump()
        self._pump_starved()

    # Slots of the NIC.

    def _has_room(self) -> bool:
        """Whether a further send leaves enough slots for commands, and for the receives of all connections to come."""
        return self._host.free_descriptors > _COMMAND_SLOTS // 2 + (self._max_connections - self._posted_count) * (
            self._depth + 1
        )

    def _pump_starved(self) -> None:
        """Continue the sends that wait for a slot."""
        for pair in list(self.pairs.values()):
            if pair.is_starved:
                pair.pump()

    # Connections.

    async def connect_ranks(self) -> None:
        """Connect to all ranks, if the setting `connect_all` is true. Raises MPIError for the first rank that cannot be
        connected."""
        if not self._host.settings.connect_all:
            return
        pairs = [self._connect(rank) for rank in range(self.size) if rank != self.rank]
        for pair in pairs:
            await pair.opened

    async def _listen(self) -> None:
        """Answer the connection request of each rank by a request to that rank; never returns."""
        self._ptag = await self._host.create_ptag()
        for pair in list(self.pairs.values()):  # for messages sent before the protection tag was created
            drive(self._open(pair))
        while True:
            request = await self._host.connect_wait(_DISCRIMINATOR)
            existing = self.pairs.get(request.node)
            if (
                existing is not None
                and existing.vi is not None
                and existing.is_connected
                and existing.vi.request_number != request.number
            ):
                self._end_connection(existing, f"rank {existing.peer} has ended the connection")
            if existing is None or existing.is_lost:
                if len(self.pairs) < self._max_connections:
                    self._connect(request.node)
                else:
                    await self._host.reject(request)

    def _connect(self, peer: int, *messages: OutgoingMessage) -> Pair:
        """Return the connection with a peer; begin a new one, which may fail at once, if there is none. messages: the first
        messages of a new connection."""
        pair = self.pairs.get(peer)
        if pair is not None:
            return pair
        settings = self._host.settings
        buffer = min(settings.buffer, settings.max_transfer)
        self.pairs[peer] = pair = Pair(peer, self._depth, settings.area, buffer, self._host.work, self._has_room)
        pair.queue.extend(messages)
        if self._ptag:
            drive(self._open(pair))
        return pair

    async def _open(self, pair: Pair) -> None:
        """Create a connection's VI and memory, and connect."""
        host, ptag = self._host, self._ptag
        if host.settings.max_transfer < MIN_TRANSFER:
            self._end_connection(
                pair,
                f"rank {pair.peer} cannot be connected: max_transfer must be {MIN_TRANSFER} or more, "
                f"got {host.settings.max_transfer}",
            )
            return
        if len(self.pairs) > self._max_connections:
            self._end_connection(
                pair,
                f"rank {pair.peer} cannot be connected: the NIC's {host.settings.slots} slots suffice for "
                f"{self._max_connections} connections; set more with --firmware slots=...",
            )
            return
        if self._allocated_count >= self._max_connections:
            self._unopened.append(pair)
            return
        self._allocated_count += 1
        try:
            pair.writable = await self._register(pair, pair.writable_size, rdma_write=True)
            pair.readable = await self._register(pair, pair.readable_size, rdma_write=False)
            pair.vi = vi = await host.create_vi(ptag, receive_cq=self._cq)
            self._by_vi[vi] = pair
            vi.send_queue.notify(partial(self._on_send_done, pair, vi))
            self._posted_count += 1
            for descriptor in pair.make_receives():
                vi.post_receive(descriptor)
            await vi.connect_peer(pair.peer, _DISCRIMINATOR, host.settings.connect_timeout or host.settings.give_up)
            pair.is_connected = True
            self._arm_greeting_timeout(pair)
            pair.greet()
        except (ViaError, MemoryError) as error:
            is_rejected = isinstance(error, ViaError) and error.result is Result.REJECT
            remedy = "; its NIC may have no slots left, set more with --firmware slots=..." if is_rejected else ""
            self._end_connection(pair, f"rank {pair.peer} cannot be connected: {error}{remedy}")
            if pair.vi is None:
                with suppress(ViaError):  # all slots of the NIC are in use: it accepts no command
                    await self._free_memory(pair)
                self._free_allocated()

    def _arm_greeting_timeout(self, pair: Pair) -> None:
        """End a connection later if the peer has not sent its greeting within `connect_timeout`: the peer may have died.
        Raises ViaError."""
        timeout = self._host.settings.connect_timeout
        if timeout and not pair.is_open:
            cancel = self._host.alarm(timeout, partial(self._on_greeting_timeout, pair))
            pair.opened.add_callback(lambda _: cancel())

    def _on_greeting_timeout(self, pair: Pair) -> None:
        if not pair.opened.done:
            self._end_connection(
                pair,
                f"rank {pair.peer} cannot be connected: it accepted, but sent no greeting within "
                f"{self._host.settings.connect_timeout / 1e9:g} s (connect_timeout)",
            )

    async def _register(self, pair: Pair, size: int, rdma_write: bool) -> tuple[memoryview, Memory]:
        """Allocate and register memory of a connection. Raises ViaError, MemoryError."""
        view = self._host.allocate(size)
        try:
            memory = await self._host.register(view, self._ptag, rdma_write=rdma_write)
        except (ViaError, MemoryError):
            self._host.release(view)
            raise
        pair.regions.append((view, memory))
        return view, memory

    def _on_error(self, report: ErrorReport) -> None:
        vi = report.vi
        pair = None if vi is None else self._by_vi.get(vi)
        if pair is None or vi is None:
            return
        # RECVQ_EMPTY without the error state: a frame was dropped at the unreliable level.
        if vi.state is ViState.ERROR or report.error is AsyncError.RECVQ_EMPTY:
            is_ended = report.error is AsyncError.CONN_LOST
            reason = "has restarted or ended the connection" if is_ended else "and this rank have lost their connection"
            self._end_connection(pair, f"rank {pair.peer} {reason} ({report.error.name})")

    def report_crash(self, rank: int) -> None:
        pair = self.pairs.get(rank)
        if pair is None:
            return
        pair.has_crashed = True
        arrival, pair.arrival = pair.arrival, None
        if arrival is not None:
            self.matching.fail_crashed(rank, [arrival])

    def _end_connection(self, pair: Pair, reason: str) -> None:
        """End a connection: fail all transfers in progress. reason: the error's text."""
        if pair.is_lost:
            return
        pair.is_lost = True
        if self.pairs.get(pair.peer) is pair:
            del self.pairs[pair.peer]
        error = MPIError(ERR_PROC_FAILED, reason)
        outgoing = [message for message in (*pair.released, *pair.queue) if message is not None]
        self.matching.fail_transfers(
            pair.peer,
            error,
            sends=[message.completion for message in outgoing],
            arrivals=[] if pair.arrival is None else [pair.arrival],
        )
        if not pair.opened.done:
            pair.opened.fail(error)
        pair.registered += [message.memory for message in outgoing if message.memory is not None]
        pair.queue.clear()
        if pair.vi is not None:
            self._lost_pairs.append((pair, pair.vi))
            if not self._is_closing:
                drive(self._close_lost())

    async def _close_lost(self) -> None:
        """Close lost connections one by one: many may be lost at once, and each command takes a slot."""
        self._is_closing = True
        try:
            while self._lost_pairs:
                await self._close(*self._lost_pairs.popleft())
                self._pump_starved()
                self._free_allocated()
        finally:
            self._is_closing = False

    def _free_allocated(self) -> None:
        """Count a closed connection's slots as free, and open a connection that waits for slots."""
        self._allocated_count -= 1
        if self._unopened:
            drive(self._open(self._unopened.popleft()))

    async def _close(self, pair: Pair, vi: Vi) -> None:
        """Free a lost connection's VI and memory."""
        await vi.disconnect()
        self._posted_count -= 1
        self._by_vi.pop(vi, None)
        await vi.destroy()
        await self._free_memory(pair)

    async def _free_memory(self, pair: Pair) -> None:
        """Free a connection's memory. Raises ViaError."""
        while pair.regions:
            view, memory = pair.regions.pop()
            await self._host.deregister(memory)
            self._host.release(view)
        for memory in pair.registered:
            await self._host.deregister(memory)

    # Messages.

    def _on_receives_done(self, queue: WorkQueue | None) -> None:
        """Handle completions of the receive queues. `notify` calls a handler only once, so this sets it again."""
        while queue is not None:
            descriptor = queue.done()
            pair = self._by_vi.get(queue.vi)
            if descriptor is not None and pair is not None and not pair.is_lost and not descriptor.has_failed:
                self._on_receive_done(pair, descriptor)
            queue = self._cq.done()
        self._cq.notify(self._on_receives_done)

    def _on_receive_done(self, pair: Pair, descriptor: Descriptor) -> None:
        try:
            pair.received(descriptor, self._receive_part)
        except LostPartError:
            self._end_connection(pair, f"a message from rank {pair.peer} was lost")
            return
        pair.pump()
        if pair.is_open and not pair.opened.done:
            pair.opened.complete(None)

    def _on_send_done(self, pair: Pair, vi: Vi, descriptor: Descriptor) -> None:
        vi.send_queue.notify(partial(self._on_send_done, pair, vi))
        if pair.is_lost or descriptor.has_failed:
            return  # `_on_error` handles it
        memory = pair.sent(descriptor)
        if memory is not None:
            drive(self._host.deregister(memory))
        pair.pump()
        self._pump_starved()

    def _receive_part(self, pair: Pair, context: int, tag: int, total: int, offset: int, data: memoryview) -> None:
        """Copy a part of a message from the RDMA area. total: bytes of the message. Raises LostPartError if the parts before
        are missing."""
        arrival, work, end = pair.arrival, self._host.work, offset + len(data)
        if pair.has_crashed:
            return
        if not offset:
            work.spend(MPI)
            arrival = self.matching.arrive(pair.peer, context, tag, total)
        if arrival is None:
            raise LostPartError
        buffer = arrival.buffer[offset:end]
        buffer[:] = data[: len(buffer)]
        work.spend(COPY, len(buffer), work.writer)
        if end < total:
            pair.arrival = arrival
        else:
            pair.arrival = None
            self.matching.complete(arrival)

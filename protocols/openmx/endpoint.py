"""An endpoint: MX's calls and their implementation. The docstring of each call has the call's name in MX. For example::

endpoint = library.open_endpoint(key=7)
partner = await endpoint.connect(node=1, endpoint=0, key=7)
send = endpoint.isend([b"hello"], partner, match_info=5)
result = await endpoint.wait(send)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from protocols.core.completion import Completion, Yield
from protocols.core.firmware import Buffer
from protocols.core.host_work import COPY
from protocols.openmx.codec import TYPE_CONNECT, TYPE_NACK_LIB, TYPE_TRUC
from protocols.openmx.driver_endpoint import STATE_SIZE
from protocols.openmx.endpoint_memory import ALARM, PULL_DONE, Command, Event, Op, ReceiveRing
from protocols.openmx.finished_requests import FinishedRequests
from protocols.openmx.incoming_messages import IncomingMessages
from protocols.openmx.mx_names import (
    MATCH_NONE,
    MAX_ENDPOINTS,
    MAX_LENGTH,
    MAX_SEGMENTS,
    SMALL_MAX,
    SUCCESS,
    MxError,
    Status,
)
from protocols.openmx.mx_requests import Incoming, Outgoing, Request, Result
from protocols.openmx.partners import Partner
from protocols.openmx.receive_queues import ReceiveQueues

if TYPE_CHECKING:
    from protocols.openmx.host import Library

EVENT: Final = "event"
"""Work on the host (`protocols.core.host_work`): the library handles an event, and matches the message."""
REQUEST: Final = "request"
"""Work on the host: the library starts a request."""


class Endpoint:
    """An open endpoint (mx_endpoint_t). index: its number on the node. session: number of this opening of the endpoint.

    on_unexpected: called with source, match information and length of each unexpected message; the message is discarded if
    it returns True (mx_register_unexp_handler). on_error: called with the status of each receive or send that fails
    (mx_set_error_handler): before a receive is done; for a send, when its message is lost, which may be after the send is
    done. It is not called for cancelled receives, nor for receives and messages to the endpoint itself that `close` ends.
    on_lost: called with a partner whose connection has ended, and the status.
    """

    def __init__(self, library: Library, index: int, key: int, session: int, queues: ReceiveQueues) -> None:
        self.index: Final = index
        self.key: Final = key
        self.session: Final = session
        self.ticks = 0
        self.settings: Final = library.settings
        self.counters: Final = library.counters
        self.on_unexpected: Callable[[Partner, int, int], bool] | None = None
        self.on_error: Callable[[Status], object] | None = None
        self.on_lost: Callable[[Partner, Status], object] | None = None
        self.is_open = True
        self._commands = library.commands
        self._ring_doorbell = library.ring_doorbell
        self._library: Final = library
        self.work: Final = library.work
        self.memory: Final = library.memory
        self._fragment_size = library.fragment_size
        self._partners: dict[tuple[int, int], Partner] = {}
        self._active: dict[Partner, None] = {}
        self._has_alarm = False
        self._zombie_count = 0  # see `on_transmitted`
        self.incoming: Final = IncomingMessages(self, queues, self._fragment_size)
        self._large: Final = self.incoming.large
        self._finished: Final = FinishedRequests(self._set_alarm)
        size = ReceiveRing.size(self.settings.entries, self._fragment_size)
        memory = memoryview(bytearray(size)) if library.allocate is None else library.allocate(size)
        self._ring_address = self.memory.pin_page(memory)
        self._ring_memory: Final = memory
        self._ring: Final = ReceiveRing(memory, self.settings.entries, self._fragment_size)

    def open(self) -> None:
        """Open the endpoint in the driver. Completions may arrive before this returns."""
        command = Command(Op.OPEN, self.index)
        command.session, command.length, command.address = self.session, self.settings.entries, self._ring_address
        self.write(command)

    # Connections.

    def partner(self, node: int, endpoint: int = 0) -> Partner:
        """Return the partner that is the address of an endpoint (mx_endpoint_addr_t), connected or not. Raises MxError for
        a number out of range."""
        partner = self._partners.get((node, endpoint))
        if partner is None:
            if not 0 <= node < self._library.size or not 0 <= endpoint < MAX_ENDPOINTS:
                raise MxError(
                    Status.ENDPOINT_UNKNOWN,
                    f"no endpoint {endpoint} of node {node}: endpoints are 0 to {MAX_ENDPOINTS - 1}, "
                    f"nodes 0 to {self._library.size - 1}",
                )
            library, settings = self._library, self.settings
            is_local = library.host_of(node) == library.host_of(library.number)
            max_eager = settings.shared_rendezvous if is_local else settings.rendezvous
            is_self = (node, endpoint) == (library.number, self.index)
            partner = self._partners[node, endpoint] = Partner(self, node, endpoint, max_eager, is_self)
        return partner

    async def connect(self, node: int, endpoint: int = 0, key: int = 0) -> Partner:
        """Connect to an endpoint (mx_connect). Raises MxError: BAD_KEY, ENDPOINT_CLOSED, ENDPOINT_UNREACHABLE; also
        ENDPOINT_UNKNOWN for a number out of range, and BAD_ENDPOINT if this endpoint is closed."""
        partner = self.partner(node, endpoint)
        status = await self.iconnect(partner, key)
        if status is not SUCCESS:
            raise MxError(status, f"endpoint {endpoint} of node {node} cannot be connected: {status.name}")
        return partner

    def iconnect(self, partner: Partner, key: int = 0) -> Completion[Status]:
        """Start to connect (mx_iconnect); the result of the returned completion is the status. Raises MxError if this
        endpoint is closed."""
        self._check_open()
        if partner.is_self:
            done: Completion[Status] = Completion("a connection to itself")
            done.complete(SUCCESS if key == self.key else Status.BAD_KEY)
            return done
        return partner.connect(key)

    def disconnect(self, partner: Partner) -> None:
        """End a connection (mx_disconnect): sends in progress fail."""
        partner.disconnect()

    def report_crash(self, partner: Partner) -> None:
        """Report that a partner's program has crashed: its incomplete messages, and large messages to it, fail."""
        partner.abandon_messages(Status.ENDPOINT_CLOSED)

    # Messages.

    def isend(
        self, segments: Sequence[Buffer], to: Partner, match_info: int, context: object = None, forget: bool = False
    ) -> Request:
        """Start to send a message (mx_isend). segments: its bytes, in order. forget: the request is not returned by
        peek, test_any or wait_any (mx_forget). Raises MxError."""
        return self._begin_send(segments, to, match_info, context, forget, synchronous=False)

    def issend(
        self, segments: Sequence[Buffer], to: Partner, match_info: int, context: object = None, forget: bool = False
    ) -> Request:
        """Start to send a message; the request is done when the message is received (mx_issend). Arguments as for
        `isend`."""
        return self._begin_send(segments, to, match_info, context, forget, synchronous=True)

    def irecv(
        self,
        buffer: Buffer | list[Buffer],
        match_info: int = 0,
        mask: int = MATCH_NONE,
        context: object = None,
        forget: bool = False,
    ) -> Request:
        """Start to receive the first message that matches (mx_irecv). buffer: writable; or a list of segments, to which the
        message is copied in order when it has arrived. Raises MxError."""
        self._check_open()
        self.incoming.queues.check(match_info, mask)
        if isinstance(buffer, list) and len(buffer) == 1:
            buffer = buffer[0]
        segments: list[memoryview] = []
        if isinstance(buffer, list):
            _check_segments(len(buffer))
            segments = [memoryview(segment).cast("B") for segment in buffer]
            view = memoryview(bytearray(sum(map(len, segments))))
        else:
            view = memoryview(buffer).cast("B")
        if view.readonly or [segment for segment in segments if segment.readonly]:
            raise MxError(Status.NO_RESOURCES, "the buffer of a receive is read-only")
        self.work.spend(REQUEST)
        request = Request("a receive", view, match_info, mask, context, None, receive=True)
        if segments:
            request.add_callback(lambda _: self._scatter(request, segments))
        if not forget:
            request.add_callback(self._finished.add)
        self.incoming.post(request)
        return request

    def receive_claimed(self, incoming: Incoming, buffer: Buffer, context: object = None) -> Request:
        """Receive a claimed message. Not in MX, which has no matched probe."""
        view = memoryview(buffer).cast("B")
        request = Request("a receive", view, incoming.match_info, MATCH_NONE, context, None, receive=True)
        self.incoming.receive_claimed(incoming, request)
        return request

    def cancel(self, request: Request) -> bool:
        """Cancel a receive (mx_cancel). False if a message has matched it, and for sends."""
        if not request.is_receive or not self.incoming.queues.cancel(request):
            return False
        request.finish(Status.CANCELLED)
        return True

    def cancel_quietly(self, request: Request) -> bool:
        """Cancel a receive without completing it. False if a message has matched it. Not in MX."""
        return self.incoming.queues.cancel(request)

    def ibuffered(self, request: Request) -> bool:
        """Whether the buffer of a send may be reused (mx_ibuffered)."""
        return request.done or request.is_buffered

    # Completion.

    async def test(self, request: Request) -> Result | None:
        """Return a request's result (mx_test), or None if it is still in progress after a yield to the event loop."""
        if not request.done:
            await Yield()
        return self._finished.take(request) if request.done else None

    async def wait(self, request: Request, timeout: int = 0) -> Result | None:
        """Wait for a request (mx_wait). timeout: nanoseconds after which the result is None, rounded up to
        ticks; 0: wait forever."""
        if not timeout:
            await request
        else:
            await self._finished.wait_for(request, self._tick_after(timeout))
        return self._finished.take(request) if request.done else None

    def ipeek(self) -> Request | None:
        """Return the oldest finished request that was not tested yet, or None (mx_ipeek)."""
        return self._finished.oldest()

    async def peek(self, timeout: int = 0) -> Request | None:
        """Wait for a finished request (mx_peek); None after a time-out or `wakeup`. timeout: as for `wait`."""
        if self.ipeek() is None:
            await self._finished.wait_any(self._tick_after(timeout))
        return self.ipeek()

    async def test_any(self, match_info: int = 0, mask: int = 0) -> Result | None:
        """Return the result of the oldest finished request that matches, or None (mx_test_any). Raises MxError as `irecv`
        does."""
        self.incoming.queues.check(match_info, mask)
        if self._finished.find(match_info, mask) is None:
            await Yield()
        request = self._finished.find(match_info, mask)
        return None if request is None else self._finished.take(request)

    async def wait_any(self, match_info: int = 0, mask: int = 0, timeout: int = 0) -> Result | None:
        """Wait for a finished request that matches (mx_wait_any); None after a time-out or `wakeup`. Raises MxError as
        `irecv` does."""
        self.incoming.queues.check(match_info, mask)
        tick = self._tick_after(timeout)
        while (request := self._finished.find(match_info, mask)) is None:
            if not await self._finished.wait_any(tick):
                return None
        return self._finished.take(request)

    def iprobe(self, match_info: int = 0, mask: int = 0) -> Incoming | None:
        """Return the first unexpected message that matches, or None (mx_iprobe). Raises MxError as `irecv` does."""
        self.incoming.queues.check(match_info, mask)
        return self.incoming.queues.find(match_info, mask)

    def probe(self, match_info: int = 0, mask: int = 0) -> Completion[Incoming | None]:
        """Wait for an unexpected message that matches (mx_probe); None after `wakeup`. Raises MxError as `irecv` does."""
        self.incoming.queues.check(match_info, mask)
        return self.incoming.queues.probe(match_info, mask)

    def claim(self, incoming: Incoming) -> None:
        """Claim an unexpected message, so that only `receive_claimed` can receive it. Not in MX."""
        self.incoming.claim(incoming)

    def wakeup(self) -> None:
        """End all waits of `peek`, `wait_any` and `probe` (mx_wakeup)."""
        self.incoming.queues.wake()
        self._finished.wake(False)

    def close(self) -> None:
        """Close the endpoint (mx_close_endpoint): received messages are acknowledged, and requests in progress end with
        ENDPOINT_CLOSED."""
        if not self.is_open:
            return
        for partner in list(self._partners.values()):
            partner.flush()
            partner.disconnect()
        self.is_open = False
        self.incoming.close()
        self._ring_doorbell(self._commands.write(Command(Op.CLOSE, self.index)), 0, 0)
        self._library.close(self)
        self.memory.unpin(self._ring_address)

    # For the library.

    def write(self, command: Command, data: bytes = b"") -> None:
        """Pass a command to the driver, unless the endpoint is closed."""
        if self.is_open:
            self._ring_doorbell(self._commands.write(command, data), 0, 0)

    def arm(self, partner: Partner) -> None:
        """Call `Partner.on_tick` at each tick while the partner is active."""
        self._active[partner] = None
        self._set_alarm()

    def on_transmitted(self, outgoing: Outgoing) -> None:
        """Complete the send of a transmitted message before its acknowledgement, unless `Settings.zombies` such sends are
        unacknowledged already."""
        request = outgoing.request
        if request is None or request.is_settled:  # a message by loopback may be acknowledged already
            return
        if outgoing.has_data and self._zombie_count < self.settings.zombies:
            self._zombie_count += 1
            outgoing.is_zombie = True
            if not request.done:
                request.finish(SUCCESS, len(request.buffer), len(request.buffer))

    def fail_messages(
        self, partner: Partner, outgoing: list[Outgoing], incomplete: list[Incoming], status: Status
    ) -> None:
        """Fail the messages of a partner that are in progress."""
        for message in outgoing:
            self.finish_send(message, status)
        self.incoming.fail_messages(partner, incomplete, status)
        if self.on_lost is not None:
            self.on_lost(partner, status)

    def on_completion(self, code: int) -> None:
        """Handle a completion of the driver. code: see `endpoint_memory`."""
        if code < PULL_DONE:
            self._handle_event(code)
        elif code == ALARM:
            self._has_alarm = False
            self._tick()
        else:
            number = code & ~PULL_DONE
            self._large.on_pull_done(number, *self._ring.result(number))

    def finish_send(self, outgoing: Outgoing, status: Status) -> None:
        """Finish a numbered message that is acknowledged or lost."""
        if outgoing.is_zombie:
            self._zombie_count -= 1
        if outgoing.has_data:
            if outgoing.address:
                self.memory.unpin(outgoing.address)
            if outgoing.request is not None:
                self.settle(outgoing.request, status)

    def settle(self, request: Request, status: Status) -> None:
        """Set the final status of a send."""
        if status is not SUCCESS and self.on_error is not None:
            self.on_error(status)
        request.settle(status)

    def pending_work(self) -> list[str]:
        """Describe everything that the endpoint waits for."""
        sentences = [f"{request}" for request in self.incoming.queues.posted()]
        sentences += self._large.pending_work()
        for partner in self._partners.values():
            sentences += partner.pending_work()
        return sentences

    # Sends.

    def _begin_send(
        self,
        segments: Sequence[Buffer],
        to: Partner,
        match_info: int,
        context: object,
        forget: bool,
        *,
        synchronous: bool,
    ) -> Request:
        self._check_open()
        data = self._join_segments(segments)
        if not 0 <= match_info < 1 << 64:
            raise MxError(Status.NO_RESOURCES, f"match information must have 64 bits or fewer, got 0x{match_info:x}")
        if len(data) > MAX_LENGTH:
            raise MxError(Status.NO_RESOURCES, f"a message has at most {MAX_LENGTH} bytes, got {len(data)}")
        self.work.spend(REQUEST)
        request = Request("a send", data, match_info, MATCH_NONE, context, to, receive=False)
        if not forget:
            request.add_callback(self._finished.add)
        if to.is_self:
            request.is_buffered = True
            self.incoming.send_to_itself(request, synchronous)
        elif synchronous or len(data) > to.max_eager:
            self._large.send(to, request, match_info)
        elif len(data) <= SMALL_MAX:
            request.is_buffered = True
            outgoing = Outgoing(Op.SEND, request, match_info, len(data))
            outgoing.data = bytes(data)
            to.submit(outgoing)
        else:
            request.is_buffered = True
            outgoing = Outgoing(Op.SEND_MEDIUM, request, match_info, len(data), -(-len(data) // self._fragment_size))
            outgoing.address = self.memory.pin_page(memoryview(bytes(data)))
            self.work.spend(COPY, len(data))
            to.submit(outgoing)
        return request

    def _scatter(self, receive: Request, segments: list[memoryview]) -> None:
        """Copy a received message to the segments of its receive."""
        rest = receive.buffer[: receive.result().transferred]
        self.work.spend(COPY, len(rest))
        for segment in segments:
            chunk = rest[: len(segment)]
            segment[: len(chunk)] = chunk
            rest = rest[len(segment) :]

    def _join_segments(self, segments: Sequence[Buffer]) -> memoryview:
        _check_segments(len(segments))
        if len(segments) == 1:
            segment = segments[0]
            return memoryview(segment) if isinstance(segment, bytes) else memoryview(segment).cast("B")
        return memoryview(b"".join(segments))

    # Events.

    def _handle_event(self, slot: int) -> None:
        ring = self._ring
        event = ring.read(slot)
        self.work.spend(EVENT, STATE_SIZE, self.work.writer)
        if event.kind == TYPE_CONNECT and not event.flag & 1:
            self._answer(event)
        else:
            partner = self._partners.get((event.peer, event.endpoint))
            if partner is None:
                self.counters.old_session += 1
            elif event.kind == TYPE_CONNECT:
                partner.receive_answer(event)
            elif event.kind == TYPE_TRUC:
                partner.receive_ack(event)
            elif event.kind == TYPE_NACK_LIB:
                partner.receive_nack(event)
            else:
                partner.receive(event, ring.data(slot, event.length))
        ring.release(slot)

    def _answer(self, event: Event) -> None:
        """Answer a connection request."""
        partner = self.partner(event.peer, event.endpoint)
        if event.word == self.key:
            partner.receive_request(event)
        else:
            answer = partner.command(Op.CONNECT)
            answer.flag, answer.turn, answer.number = 1, Status.BAD_KEY, event.number
            answer.session, answer.word = event.session, self.session
            self.write(answer)

    # Time.

    def _set_alarm(self) -> None:
        if not self._has_alarm and self.is_open:
            self._has_alarm = True
            command = Command(Op.SET_ALARM, self.index)
            command.length = self.settings.tick
            self.write(command)

    def _tick(self) -> None:
        self.ticks += 1
        for partner in list(self._active):
            partner.on_tick(self.ticks)
            if not partner.is_active:
                self._active.pop(partner, None)
        self._finished.on_tick(self.ticks)
        if self._active or self._finished.awaits_tick:
            self._set_alarm()

    def _tick_after(self, timeout: int) -> int:
        """Return a tick that is at least `timeout` nanoseconds from now, or 0 for no time-out."""
        return self.ticks + 1 + -(-timeout // self.settings.tick) if timeout else 0

    def _check_open(self) -> None:
        if not self.is_open:
            raise MxError(Status.BAD_ENDPOINT, f"endpoint {self.index} is closed")


def _check_segments(count: int) -> None:
    """Check the number of a message's segments. Raises MxError."""
    if count > MAX_SEGMENTS:
        raise MxError(Status.NO_RESOURCES, f"a message has at most {MAX_SEGMENTS} segments, got {count}")

"""A NIC whose actions take the times of a profile.

Decisions are made at once when an event arrives; they take effect when the resources that they use have finished. The
processor handles one event after the other (`EventProcessor`): received frames, descriptors, deadlines, ends of DMA
transfers, and frames handed to the port. So a frame's effects are delayed by the processor's backlog. Latency, gap and
overhead are results of this model, not parameters.

A processor polls the kinds of events in turn, as a firmware's loop does, so that no kind starves. The bus is booked ahead,
for the time after a transfer's setup or a core's own work; jobs that fit in before do not wait (`BookableServer`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

from protocols.core.firmware import Buffer
from protocols.core.host_work import LIBRARY
from protocols.core.profile import Profile
from testbed.engine.failures import ETHERNET_HEADER, frame_too_long
from testbed.engine.loop import Loop, VirtualClock
from testbed.engine.server import BookableServer, Core, Server, transfer_time
from testbed.nic.immediate import ImmediateNic, Port

EventData = TypeVar("EventData", int, bytes)

KINDS: Final = range(6)
RING, TICK, FETCHED, STORED, SENT, RECEIVED = KINDS
"""Kinds of events, with the names of their costs in a profile. RING: the host has passed a descriptor. TICK: the deadline
has passed, or the firmware resumes. FETCHED: a transfer from host memory has ended. STORED: a transfer to host memory has
ended. SENT: a frame was handed to the port. RECEIVED (cost `receive`): a frame has arrived."""

_POLL_ORDER: Final[tuple[tuple[int, ...], ...]] = tuple((*KINDS[last + 1 :], *KINDS[: last + 1]) for last in KINDS)
"""Order in which a processor polls the kinds of events, by the kind of the last event, which comes last."""


class FirmwareEvent:
    """An event for the firmware. cost: time of the firmware's reaction, ns. queued_at: time at which the event arrived, ns.
    start_time: time at which the processor took it, ns; -1: not yet. callback: called at the end of the reaction."""

    __slots__ = ("callback", "cost", "queued_at", "start_time")

    def __init__(self, cost: int, callback: Callable[[int], object] | None = None) -> None:
        self.cost = cost
        self.callback = callback
        self.start_time = -1
        self.queued_at = 0


class EventProcessor:
    """The event queues of one processor. server: accounts for its busy time and for the events' waiting time."""

    __slots__ = ("_current", "_last_kind", "_loop", "_on_start", "pending", "server")

    def __init__(self, name: str, loop: Loop, on_start: Callable[[int], object]) -> None:
        """on_start: called whenever the processor has taken an event."""
        self.server: Final = Server(name)
        self.pending: Final[tuple[deque[FirmwareEvent], ...]] = tuple(deque() for _ in KINDS)
        """Waiting events, by kind."""
        self._loop = loop
        self._on_start = on_start
        self._current: FirmwareEvent | None = None  # the event that it handles; other events wait
        self._last_kind = RECEIVED

    def add(self, now: int, kind: int, event: FirmwareEvent) -> None:
        """Start an event, or queue it if the processor is busy. An idle processor has no queued events."""
        event.queued_at = now
        if self._current is not None:
            self.pending[kind].append(event)
        else:
            self._last_kind = kind
            self._start(now, event)

    def _start(self, now: int, event: FirmwareEvent | None) -> None:
        """Start an event, if any; complete events with cost 0 at once, and start the next."""
        server = self.server
        while event is not None:
            server.waited += now - event.queued_at
            event.start_time = now
            done = server.reserve(now, event.cost)
            self._current = event
            self._on_start(now)
            if event.cost:
                self._loop.at(done, self._end)
                return
            self._finish(now, event)
            event = self._next()

    def _next(self) -> FirmwareEvent | None:
        pending = self.pending
        if any(pending):
            for kind in _POLL_ORDER[self._last_kind]:
                if pending[kind]:
                    self._last_kind = kind
                    return pending[kind].popleft()
        return None

    def _end(self, now: int) -> None:
        assert self._current is not None
        self._finish(now, self._current)
        self._start(now, self._next())

    def _finish(self, now: int, event: FirmwareEvent) -> None:
        """Complete an event. Events that this causes are queued."""
        if event.callback is not None:
            event.callback(now)
        self._current = None


class _Outgoing:
    """A frame to be sent, or the part of it that has been fetched so far.

    missing: number of transfers that have not ended. event, offset: the event that sends the frame, and the time of sending
    relative to the event's start, ns. is_prefetched: whether the frame occupies one of the slots for prefetched frames.
    callback: called when the frame has left.
    """

    __slots__ = ("callback", "event", "frame", "is_prefetched", "missing", "offset")

    def __init__(self, event: FirmwareEvent) -> None:
        self.event = event
        self.frame = b""
        self.is_prefetched = False
        self.missing = 0
        self.callback: Callable[[int], object] | None = None
        self.offset = 0


class _PostedDescriptor:
    """A descriptor to be returned to the host of another function."""

    __slots__ = ("function", "index")

    def __init__(self, function: PricedNic, index: int) -> None:
        self.function: Final = function
        self.index: Final = index


class Hardware:
    """The hardware of one NIC, which its functions share: processors, DMA engines and bus. receiving: the processor of
    received frames and of the ends of transfers to host memory; `event_processor` unless the NIC has two processors."""

    __slots__ = ("bus", "event_processor", "functions", "prefetched", "reading", "receiving", "writing")

    def __init__(self, clock: VirtualClock, loop: Loop, name: str, processors: int) -> None:
        self.functions: Final[list[PricedNic]] = []
        self.event_processor = self.receiving = EventProcessor(f"processor of {name}", loop, self._start_pending)
        if processors > 1:
            self.receiving = EventProcessor(f"receiving processor of {name}", loop, self._start_pending)
        self.reading: Final = Server(f"reading DMA engine of {name}")
        self.writing: Final = Server(f"writing DMA engine of {name}")
        self.bus: Final = BookableServer(f"bus of {name}", clock)
        self.prefetched = 0
        """Number of occupied slots for prefetched frames."""

    def _start_pending(self, now: int) -> None:
        for function in self.functions:
            function.start_pending(now)

    def fetch_next(self, now: int) -> None:
        """Start the reading engine's next transfer, of any function."""
        for function in self.functions:
            function.fetch_next(now)

    def store_next(self, now: int) -> None:
        """Start the writing engine's next transfer, of any function."""
        for function in self.functions:
            function.store_next(now)


class PricedNic(ImmediateNic):
    """A NIC with costs, or one function of such a NIC.

    processor, receiver: servers of the hardware's `event_processor` and `receiving`, usually one server. reading, writing:
    servers of the DMA engines that read and write host memory. bus: server of the bus between host and NIC.
    """

    __slots__ = (
        "_action_timer", "_actions", "_core", "_deferred", "_doorbells", "_event", "_fetch_timer", "_fetches",
        "_hardware", "_next_outgoing", "_outgoing", "_posting_end", "_processor", "_profile", "_program", "_receiving",
        "_send_timer", "_store_timer", "_stores", "_stores_noticed", "_stores_queued", "bus", "processor", "reading",
        "receiver", "writing",
    )  # fmt: skip

    def __init__(
        self,
        clock: VirtualClock,
        loop: Loop,
        port: Port,
        core: Core,
        profile: Profile,
        mtu: int,
        hardware: Hardware,
    ) -> None:
        """core: core of the host's program. hardware: shared with the NIC's other functions. See `ImmediateNic` for the
        other arguments."""
        super().__init__(clock, loop, port, mtu)
        self._core = core
        self._profile = profile
        self._program = len(hardware.functions)  # number of the program on the host
        hardware.functions.append(self)
        self._hardware = hardware
        self._processor = hardware.event_processor
        self._receiving = hardware.receiving
        self.processor = self._processor.server
        self.receiver = self._receiving.server
        self.reading = hardware.reading
        self.writing = hardware.writing
        self.bus = hardware.bus
        self._event = FirmwareEvent(0)  # the event that the firmware is handling
        self._doorbells: deque[int] = deque()  # descriptors on their way to the firmware
        self._posting_end = 0
        self._next_outgoing: _Outgoing | None = None  # the frame that the firmware is fetching
        self._outgoing: deque[_Outgoing] = deque()  # frames in sending order
        # Pending transfers: event, time relative to its start, frame (of fetches), bytes.
        self._fetches: deque[tuple[FirmwareEvent, int, _Outgoing, int]] = deque()
        self._stores: deque[tuple[FirmwareEvent, int, int]] = deque()
        self._stores_queued = 0  # number of transfers to host memory so far
        self._stores_noticed = 0  # number of ended transfers to host memory that the firmware has noticed
        # Pending actions: value of `_stores_noticed` to wait for, event, time relative to its start, and the descriptor to
        # return, to this function's host or another's, or the frame to send. An inverted descriptor (~) is for the host's
        # kernel.
        self._actions: deque[tuple[int, FirmwareEvent, int, int | bytes | _PostedDescriptor]] = deque()
        self._deferred: list[Buffer] = []  # frames that leave after all other effects of the event
        # Timers for the first entry of each queue. When another condition of that entry is met, the callback is called, too.
        self._fetch_timer = loop.timer(self.fetch_next)
        self._send_timer = loop.timer(self._send_ready)
        self._store_timer = loop.timer(self.store_next)
        self._action_timer = loop.timer(self._run_actions)

    @property
    def servers(self) -> Sequence[Server]:
        receiver = () if self.receiver is self.processor else (self.receiver,)
        return (self.processor, *receiver, self.reading, self.writing, self.bus)

    @property
    def posting_end(self) -> int:
        return self._posting_end

    @property
    def processor_time(self) -> int:
        return self.processor.busy + (self.receiver.busy if self.receiver is not self.processor else 0)

    def set_costs(self, profile: Profile) -> None:
        self._profile = profile

    def resume(self, now: int) -> None:
        self._event = event = FirmwareEvent(0)
        super().resume(now)
        self._send_deferred()
        self._processor.add(now, TICK, event)

    # Called by the wire and the clock.

    def receive(self, now: int, frame: bytes) -> None:
        profile = self._profile
        if profile.receive_ring and len(self._receiving.pending[RECEIVED]) >= profile.receive_ring:
            self.dropped += 1
            return
        self.received += 1
        self._react(now, profile.receive, self._firmware.receive, frame)
        self._receiving.add(now, RECEIVED, self._event)

    def _on_wake_up(self, now: int) -> None:
        deadline = self._firmware.deadline if now == self._wake_time and self._agent is not None else None
        if deadline is None or deadline > now:
            super()._on_wake_up(now)
            return
        self._event = event = FirmwareEvent(self._profile.tick)
        super()._on_wake_up(now)
        self._send_deferred()
        self._processor.add(now, TICK, event)

    def _react(self, now: int, cost: int, react: Callable[[int, EventData], object], data: EventData) -> None:
        """Let the firmware handle an event; the effects wait until a processor takes the event. cost: time of the reaction
        itself, ns. data: the received frame or the descriptor."""
        self._event = FirmwareEvent(cost)
        if self._agent is None:
            return
        self.handled_at = now
        try:
            react(now, data)
        except Exception as error:
            raise self._fail(error) from error
        deadline = self._firmware.deadline
        if deadline is not None and deadline < self._wake_time:
            self._wake_time = when = max(deadline, now)
            self._loop.at(when, self._on_wake_up)
        self._send_deferred()

    def _spend(self, cost: int) -> int:
        """Add cost to the current event; return the time relative to the event's start at which this cost ends, ns."""
        self._event.cost += cost
        return self._event.cost

    def start_pending(self, now: int) -> None:
        """Start the pending effects of an event that a processor has taken."""
        if self._fetches:
            self.fetch_next(now)
        if self._outgoing:
            self._send_ready(now)
        if self._stores:
            self.store_next(now)
        if self._actions:
            self._run_actions(now)

    # Called by the firmware: sending.

    def dma_read(self, segments: Sequence[memoryview]) -> bytes:
        if self._next_outgoing is None:
            self._next_outgoing = _Outgoing(self._event)
        self._next_outgoing.missing += len(segments)
        for segment in segments:
            offset = self._spend(self._profile.transfer)
            self._fetches.append((self._event, offset, self._next_outgoing, len(segment)))
        return b"".join(segments)

    def send(self, frame: Buffer) -> bool:
        """Put a frame on the wire, after everything fetched and sent before. Returns True: it always waits."""
        self._check(frame)
        outgoing = self._next_outgoing or _Outgoing(self._event)
        self._next_outgoing = None
        outgoing.frame = bytes(frame)
        outgoing.offset = self._spend(self._profile.send)
        self._outgoing.append(outgoing)
        return True

    def when_sent(self, callback: Callable[[int], object]) -> None:
        self._outgoing[-1].callback = callback

    def fetch_next(self, now: int) -> None:
        """Start the next transfer from host memory if the engine is idle and a slot for a prefetched frame is free."""
        profile, fetches = self._profile, self._fetches
        if not fetches or self.reading.free > now:
            return
        event, offset, outgoing, size = fetches[0]
        if event.start_time < 0:
            return
        if event.start_time + offset > now:
            self._fetch_timer.set(event.start_time + offset)
            return
        if not outgoing.is_prefetched:
            if profile.ahead and self._hardware.prefetched >= profile.ahead:
                return
            outgoing.is_prefetched = True
            self._hardware.prefetched += 1
        fetches.popleft()
        done = self._transfer(self.reading, now, profile.fetch, profile.fetch_rate, size)
        self._loop.at(done, self._on_fetched, outgoing)

    def _on_fetched(self, outgoing: _Outgoing) -> None:
        """Handle the end of a transfer from host memory."""
        now, flush = self._clock.time, self._profile.flush
        if flush:
            self._loop.at(self._use_core(now, flush, 0), self._notify_fetched, outgoing)
        else:
            self._notify_fetched(outgoing)
        self._hardware.fetch_next(now)

    def _notify_fetched(self, outgoing: _Outgoing) -> None:
        """Notify the firmware of fetched data."""
        now, cost = self._clock.time, self._profile.fetched

        def count_fetched(now: int) -> None:
            outgoing.missing -= 1
            if not outgoing.missing:
                self._send_ready(now)

        if cost:
            self._processor.add(now, FETCHED, FirmwareEvent(cost, count_fetched))
        else:
            count_fetched(now)

    def _send_ready(self, now: int) -> None:
        """Send the frames that are ready."""
        queue = self._outgoing
        while queue and not queue[0].missing and queue[0].event.start_time >= 0:
            outgoing = queue[0]
            if outgoing.event.start_time + outgoing.offset > now:
                self._send_timer.set(outgoing.event.start_time + outgoing.offset)
                return
            queue.popleft()
            self._transmit(now, outgoing.frame)
            if outgoing.callback is not None and self._agent is not None:
                self._port.when_sent(now, partial(self._on_sent, outgoing.callback))
            if outgoing.is_prefetched:
                self._hardware.prefetched -= 1
                self._hardware.fetch_next(now)

    def _transmit(self, now: int, frame: bytes) -> None:
        if self._agent is not None:
            if self._profile.sent:
                self._processor.add(now, SENT, FirmwareEvent(self._profile.sent))
            self.sent += 1
            self._port.enter(now, frame)

    def _transfer(self, engine: Server, now: int, setup: int, rate: int, size: int) -> int:
        """Start a transfer; return the time at which its engine finishes. The bytes also occupy the bus, in bursts."""
        profile = self._profile
        bursts = -(-size // profile.bus_burst) if profile.bus_burst else 1
        on_bus = bursts * (profile.dma_transaction or profile.bus_transaction) + transfer_time(size, profile.bus_rate)
        done = self.bus.reserve(now + setup, on_bus)
        return engine.reserve(now, max(setup + transfer_time(size, rate), done - now))

    # Called by the firmware: receiving.

    def dma_write(self, target: memoryview, data: Buffer) -> None:
        super().dma_write(target, data)
        self._stores_queued += 1
        self._stores.append((self._event, self._spend(self._profile.transfer), len(target)))

    def post_completion(self, index: int) -> None:
        """Return a descriptor to the host, after everything stored and returned before."""
        super().post_completion(index)
        self._queue_action(self._spend(self._profile.show), index)

    def post_to(self, function: object, target: memoryview, data: Buffer, index: int) -> None:
        """Store bytes in the memory of another function's host, and return a descriptor to it."""
        assert isinstance(function, PricedNic)
        self.dma_write(target, data)
        self._queue_action(self._spend(self._profile.show), _PostedDescriptor(function, index))

    def interrupt(self, index: int) -> None:
        """Return a descriptor to the host's kernel, at the cost of an interrupt."""
        super().interrupt(index)
        self._queue_action(self._spend(self._profile.show), ~index)

    def send_later(self, make: Callable[[], bytes]) -> None:
        """Put a frame on the wire after all other effects of the current event; it may overtake frames of `send`."""
        frame = make()
        self._check(frame)
        self._deferred.append(frame)

    def _check(self, frame: Buffer) -> None:
        if len(frame) > self._max_frame:
            raise frame_too_long(len(frame), self._max_frame - ETHERNET_HEADER)

    def _send_deferred(self) -> None:
        """Queue the frames deferred by `send_later`, after the firmware has returned."""
        for frame in self._deferred:
            self._queue_action(self._spend(self._profile.send), bytes(frame))
        self._deferred.clear()

    def _queue_action(self, offset: int, action: int | bytes | _PostedDescriptor) -> None:
        self._actions.append((self._stores_queued, self._event, offset, action))

    def store_next(self, now: int) -> None:
        """Start the next transfer to host memory if the engine is idle."""
        stores, profile = self._stores, self._profile
        if not stores or self.writing.free > now:
            return
        event, offset, size = stores[0]
        if event.start_time < 0:
            return
        if event.start_time + offset > now:
            self._store_timer.set(event.start_time + offset)
            return
        stores.popleft()
        self._loop.at(self._transfer(self.writing, now, profile.store, profile.store_rate, size), self._on_stored)

    def _on_stored(self, now: int) -> None:
        """Handle the end of a transfer to host memory."""
        flush = self._profile.flush
        if flush:
            self._loop.at(self._use_core(now, flush, 0), self._notify_stored)
        else:
            self._notify_stored(now)
        self._hardware.store_next(now)

    def _notify_stored(self, now: int) -> None:
        """Notify the firmware of the end of a transfer to host memory."""
        cost = self._profile.stored
        if cost:
            self._receiving.add(now, STORED, FirmwareEvent(cost, self._count_store))
        else:
            self._count_store(now)

    def _count_store(self, now: int) -> None:
        """Count a transfer whose end the firmware has noticed."""
        self._stores_noticed += 1
        self._run_actions(now)

    def _run_actions(self, now: int) -> None:
        """Execute the actions whose time has come and whose stores the firmware has noticed."""
        actions = self._actions
        while actions and actions[0][0] <= self._stores_noticed and actions[0][1].start_time >= 0:
            _, event, offset, action = actions[0]
            if event.start_time + offset > now:
                self._action_timer.set(event.start_time + offset)
                return
            actions.popleft()
            if isinstance(action, int):
                self._notice(now, action >= 0)
            elif isinstance(action, bytes):
                self._transmit(now, action)
            else:
                action.function.on_posted(now, action.index)

    # Called by the host.

    def ring_doorbell(self, index: int, written: int, translated: int) -> None:
        now, profile = self._clock.time, self._profile
        writing = transfer_time(written, profile.write_rate)
        self._posting_end = done = self._use_core(now, profile.post + translated * profile.translate, writing)
        self._doorbells.append(index)
        self._loop.at(done + profile.doorbell, self._ring_next)

    def _ring_next(self, now: int) -> None:
        self.on_doorbell(now, self._doorbells.popleft())

    def _handle_doorbell(self, now: int, index: int) -> None:
        self._react(now, self._profile.ring, self._firmware.on_doorbell, index)
        self._processor.add(now, RING, self._event)

    def deliver_completions(self) -> None:
        """Do nothing: completions are delivered at simulated times."""

    def _notice(self, now: int, is_read: bool) -> None:
        """Charge the host for a descriptor: its core reads it over the bus, or its kernel is interrupted."""
        profile = self._profile
        done = self._use_core(now, 0, profile.notice) if is_read else self._use_core(now, profile.interrupt, 0)
        self._loop.at(done, self._deliver_next)

    def on_posted(self, now: int, index: int) -> None:
        """Charge the host for a descriptor that another function has returned to it."""
        self._loop.at(self._use_core(now, 0, self._profile.notice), self.deliver_completion, index)

    def _deliver_next(self, _now: int) -> None:
        self.deliver_completion(self.completions.pop(0))

    def _use_core(self, now: int, cost: int, on_bus: int) -> int:
        """Let the host's core work for `cost`, then access the bus for `on_bus`, both in ns; return the time at which the
        access is done. The core stays occupied until then. Without a bus, the core is charged for both."""
        core, profile = self._core, self._profile
        if on_bus and (profile.bus_rate or profile.bus_transaction):
            begin = max(now, core.free)
            cost = self.bus.reserve(begin + cost, on_bus) - begin
        else:
            cost += on_bus
        return core.spend(now, cost, LIBRARY, self._program)

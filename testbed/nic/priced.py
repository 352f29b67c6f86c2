"""A NIC whose actions take the times of a profile.

Decisions are made at once when an event arrives; their effects appear when the resources they use have finished. The
processor handles one event after the other (`Handlers`): frames, descriptors, deadlines, and the ends of DMA transfers
and of transmissions. So the effects of a frame are delayed by the processor's backlog. Latency, gap and overhead are
not parameters; they result from this.

A processor polls the kinds of events in turn, as a firmware's loop does, so that no kind starves. It knows when a
transfer will end and books the bus ahead for what follows; jobs that fit in before that need not wait (`BookableServer`).
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

Cause = TypeVar("Cause", int, bytes)

KINDS: Final = range(6)
RING, TICK, FETCHED, STORED, SENT, RECEIVED = KINDS
"""Sources of events: the bus (a descriptor), the timer, the DMA engines that read and write host memory, and the two
sides of the MAC."""

_TURNS: Final[tuple[tuple[int, ...], ...]] = tuple((*KINDS[last + 1 :], *KINDS[: last + 1]) for last in KINDS)
"""By the kind of the last event: the kinds in the order in which a processor polls them."""


class Handling:
    """An event in the processor. cost: total time of the firmware's reaction, ns. begun: when the processor took it;
    -1: not yet. then: called when it is done."""

    __slots__ = ("begun", "cost", "since", "then")

    def __init__(self, cost: int, then: Callable[[int], object] | None = None) -> None:
        self.cost = cost
        self.then = then
        self.begun = -1
        self.since = 0


class Handlers:
    """The event queues of one processor. server: accounts for its busy time and for the events' waiting time."""

    __slots__ = ("_begin", "_busy", "_last", "_loop", "pending", "server")

    def __init__(self, name: str, loop: Loop, begin: Callable[[int], object]) -> None:
        """begin: called whenever an event has been taken."""
        self.server: Final = Server(name)
        self.pending: Final[tuple[deque[Handling], ...]] = tuple(deque() for _ in KINDS)
        """Waiting events, by kind."""
        self._loop = loop
        self._begin = begin
        self._busy = False
        self._last = RECEIVED

    def add(self, now: int, kind: int, event: Handling) -> None:
        """Start an event, or queue it if the processor is busy: nothing is queued while it is not."""
        event.since = now
        if self._busy:
            self.pending[kind].append(event)
        else:
            self._last = kind
            self._start(now, event)

    def _start(self, now: int, event: Handling | None) -> None:
        """Start an event, if any; complete those of no cost at once, and start the next."""
        server = self.server
        while event is not None:
            server.waited += now - event.since
            event.begun = now
            over = server.reserve(now, event.cost)
            self._busy = True
            self._begin(now)
            if event.cost:
                self._loop.at(over, self._end, event)
                return
            self._finish(now, event)
            event = self._next()

    def _next(self) -> Handling | None:
        pending = self.pending
        if any(pending):
            for kind in _TURNS[self._last]:
                if pending[kind]:
                    self._last = kind
                    return pending[kind].popleft()
        return None

    def _end(self, event: Handling) -> None:
        now = self._loop.now()
        self._finish(now, event)
        self._start(now, self._next())

    def _finish(self, now: int, event: Handling) -> None:
        """Complete an event. Events that this causes wait for their turn."""
        if event.then is not None:
            event.then(now)
        self._busy = False


class _Outgoing:
    """A frame to be sent, or the part fetched so far.

    missing: transfers that have not ended. by, within: the event that sends it, and the offset in it, ns. is_inside: it
    occupies one of the places for prefetched frames. then: called when it has left.
    """

    __slots__ = ("by", "frame", "is_inside", "missing", "then", "within")

    def __init__(self, by: Handling) -> None:
        self.by = by
        self.frame = b""
        self.is_inside = False
        self.missing = 0
        self.then: Callable[[int], object] | None = None
        self.within = 0


class Hardware:
    """The parts of one NIC, which its functions share: processors, DMA engines and bus."""

    __slots__ = ("bus", "functions", "handlers", "inside", "reading", "receiving", "writing")

    def __init__(self, clock: VirtualClock, loop: Loop, name: str, processors: int) -> None:
        self.functions: Final[list[PricedNic]] = []
        self.handlers = self.receiving = Handlers(f"processor of {name}", loop, self._start_pending)
        if processors > 1:
            self.receiving = Handlers(f"receiving processor of {name}", loop, self._start_pending)
        self.reading: Final = Server(f"reading DMA engine of {name}")
        self.writing: Final = Server(f"writing DMA engine of {name}")
        self.bus: Final = BookableServer(f"bus of {name}", clock)
        self.inside = 0
        """Frames that occupy one of the places for prefetched ones."""

    def _start_pending(self, now: int) -> None:
        for function in self.functions:
            function.start_pending(now)

    def fetch_next(self, now: int) -> None:
        """Let the reading engine go on with the next transfer of any function."""
        for function in self.functions:
            function.fetch_next(now)

    def store_next(self, now: int) -> None:
        """Let the writing engine go on with the next transfer of any function."""
        for function in self.functions:
            function.store_next(now)


class PricedNic(ImmediateNic):
    """A NIC with costs, or one function of it.

    processor: handles the firmware's events; receiver: handles received frames, usually the same processor. reading,
    writing: the DMA engines that read and write host memory. bus: between host and NIC. core: the host's.
    """

    __slots__ = (
        "_core", "_event", "_fetches", "_following", "_handlers", "_hardware", "_later", "_next", "_next_fetch",
        "_next_following", "_next_send", "_next_store", "_outgoing", "_posted", "_profile", "_program", "_receiving",
        "_rings", "_stored", "_stores", "_storing", "bus", "processor", "reading", "receiver", "writing",
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
        """core: of the host's program. hardware: of the NIC, shared with its other functions. For the rest see
        `ImmediateNic`."""
        super().__init__(clock, loop, port, mtu)
        self._core = core
        self._profile = profile
        self._program = len(hardware.functions)
        hardware.functions.append(self)
        self._hardware = hardware
        self._handlers = hardware.handlers
        self._receiving = hardware.receiving
        self.processor = self._handlers.server
        self.receiver = self._receiving.server
        self.reading = hardware.reading
        self.writing = hardware.writing
        self.bus = hardware.bus
        self._event = Handling(0)  # that the firmware is handling
        self._rings: deque[int] = deque()  # descriptors on their way to the firmware
        self._posted = 0
        self._next: _Outgoing | None = None  # the frame for which the firmware fetches
        self._outgoing: deque[_Outgoing] = deque()  # frames in the order in which they leave
        # Pending transfers: event, offset in it, (frame,) bytes.
        self._fetches: deque[tuple[Handling, int, _Outgoing, int]] = deque()
        self._stores: deque[tuple[Handling, int, int]] = deque()
        self._storing = 0  # transfers into host memory so far
        self._stored = 0  # number of those that the firmware has noticed
        # Pending actions: number of stores to wait for, event, offset in it, descriptor to show or frame to send.
        self._following: deque[tuple[int, Handling, int, int | bytes]] = deque()
        self._later: list[Buffer] = []  # frames that leave after all other effects of the event
        # Timers for the first waiting entry of each queue; other conditions it waits for trigger it, too.
        self._next_fetch = loop.timer(self.fetch_next)
        self._next_send = loop.timer(self._send_ready)
        self._next_store = loop.timer(self.store_next)
        self._next_following = loop.timer(self._go_on)

    @property
    def servers(self) -> Sequence[Server]:
        two = () if self.receiver is self.processor else (self.receiver,)
        return (self.processor, *two, self.reading, self.writing, self.bus)

    @property
    def posted(self) -> int:
        return self._posted

    @property
    def processed(self) -> int:
        return self.processor.busy + (self.receiver.busy if self.receiver is not self.processor else 0)

    def cost(self, profile: Profile) -> None:
        self._profile = profile

    def resume(self, now: int) -> None:
        self._event = event = Handling(0)
        super().resume(now)
        self._send_rest()
        self._handlers.add(now, TICK, event)

    # From the wire, and by the clock.

    def receive(self, now: int, frame: bytes) -> None:
        profile = self._profile
        if profile.receive_ring and len(self._receiving.pending[RECEIVED]) >= profile.receive_ring:
            self.dropped += 1
            return
        self.received += 1
        self._react(now, profile.receive, self._firmware.receive, frame)
        self._receiving.add(now, RECEIVED, self._event)

    def _tick(self, now: int) -> None:
        deadline = self._firmware.deadline if now == self._wake and self._agent is not None else None
        if deadline is None or deadline > now:
            super()._tick(now)
            return
        self._event = event = Handling(self._profile.tick)
        super()._tick(now)
        self._send_rest()
        self._handlers.add(now, TICK, event)

    def _react(self, now: int, cost: int, react: Callable[[int, Cause], object], cause: Cause) -> None:
        """Let the firmware react to an event, whose effects begin when a processor takes it."""
        self._event = Handling(cost)
        if self._agent is None:
            return
        self.handled_at = now
        try:
            react(now, cause)
        except Exception as error:
            raise self._failed(error) from error
        deadline = self._firmware.deadline
        if deadline is not None and deadline < self._wake:
            self._wake = when = max(deadline, now)
            self._loop.at(when, self._tick)
        self._send_rest()

    def _spend(self, cost: int) -> int:
        """Charge more time to the current event; return the offset in it at which this time ends."""
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
        if self._following:
            self._go_on(now)

    # By the firmware: sending.

    def dma_read(self, segments: Sequence[memoryview]) -> bytes:
        if self._next is None:
            self._next = _Outgoing(self._event)
        self._next.missing += len(segments)
        for segment in segments:
            self._fetches.append((self._event, self._spend(self._profile.transfer), self._next, len(segment)))
        return b"".join(segments)

    def send(self, frame: Buffer) -> bool:
        """Put a frame on the wire, after everything fetched and sent before: it waits in any case."""
        self._check(frame)
        going = self._next or _Outgoing(self._event)
        self._next = None
        going.frame = bytes(frame)
        going.within = self._spend(self._profile.send)
        self._outgoing.append(going)
        return True

    def when_sent(self, then: Callable[[int], object]) -> None:
        self._outgoing[-1].then = then

    def fetch_next(self, now: int) -> None:
        """Start the next transfer from host memory if the engine is idle and there is room for it."""
        profile, fetches = self._profile, self._fetches
        if not fetches or self.reading.free > now:
            return
        event, within, going, size = fetches[0]
        if event.begun < 0:
            return
        if event.begun + within > now:
            self._next_fetch.set(event.begun + within)
            return
        if not going.is_inside:
            if profile.ahead and self._hardware.inside >= profile.ahead:
                return
            going.is_inside = True
            self._hardware.inside += 1
        fetches.popleft()
        over = self._transfer(self.reading, now, profile.fetch, profile.fetch_rate, size)
        self._loop.at(over, self._fetched, going)

    def _fetched(self, going: _Outgoing) -> None:
        """Handle the end of a transfer."""
        now, flush = self._clock.time, self._profile.flush
        if flush:
            self._loop.at(self._use_core(now, flush, 0), self._has_fetched, going)
        else:
            self._has_fetched(going)
        self._hardware.fetch_next(now)

    def _has_fetched(self, going: _Outgoing) -> None:
        """Let the firmware know of fetched data."""
        now, cost = self._clock.time, self._profile.fetched

        def know(now: int) -> None:
            going.missing -= 1
            if not going.missing:
                self._send_ready(now)

        if cost:
            self._handlers.add(now, FETCHED, Handling(cost, know))
        else:
            know(now)

    def _send_ready(self, now: int) -> None:
        """Send the frames that are ready."""
        outgoing = self._outgoing
        while outgoing and not outgoing[0].missing and outgoing[0].by.begun >= 0:
            going = outgoing[0]
            if going.by.begun + going.within > now:
                self._next_send.set(going.by.begun + going.within)
                return
            outgoing.popleft()
            self._leave(now, going.frame)
            if going.then is not None and self._agent is not None:
                self._port.when_sent(now, partial(self._left, going.then))
            if going.is_inside:
                self._hardware.inside -= 1
                self._hardware.fetch_next(now)

    def _leave(self, now: int, frame: bytes) -> None:
        if self._agent is not None:
            if self._profile.sent:
                self._handlers.add(now, SENT, Handling(self._profile.sent))
            self.sent += 1
            self._port.enter(now, frame)

    def _transfer(self, engine: Server, now: int, setup: int, rate: int, size: int) -> int:
        """Start a transfer and return when its engine finishes; the bytes also occupy the bus, in bursts."""
        profile = self._profile
        bursts = -(-size // profile.bus_burst) if profile.bus_burst else 1
        on_bus = bursts * (profile.dma_transaction or profile.bus_transaction) + transfer_time(size, profile.bus_rate)
        over = self.bus.reserve(now + setup, on_bus)
        return engine.reserve(now, max(setup + transfer_time(size, rate), over - now))

    # By the firmware: receiving.

    def dma_write(self, target: memoryview, data: Buffer) -> None:
        super().dma_write(target, data)
        self._storing += 1
        self._stores.append((self._event, self._spend(self._profile.transfer), len(target)))

    def post_completion(self, index: int) -> None:
        """Return a descriptor to the host, after everything stored and shown before."""
        super().post_completion(index)
        self._follow(self._spend(self._profile.show), index)

    def interrupt(self, index: int) -> None:
        """Return a descriptor to the host's kernel, which takes longer."""
        super().interrupt(index)
        self._follow(self._spend(self._profile.show), ~index)

    def send_later(self, make: Callable[[], bytes]) -> None:
        """Put a frame on the wire after all other effects of the current event. It does not wait for frames of `send`."""
        frame = make()
        self._check(frame)
        self._later.append(frame)

    def _check(self, frame: Buffer) -> None:
        if len(frame) > self._max_frame:
            raise frame_too_long(len(frame), self._max_frame - ETHERNET_HEADER)

    def _send_rest(self) -> None:
        """Queue the frames of `send_later`, once the firmware has returned."""
        for frame in self._later:
            self._follow(self._spend(self._profile.send), bytes(frame))
        self._later.clear()

    def _follow(self, within: int, what: int | bytes) -> None:
        self._following.append((self._storing, self._event, within, what))

    def store_next(self, now: int) -> None:
        """Start the next transfer into host memory if the engine is idle."""
        stores, profile = self._stores, self._profile
        if not stores or self.writing.free > now:
            return
        event, within, size = stores[0]
        if event.begun < 0:
            return
        if event.begun + within > now:
            self._next_store.set(event.begun + within)
            return
        stores.popleft()
        self._loop.at(self._transfer(self.writing, now, profile.store, profile.store_rate, size), self._written)

    def _written(self, now: int) -> None:
        """Handle the end of a transfer."""
        flush = self._profile.flush
        if flush:
            self._loop.at(self._use_core(now, flush, 0), self._has_stored)
        else:
            self._has_stored(now)
        self._hardware.store_next(now)

    def _has_stored(self, now: int) -> None:
        """Let the firmware know of a transfer that has ended."""
        cost = self._profile.stored
        if cost:
            self._receiving.add(now, STORED, Handling(cost, self._knows))
        else:
            self._knows(now)

    def _knows(self, now: int) -> None:
        """Count a transfer whose end the firmware has noticed."""
        self._stored += 1
        self._go_on(now)

    def _go_on(self, now: int) -> None:
        """Execute the actions that follow completed stores."""
        following = self._following
        while following and following[0][0] <= self._stored and following[0][1].begun >= 0:
            _, event, within, what = following[0]
            if event.begun + within > now:
                self._next_following.set(event.begun + within)
                return
            following.popleft()
            if isinstance(what, int):
                self._notice(now, what >= 0)
            else:
                self._leave(now, what)

    # By the host.

    def ring_doorbell(self, index: int, written: int, translated: int) -> None:
        now, profile = self._clock.time, self._profile
        writing = transfer_time(written, profile.write_rate)
        self._posted = over = self._use_core(now, profile.post + translated * profile.translate, writing)
        self._rings.append(index)
        self._loop.at(over + profile.doorbell, self._ring_next)

    def _ring_next(self, now: int) -> None:
        self.on_doorbell(now, self._rings.popleft())

    def _ring(self, now: int, index: int) -> None:
        self._react(now, self._profile.ring, self._firmware.on_doorbell, index)
        self._handlers.add(now, RING, self._event)

    def let_see(self) -> None:
        """Do nothing: the host sees completions at simulated times."""

    def _notice(self, now: int, is_read: bool) -> None:
        """Let the host notice a descriptor: its core reads it over the bus, or its kernel is interrupted."""
        profile = self._profile
        over = self._use_core(now, 0, profile.notice) if is_read else self._use_core(now, profile.interrupt, 0)
        self._loop.at(over, self._see_next)

    def _see_next(self, _now: int) -> None:
        self.see(self.shown.popleft())

    def _use_core(self, now: int, cost: int, on_bus: int) -> int:
        """Occupy the host's core, and the bus at the end of that time; return when both are done."""
        core, profile = self._core, self._profile
        if on_bus and (profile.bus_rate or profile.bus_transaction):
            begin = max(now, core.free)
            cost = self.bus.reserve(begin + cost, on_bus) - begin
        else:
            cost += on_bus
        return core.spend(now, cost, LIBRARY, self._program)

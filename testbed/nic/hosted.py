"""A NIC whose firmware runs on the host's cores: in the kernel, by traps, interrupts and softirqs (`Profile.hosted`).

The NIC itself only moves frames: by DMA between the wire and host memory. As in `priced`, decisions are made at once when an
event arrives, and their effects appear when the core on which they were made has done all work spent before.

A doorbell is a trap: the firmware runs on its program's core, after what the program has spent. A received frame goes into a
receive queue. Its interrupt is taken by the queue's core, ahead of programs; the softirq then passes the queue's frames to
the firmware one after the other, and those that arrive meanwhile need no interrupt. Timers expire in the first queue's
softirq.
Frames between ranks of one node are looped back by the kernel, without the NIC, in the context that sends them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from protocols.core.completion import Completion
from protocols.core.firmware import Buffer
from protocols.core.host_work import (
    ANYWHERE,
    CAUGHT_UP,
    COPY,
    INTERRUPT,
    LIBRARY,
    OFFLOAD,
    RETURN,
    SOFTIRQ,
    SWITCH,
    TRAP,
    WAKE,
    Cost,
)
from protocols.core.profile import Profile
from protocols.core.protocol import Steer
from testbed.engine.failures import ETHERNET_HEADER, frame_too_long
from testbed.engine.loop import Loop, VirtualClock
from testbed.engine.server import BookableServer, Core, Server, transfer_time
from testbed.nic.immediate import ImmediateNic, Port

_FREE: Final = Cost()


class ReceiveQueue:
    """A receive queue and its softirq. core: number of the core that takes its interrupt, or took its last. frames: in host
    memory, each with its function. active: whether the softirq runs, or its interrupt is coming. coming: frames on their way
    to it."""

    __slots__ = ("active", "coming", "core", "frames")

    def __init__(self, core: int) -> None:
        self.core = core
        self.frames: Final[deque[tuple[HostedNic, bytes]]] = deque()
        self.active = False
        self.coming = 0


class HostSide:
    """A host's cores and the moving parts of its NIC, which the NIC's functions share.

    cores: of the host. caches: the group of each, of those that share a cache. queues: receive queue k interrupts core k, or
    k modulo the number of cores.
    """

    __slots__ = (
        "bus",
        "caches",
        "copying",
        "cores",
        "functions",
        "interrupted",
        "queues",
        "reading",
        "steer",
        "writing",
    )

    def __init__(
        self,
        clock: VirtualClock,
        name: str,
        cores: Sequence[Core],
        caches: Sequence[int],
        queues: int,
        steer: Steer | None,
    ) -> None:
        self.cores: Final = tuple(cores)
        self.caches: Final = tuple(caches)
        self.queues: Final = tuple([ReceiveQueue(queue % len(cores)) for queue in range(queues)])
        self.steer: Final = steer
        self.functions: Final[dict[bytes, HostedNic]] = {}
        self.interrupted = -1
        """The core that took the last interrupt, where they go round."""
        self.reading: Final = Server(f"reading DMA engine of {name}")
        self.writing: Final = Server(f"writing DMA engine of {name}")
        self.copying: Final = Server(f"copy engine of {name}")
        self.bus: Final = BookableServer(f"bus of {name}", clock)


class HostedNic(ImmediateNic):
    """A NIC, or one function of it, whose firmware runs on the host's cores. Implements
    `protocols.core.host_work.HostWork` beside `protocols.core.firmware.Nic`."""

    __slots__ = (
        "_at", "_bound", "_cached_at", "_effect", "_host", "_in_kernel", "_later", "_offloaded", "_posted", "_profile",
        "_program", "on_bind", "writer",
    )  # fmt: skip

    def __init__(
        self,
        clock: VirtualClock,
        loop: Loop,
        port: Port,
        core: int,
        profile: Profile,
        mtu: int,
        host: HostSide,
        address: bytes,
    ) -> None:
        """core: number of the program's. host: shared with the NIC's other functions. address: the function's MAC. For the
        rest see `ImmediateNic`."""
        super().__init__(clock, loop, port, mtu)
        self._host = host
        self._profile = profile
        self._program = len(host.functions)
        host.functions[address] = self
        self._bound = core
        self._at = core  # the core on which the present code runs
        self._in_kernel = False  # whether that is a softirq, ahead of programs
        self._effect = 0  # when the softirq has done what was spent so far
        self._posted = 0  # the same for the program
        self._offloaded = 0  # when the copy engine has done what was given to it
        self._later: list[Callable[[], bytes]] = []
        self._cached_at = ANYWHERE  # the core whose cache holds the frame that the firmware handles
        self.writer = ANYWHERE
        """The core that has written into the program's memory last (`dma_write`)."""
        self.on_bind: Callable[[Core], object] | None = None
        """Called with the core to which the program moves (`bind`)."""

    @property
    def servers(self) -> Sequence[Server]:
        host = self._host
        return (host.reading, host.writing, host.copying, host.bus)

    @property
    def posted(self) -> int:
        return self._posted

    def cost(self, profile: Profile) -> None:
        self._profile = profile

    # Work on cores.

    @property
    def core(self) -> int:
        """Number of the core on which the calling code runs."""
        return self._at if self._in_kernel else self._bound

    @property
    def reached(self) -> int:
        """When the core has done what the calling code has spent."""
        return self._when()

    def caught_up(self) -> Completion[None]:
        """Return what is done at `reached`."""
        reached = self._when()
        if reached <= self._clock.time:
            return CAUGHT_UP
        completion: Completion[None] = Completion("its core")
        self._loop.at(reached, completion.complete, None)
        return completion

    def spend(self, kind: str, size: int = 0, source: int = ANYWHERE) -> None:
        """Occupy the core of the calling code."""
        self._occupy(kind, self._price(kind, size, source))

    def offload(self, size: int) -> None:
        """Copy by the copy engine; completions posted afterwards wait for it."""
        cost = self._profile.work.get(OFFLOAD, _FREE)
        self._occupy(OFFLOAD, cost.fixed)
        self._offloaded = self._host.copying.reserve(self._when(), transfer_time(size, cost.rate))

    def bind(self, core: int) -> None:
        """Move the program to another core."""
        cores = self._host.cores
        if not 0 <= core < len(cores):
            raise ValueError(f"core must be 0 to {len(cores) - 1}, got {core}")
        cores[self._bound].programs -= 1
        cores[core].programs += 1
        self._bound = core
        if self.on_bind is not None:
            self.on_bind(cores[core])

    def receiving_core(self, frame: bytes) -> int:
        """Return the core that such a frame interrupts, where there are several queues."""
        host = self._host
        if len(host.queues) == 1 or self._profile.round_robin:
            return -1
        return host.queues[self._queue_of(frame)].core

    def _queue_of(self, frame: bytes) -> int:
        host = self._host
        return host.steer(frame, len(host.queues)) if host.steer is not None and len(host.queues) > 1 else 0

    def read_frames(self, most: int) -> int:
        """Trap, and pass waiting frames to the firmware."""
        if not self._profile.polled:
            return 0
        self.spend(TRAP)
        frames = self._host.queues[0].frames
        mine = [entry for entry in frames if entry[0] is self][:most]
        for entry in mine:
            frames.remove(entry)
            self._pass(entry[1])
        return len(mine)

    def _price(self, kind: str, size: int, source: int) -> int:
        cost = self._profile.work.get(kind, _FREE)
        rate = cost.rate
        if source != ANYWHERE:
            core, caches = self.core, self._host.caches
            if source == core:
                rate = cost.same_rate or rate
            elif caches[source] == caches[core]:
                rate = cost.shared_rate or rate
        return cost.fixed + transfer_time(size, rate)

    def _occupy(self, cause: str, cost: int) -> None:
        now, core = self._clock.time, self._host.cores[self.core]
        if self._in_kernel:
            self._effect = core.preempt(now, cost, cause)
        else:
            self._posted = core.spend(now, cost, cause, self._program)

    def _when(self) -> int:
        """Return when the core has done what the calling code has spent: then its next action takes effect."""
        return max(self._clock.time, self._effect if self._in_kernel else self._posted)

    # By the firmware.

    def send(self, frame: Buffer) -> None:
        """Put a frame on the wire, or loop it back: the NIC fetches it by DMA when the core has written its descriptor."""
        if len(frame) > self._max_frame:
            raise frame_too_long(len(frame), self._max_frame - ETHERNET_HEADER)
        raw = bytes(frame)
        peer = self._host.functions.get(raw[:6])
        if peer is not None:
            self._loop.at(self._when(), peer.loop_back, (self.core, raw))
        else:
            self._loop.at(self._when() + self._profile.doorbell, self._fetch, raw)

    def send_later(self, make: Callable[[], bytes]) -> None:
        """Put a frame on the wire when the firmware has returned."""
        self._later.append(make)

    def dma_write(self, target: memoryview, data: Buffer) -> None:
        """Copy into a program's memory, by the core."""
        super().dma_write(target, data)
        self.spend(COPY, len(target), self._cached_at)
        self.writer = self.core

    def post_completion(self, index: int) -> None:
        """Return a descriptor to the host, which finds it when its program looks."""
        self._loop.at(max(self._when(), self._offloaded), self._notice, index)

    def interrupt(self, index: int) -> None:
        """Return a descriptor to the host, and wake its program, which sleeps."""
        self._loop.at(max(self._when(), self._offloaded), self._wake_program, index)

    def _wake_program(self, index: int) -> None:
        now, core = self._clock.time, self._host.cores[self._bound]
        if core.is_idle(now):
            core.spend(now, self._price(WAKE, 0, ANYWHERE), WAKE, self._program)
        core.spend(now, self._price(SWITCH, 0, ANYWHERE), SWITCH, self._program)
        self._notice(index)

    def _notice(self, index: int) -> None:
        over = self._host.cores[self._bound].spend(self._clock.time, self._profile.notice, LIBRARY, self._program)
        self._loop.at(over, self.see, index)

    # By the host's program.

    def ring_doorbell(self, index: int, written: int, translated: int) -> None:
        profile = self._profile
        cost = profile.post + translated * profile.translate + transfer_time(written, profile.write_rate)
        self._occupy(LIBRARY, cost)
        self.spend(TRAP)
        self.on_doorbell(self._clock.time, index)

    def _ring(self, now: int, index: int) -> None:
        super()._ring(now, index)
        self._send_rest()

    # The NIC: frames between the wire and host memory.

    def _move(self, engine: Server, setup: int, rate: int, size: int) -> int:
        """Move a frame by DMA; return when that is done."""
        profile, now = self._profile, self._clock.time
        bursts = -(-size // profile.bus_burst) if profile.bus_burst else 1
        on_bus = bursts * profile.bus_transaction + transfer_time(size, profile.bus_rate)
        over = self._host.bus.reserve(max(now, engine.free) + setup, on_bus)
        return engine.reserve(now, max(setup + transfer_time(size, rate), over - max(now, engine.free)))

    def _fetch(self, frame: bytes) -> None:
        profile = self._profile
        over = self._move(self._host.reading, profile.fetch, profile.fetch_rate, len(frame))
        self._loop.at(over, self._leave, frame)

    def _leave(self, frame: bytes) -> None:
        if self._agent is not None:
            self.sent += 1
            self._port.enter(self._clock.time, frame)

    def receive(self, now: int, frame: bytes) -> None:  # noqa: ARG002  the clock's
        """Receive a frame from the wire: into host memory, then by interrupt or when the host reads it."""
        host, profile = self._host, self._profile
        queue = host.queues[self._queue_of(frame)]
        if profile.receive_ring and len(queue.frames) + queue.coming >= profile.receive_ring:
            self.dropped += 1
            return
        queue.coming += 1
        over = self._move(host.writing, profile.store, profile.store_rate, len(frame))
        self._loop.at(over, self._arrived, (queue, frame))

    def _arrived(self, arrival: tuple[ReceiveQueue, bytes]) -> None:
        queue, frame = arrival
        queue.coming -= 1
        queue.frames.append((self, frame))
        if queue.active or self._profile.polled:
            return
        queue.active = True
        if self._profile.coalescing:
            self._loop.at(self._clock.time + self._profile.coalescing, self._interrupt, queue)
        else:
            self._interrupt(queue)

    def _interrupt(self, queue: ReceiveQueue) -> None:
        """Raise a queue's interrupt."""
        host = self._host
        if self._profile.round_robin:
            queue.core = host.interrupted = (host.interrupted + 1) % len(host.cores)
        now, core = self._clock.time, host.cores[queue.core]
        if core.is_idle(now) and not (self._profile.busy_waiting and core.programs):
            core.preempt(now, self._price(WAKE, 0, ANYWHERE), WAKE)
        core.preempt(now, self._price(INTERRUPT, 0, ANYWHERE), INTERRUPT)
        self._take_next(queue)

    def _take_next(self, queue: ReceiveQueue) -> None:
        """Let the softirq take a queue's next frame, when its core has done what the kernel has spent before."""
        now, core = self._clock.time, self._host.cores[queue.core]
        over = core.preempt(now, queue.frames[0][0].softirq_price(), SOFTIRQ)
        self._loop.at(over, self._softirq, queue)

    def softirq_price(self) -> int:
        """Return what the softirq takes for a frame of this function."""
        return self._price(SOFTIRQ, 0, ANYWHERE)

    def _softirq(self, queue: ReceiveQueue) -> None:
        """Pass a frame to its function's firmware, on the queue's core."""
        function, frame = queue.frames.popleft()
        function.handle(queue.core, frame)
        self._loop.at(self._host.cores[queue.core].kernel_free(self._clock.time), self._go_on, queue)

    def _go_on(self, queue: ReceiveQueue) -> None:
        if queue.frames:
            self._take_next(queue)
        else:
            queue.active = False
            if cost := self._price(RETURN, 0, ANYWHERE):
                self._host.cores[queue.core].preempt(self._clock.time, cost, RETURN)

    def handle(self, core: int, frame: bytes) -> None:
        """Pass a frame to the firmware in the kernel, on that core."""
        self._enter_kernel(core)
        try:
            self._pass(frame)
        finally:
            self._in_kernel = False

    def loop_back(self, sent: tuple[int, bytes]) -> None:
        """Receive a frame from another rank of the node. sent: the core that sends it, whose cache holds its data, and the
        frame."""
        self._cached_at = sent[0]
        self.handle(*sent)
        self._cached_at = ANYWHERE

    def _enter_kernel(self, core: int) -> None:
        self._in_kernel, self._at = True, core
        self._effect = self._host.cores[core].kernel_free(self._clock.time)

    def _pass(self, frame: bytes) -> None:
        """Pass a frame to the firmware in the present context."""
        if self._agent is not None:
            super().receive(self._clock.time, frame)
            self._send_rest()

    def _tick(self, now: int) -> None:
        self._enter_kernel(self._host.queues[0].core)
        try:
            super()._tick(now)
            self._send_rest()
        finally:
            self._in_kernel = False

    def resume(self, now: int) -> None:
        self._enter_kernel(self._host.queues[0].core)
        try:
            super().resume(now)
            self._send_rest()
        finally:
            self._in_kernel = False

    def _send_rest(self) -> None:
        """Send the frames of `send_later`."""
        for make in self._later:
            self.send(make())
        self._later.clear()

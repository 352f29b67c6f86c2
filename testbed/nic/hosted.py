"""A NIC whose firmware runs on the host's cores: in the kernel, in traps, interrupts and softirqs (`Profile.hosted`).

The NIC itself only moves frames by DMA between the wire and host memory. As in `priced`, decisions are made at once when an
event arrives, and take effect when the core on which they were made has finished all earlier work.

A doorbell is a trap: the firmware runs on its program's core, after the program's earlier work. A received frame goes into a
receive queue. The queue's core takes the interrupt, ahead of programs; the softirq then passes the queue's frames to the
firmware one after the other. Frames that arrive meanwhile need no interrupt. Timers expire in the first queue's softirq.

Frames between ranks of one node are looped back by the kernel, without the NIC, in the sender's context.
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
    HostWork,
)
from protocols.core.profile import Cost, Profile
from protocols.core.protocol import Steer
from testbed.engine.failures import ETHERNET_HEADER, frame_too_long
from testbed.engine.loop import Loop, VirtualClock
from testbed.engine.server import BookableServer, Core, Server, transfer_time
from testbed.nic.immediate import ImmediateNic, Port

_NO_COST: Final = Cost()


class ReceiveQueue:
    """A receive queue and its softirq.

    core: number of the core that takes its interrupts; with round robin, of the core that took the last one. frames: frames
    in host memory, each with the function that received it. is_active: whether the softirq runs, or an interrupt is pending.
    incoming: number of frames in DMA to host memory.
    """

    __slots__ = ("core", "frames", "incoming", "is_active")

    def __init__(self, core: int) -> None:
        self.core = core
        self.frames: Final[deque[tuple[HostedNic, bytes]]] = deque()
        self.is_active = False
        self.incoming = 0


class HostSide:
    """A host's cores, and the DMA engines, bus and receive queues that the functions of its NIC share.

    caches: number of each core's cache. queues: receive queue k interrupts core k modulo the number of cores. steer: chooses
    a frame's receive queue; None: always the first. functions: functions of the NIC, by MAC. reading, writing: the DMA
    engines that read and write host memory. copying: the engine of `HostedNic.offload`.
    """

    __slots__ = (
        "bus",
        "caches",
        "copying",
        "cores",
        "functions",
        "last_interrupted",
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
        """name: name of the node. queues: number of receive queues."""
        self.cores: Final = tuple(cores)
        self.caches: Final = tuple(caches)
        self.queues: Final = tuple([ReceiveQueue(queue % len(cores)) for queue in range(queues)])
        self.steer: Final = steer
        self.functions: Final[dict[bytes, HostedNic]] = {}
        self.last_interrupted = -1
        """Number of the core that took the last interrupt, for round robin; -1 before the first."""
        self.reading: Final = Server(f"reading DMA engine of {name}")
        self.writing: Final = Server(f"writing DMA engine of {name}")
        self.copying: Final = Server(f"copy engine of {name}")
        self.bus: Final = BookableServer(f"bus of {name}", clock)


class HostedNic(ImmediateNic, HostWork):
    """A NIC, or one function of a NIC, whose firmware runs on the host's cores."""

    __slots__ = (
        "_cached_core", "_copies_done", "_deferred", "_host", "_in_kernel", "_kernel_core", "_kernel_done", "_profile",
        "_program", "_program_core", "_program_done", "_writer", "on_bind",
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
        """core: number of the program's core. host: shared with the NIC's other functions. address: the function's MAC. See
        `ImmediateNic` for the other arguments."""
        super().__init__(clock, loop, port, mtu)
        self._host = host
        self._profile = profile
        self._program = len(host.functions)  # number of the program on the host
        host.functions[address] = self
        self._program_core = core
        self._kernel_core = core  # core of the current softirq
        self._in_kernel = False  # whether the firmware runs in a softirq
        self._kernel_done = 0  # time at which the softirq's work so far is done
        self._program_done = 0  # time at which the program's work so far is done
        self._copies_done = 0  # time at which the copy engine's work so far is done
        self._deferred: list[Callable[[], bytes]] = []  # makers of the frames of `send_later`
        self._cached_core = ANYWHERE  # core whose cache has the current frame's data
        self._writer = ANYWHERE  # see `writer`
        self.on_bind: Callable[[Core], object] | None = None
        """Called with the program's new core (`bind`)."""

    @property
    def servers(self) -> Sequence[Server]:
        host = self._host
        return (host.reading, host.writing, host.copying, host.bus)

    @property
    def posting_end(self) -> int:
        return self._program_done

    def set_costs(self, profile: Profile) -> None:
        self._profile = profile

    # Work on cores.

    @property
    def core(self) -> int:
        """Number of the core on which the calling code runs."""
        return self._kernel_core if self._in_kernel else self._program_core

    @property
    def writer(self) -> int:
        """Number of the core that last wrote to the program's memory (`dma_write`)."""
        return self._writer

    @property
    def reached(self) -> int:
        """Time at which the work of the calling code so far is done, ns."""
        return self._done_time()

    def caught_up(self) -> Completion[None]:
        """Return a completion that is done at `reached`."""
        reached = self._done_time()
        if reached <= self._clock.time:
            return CAUGHT_UP
        completion: Completion[None] = Completion("the core")
        self._loop.at(reached, completion.complete, None)
        return completion

    def spend(self, kind: str, size: int = 0, source: int = ANYWHERE) -> None:
        """Charge work to the core of the calling code."""
        self._occupy(kind, self._cost(kind, size, source))

    def offload(self, size: int) -> None:
        """Copy with the copy engine; completions posted afterwards wait for it."""
        cost = self._profile.work.get(OFFLOAD, _NO_COST)
        self._occupy(OFFLOAD, cost.fixed)
        self._copies_done = self._host.copying.reserve(self._done_time(), transfer_time(size, cost.rate))

    def bind(self, core: int) -> None:
        """Move the program to another core. Raises ValueError for a core that the host does not have."""
        cores = self._host.cores
        if not 0 <= core < len(cores):
            raise ValueError(f"core must be 0 to {len(cores) - 1}, got {core}")
        cores[self._program_core].programs -= 1
        cores[core].programs += 1
        self._program_core = core
        if self.on_bind is not None:
            self.on_bind(cores[core])

    def receiving_core(self, frame: bytes) -> int:
        """Return the number of the core that frames with this header interrupt; -1 if the header does not determine it."""
        host = self._host
        if len(host.queues) == 1 or self._profile.round_robin:
            return -1
        return host.queues[self._queue_of(frame)].core

    def _queue_of(self, frame: bytes) -> int:
        host = self._host
        return host.steer(frame, len(host.queues)) if host.steer is not None and len(host.queues) > 1 else 0

    def read_frames(self, limit: int) -> int:
        """Trap, and pass at most `limit` waiting frames to the firmware; return their number."""
        if not self._profile.polled:
            return 0
        self.spend(TRAP)
        frames = self._host.queues[0].frames
        entries = [entry for entry in frames if entry[0] is self][:limit]
        for entry in entries:
            frames.remove(entry)
            self._pass_to_firmware(entry[1])
        return len(entries)

    def _cost(self, kind: str, size: int, source: int) -> int:
        cost = self._profile.work.get(kind, _NO_COST)
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
            self._kernel_done = core.preempt(now, cost, cause)
        else:
            self._program_done = core.spend(now, cost, cause, self._program)

    def _done_time(self) -> int:
        """Return the time at which the work of the calling code so far is done; its next action takes effect then."""
        return max(self._clock.time, self._kernel_done if self._in_kernel else self._program_done)

    # Called by the firmware.

    def send(self, frame: Buffer) -> None:
        """Put a frame on the wire, or loop it back. The NIC fetches it by DMA when the core has written its descriptor."""
        if len(frame) > self._max_frame:
            raise frame_too_long(len(frame), self._max_frame - ETHERNET_HEADER)
        raw = bytes(frame)
        peer = self._host.functions.get(raw[:6])
        if peer is not None:
            self._loop.at(self._done_time(), peer.loop_back, (self.core, raw))
        else:
            self._loop.at(self._done_time() + self._profile.doorbell, self._start_fetch, raw)

    def send_later(self, make: Callable[[], bytes]) -> None:
        """Put a frame on the wire when the firmware has returned."""
        self._deferred.append(make)

    def dma_write(self, target: memoryview, data: Buffer) -> None:
        """Copy to a program's memory with the core."""
        super().dma_write(target, data)
        self.spend(COPY, len(target), self._cached_core)
        self._writer = self.core

    def post_completion(self, index: int) -> None:
        """Return a descriptor to the host, whose program polls for it."""
        self._loop.at(max(self._done_time(), self._copies_done), self._notice, index)

    def post_to(self, function: object, target: memoryview, data: Buffer, index: int) -> None:
        """Copy to the memory of another function's program with the calling core, whose cache has the data, and return a
        descriptor to that program."""
        assert isinstance(function, HostedNic)
        target[:] = data
        self.spend(COPY, len(target), self.core)
        function._writer = self.core
        self._loop.at(self._done_time(), function._notice, index)

    def interrupt(self, index: int) -> None:
        """Return a descriptor to the host, and wake its sleeping program."""
        self._loop.at(max(self._done_time(), self._copies_done), self._wake_program, index)

    def _wake_program(self, index: int) -> None:
        now, core = self._clock.time, self._host.cores[self._program_core]
        if core.is_idle(now):
            core.spend(now, self._cost(WAKE, 0, ANYWHERE), WAKE, self._program)
        core.spend(now, self._cost(SWITCH, 0, ANYWHERE), SWITCH, self._program)
        self._notice(index)

    def _notice(self, index: int) -> None:
        """Charge the program for noticing a descriptor, and then deliver the descriptor."""
        done = self._host.cores[self._program_core].spend(
            self._clock.time, self._profile.notice, LIBRARY, self._program
        )
        self._loop.at(done, self.deliver_completion, index)

    # Called by the host's program.

    def ring_doorbell(self, index: int, written: int, translated: int) -> None:
        profile = self._profile
        cost = profile.post + translated * profile.translate + transfer_time(written, profile.write_rate)
        self._occupy(LIBRARY, cost)
        self.spend(TRAP)
        self.on_doorbell(self._clock.time, index)

    def _handle_doorbell(self, now: int, index: int) -> None:
        super()._handle_doorbell(now, index)
        self._send_deferred()

    # The NIC: frames between the wire and host memory.

    def _move(self, engine: Server, setup: int, rate: int, size: int) -> int:
        """Move a frame by DMA; return the time at which the transfer ends. setup: ns. rate: bit/s. size: bytes."""
        profile, now = self._profile, self._clock.time
        bursts = -(-size // profile.bus_burst) if profile.bus_burst else 1
        on_bus = bursts * profile.bus_transaction + transfer_time(size, profile.bus_rate)
        done = self._host.bus.reserve(max(now, engine.free) + setup, on_bus)
        return engine.reserve(now, max(setup + transfer_time(size, rate), done - max(now, engine.free)))

    def _start_fetch(self, frame: bytes) -> None:
        profile = self._profile
        done = self._move(self._host.reading, profile.fetch, profile.fetch_rate, len(frame))
        self._loop.at(done, self._transmit, frame)

    def _transmit(self, frame: bytes) -> None:
        if self._agent is not None:
            self.sent += 1
            self._port.enter(self._clock.time, frame)

    def receive(self, now: int, frame: bytes) -> None:  # noqa: ARG002  `_move` reads the clock
        """Receive a frame from the wire into host memory; the firmware gets it after an interrupt or by `read_frames`."""
        host, profile = self._host, self._profile
        queue = host.queues[self._queue_of(frame)]
        if profile.receive_ring and len(queue.frames) + queue.incoming >= profile.receive_ring:
            self.dropped += 1
            return
        queue.incoming += 1
        done = self._move(host.writing, profile.store, profile.store_rate, len(frame))
        self._loop.at(done, self._on_stored, (queue, frame))

    def _on_stored(self, arrival: tuple[ReceiveQueue, bytes]) -> None:
        queue, frame = arrival
        queue.incoming -= 1
        queue.frames.append((self, frame))
        if queue.is_active or self._profile.polled:
            return
        queue.is_active = True
        if self._profile.coalescing:
            self._loop.at(self._clock.time + self._profile.coalescing, self._raise_interrupt, queue)
        else:
            self._raise_interrupt(queue)

    def _raise_interrupt(self, queue: ReceiveQueue) -> None:
        """Raise a queue's interrupt."""
        host = self._host
        if self._profile.round_robin:
            queue.core = host.last_interrupted = (host.last_interrupted + 1) % len(host.cores)
        now, core = self._clock.time, host.cores[queue.core]
        if core.is_idle(now) and not (self._profile.busy_waiting and core.programs):
            core.preempt(now, self._cost(WAKE, 0, ANYWHERE), WAKE)
        core.preempt(now, self._cost(INTERRUPT, 0, ANYWHERE), INTERRUPT)
        self._schedule_softirq(queue)

    def _schedule_softirq(self, queue: ReceiveQueue) -> None:
        """Schedule the softirq for a queue's next frame, after the earlier kernel work of its core."""
        now, core = self._clock.time, self._host.cores[queue.core]
        done = core.preempt(now, queue.frames[0][0].softirq_cost(), SOFTIRQ)
        self._loop.at(done, self._softirq, queue)

    def softirq_cost(self) -> int:
        """Return the nanoseconds that a softirq takes for a frame of this function."""
        return self._cost(SOFTIRQ, 0, ANYWHERE)

    def _softirq(self, queue: ReceiveQueue) -> None:
        """Pass the queue's first frame to the firmware of its function, on the queue's core."""
        function, frame = queue.frames.popleft()
        function.handle(queue.core, frame)
        self._loop.at(self._host.cores[queue.core].kernel_done_time(self._clock.time), self._continue_softirq, queue)

    def _continue_softirq(self, queue: ReceiveQueue) -> None:
        if queue.frames:
            self._schedule_softirq(queue)
        else:
            queue.is_active = False
            if cost := self._cost(RETURN, 0, ANYWHERE):
                self._host.cores[queue.core].preempt(self._clock.time, cost, RETURN)

    def handle(self, core: int, frame: bytes) -> None:
        """Pass a frame to the firmware, in the kernel on this core."""
        self._enter_kernel(core)
        try:
            self._pass_to_firmware(frame)
        finally:
            self._in_kernel = False

    def loop_back(self, sent: tuple[int, bytes]) -> None:
        """Receive a frame from another rank of the node. sent: the sender's core, whose cache has the data, and the
        frame."""
        self._cached_core = sent[0]
        self.handle(*sent)
        self._cached_core = ANYWHERE

    def _enter_kernel(self, core: int) -> None:
        self._in_kernel, self._kernel_core = True, core
        self._kernel_done = self._host.cores[core].kernel_done_time(self._clock.time)

    def _pass_to_firmware(self, frame: bytes) -> None:
        """Pass a frame to the firmware in the current context."""
        if self._agent is not None:
            super().receive(self._clock.time, frame)
            self._send_deferred()

    def _on_wake_up(self, now: int) -> None:
        self._enter_kernel(self._host.queues[0].core)
        try:
            super()._on_wake_up(now)
            self._send_deferred()
        finally:
            self._in_kernel = False

    def resume(self, now: int) -> None:
        self._enter_kernel(self._host.queues[0].core)
        try:
            super().resume(now)
            self._send_deferred()
        finally:
            self._in_kernel = False

    def _send_deferred(self) -> None:
        """Send the frames deferred by `send_later`."""
        for make in self._deferred:
            self.send(make())
        self._deferred.clear()

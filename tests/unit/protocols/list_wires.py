"""NICs joined by lists: a test delivers, drops or changes each sent frame."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from protocols.core.firmware import FIRST, Adapter, Agent, Buffer, Plug


class ListNic:
    """NIC whose actions are carried out at once; `sent` has the frames that were sent. holds_frames: frames wait in the NIC
    until `transmit_held_frames`."""

    def __init__(self, wires: Wires) -> None:
        self._wires = wires
        self.sent: list[bytes] = []
        self.agent: Agent | None = None
        self.holds_frames = False
        self._callbacks: list[Callable[[int], object]] = []

    def dma_read(self, segments: Sequence[memoryview]) -> bytes:
        return b"".join(segments)

    def send(self, frame: Buffer) -> bool:
        self.sent.append(bytes(frame))
        return self.holds_frames

    def when_sent(self, callback: Callable[[int], object]) -> None:
        assert self.holds_frames
        self._callbacks.append(callback)

    def transmit_held_frames(self) -> None:
        """Report that all frames have left the NIC."""
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self._wires.now)

    def send_later(self, make: Callable[[], bytes]) -> None:
        self.send(make())

    def dma_write(self, target: memoryview, data: Buffer) -> None:
        target[:] = data

    def post_completion(self, index: int) -> None:
        assert self.agent is not None
        self.agent.host.on_completion(index)

    def interrupt(self, index: int) -> None:
        self.post_completion(index)

    def ring_doorbell(self, index: int, written: int, translated: int) -> None:
        assert self.agent is not None
        assert written >= 0
        assert translated >= 0
        self.agent.firmware.on_doorbell(self._wires.now, index)


class Wires:
    """NICs, the lists that join them, and a clock that only a test advances. incarnation: the first one of each NIC. hosts,
    names: see `Adapter`."""

    def __init__(
        self,
        plug: Plug,
        count: int = 2,
        mtu: int = 1500,
        incarnation: int = FIRST,
        hosts: Sequence[int] = (),
        names: Sequence[str] = (),
    ) -> None:
        self.now = 0
        self._hosts = hosts
        self._names = names
        self._plug = plug
        self._mtu = mtu
        self.addresses = [bytes([2, 0, 0, 0, 0, number + 1]) for number in range(count)]
        self.incarnations = [incarnation] * count
        self.nics = [ListNic(self) for _ in range(count)]
        self.agents = [self._build(number) for number in range(count)]

    def _build(self, number: int) -> Agent:
        nic = self.nics[number]
        adapter = Adapter(
            number, self.addresses, self._mtu, self.incarnations[number], hosts=self._hosts, names=self._names
        )
        nic.agent = self._plug(adapter, nic)
        return nic.agent

    def restart(self, number: int) -> None:
        """Restart the NIC with empty memory; its undelivered frames are lost."""
        self.incarnations[number] += 1
        self.nics[number].sent.clear()
        self.agents[number] = self._build(number)

    def take(self, number: int) -> list[bytes]:
        """Remove and return the frames that a NIC has sent."""
        frames, self.nics[number].sent = self.nics[number].sent, []
        return frames

    def deliver_from(self, number: int) -> None:
        """Deliver the frames that a NIC has sent so far."""
        for frame in self.take(number):
            self.deliver(frame)

    def deliver(self, frame: bytes) -> None:
        """Deliver a frame to its destination, if it exists."""
        if frame[:6] in self.addresses:
            self.agents[self.addresses.index(frame[:6])].firmware.receive(self.now, frame)

    def exchange(self) -> int:
        """Deliver frames until no NIC sends any more; return their number."""
        count = 0
        while any(nic.sent for nic in self.nics):
            for number in range(len(self.nics)):
                for frame in self.take(number):
                    count += 1
                    self.deliver(frame)
        return count

    def elapse(self, span: int) -> None:
        """Let `span` nanoseconds pass; each frame sent meanwhile arrives at once."""
        end = self.now + span
        self.exchange()
        while (deadline := self.deadline) is not None and deadline <= end:
            self.tick()
            self.exchange()
        self.now = end

    @property
    def deadline(self) -> int | None:
        """The next one of all."""
        deadlines = [agent.firmware.deadline for agent in self.agents]
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def pending_work(self) -> list[str]:
        """Return what every NIC and host waits for."""
        return [
            f"{number}: {sentence}"
            for number, agent in enumerate(self.agents)
            for sentence in [*agent.host.pending_work(), *agent.firmware.pending_work()]
        ]

    def tick(self) -> bool:
        """Advance to the next deadline and run its timers; return False if there is none."""
        next_deadline = self.deadline
        if next_deadline is None:
            return False
        self.now = max(self.now, next_deadline)
        for agent in self.agents:
            deadline = agent.firmware.deadline
            if deadline is not None and deadline <= self.now:
                agent.firmware.on_timer(self.now)
        return True

"""A NIC on a dilated clock: the simulation's NIC, whose parts take the time that a profile says, on a packet socket.

What happens in it, and in its host's programs, happens in model time, as in the simulation, however late this machine is.
A frame leaves when the machine's clock has come to the time at which it leaves the model, and comes at the time at which
the kernel has it: only there lateness enters. It is noted, in model time: `Lateness`.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Final

from protocols.core.firmware import Agent, Buffer
from protocols.core.profile import Profile
from testbed.engine.clocks import DilatedClock
from testbed.engine.loop import Loop
from testbed.engine.server import Server
from testbed.kernel.frame_socket import DOWN, FrameSocket
from testbed.kernel.waiting import Waiter
from testbed.runtime.holding import Asking, is_word, outlet
from testbed.runtime.nodes.model_faults import Burn, ModelFault, Resume, Slowed, Stand, Unburn
from testbed.sim.burner import Burner
from testbed.sim.priced import PricedNic
from testbed.wire.myrinet.stop_go import Outlet

_OF: Final = " of NIC"


@dataclass(frozen=True, slots=True)
class Lateness:
    """By how much frames left later than they should have, and came at a time that the model had left behind; nanoseconds
    of the model's time. frames: that left or came."""

    frames: int
    p50: int
    p99: int
    longest: int


class Cable:
    """Where a NIC's frames go: a packet socket. unsent, down: as `InlineNic`'s."""

    __slots__ = ("_clock", "_send", "_wire", "down", "late", "outlet", "unsent")

    def __init__(self, wire: FrameSocket, clock: DilatedClock) -> None:
        self._wire = wire
        self._send = wire.socket.send
        self._clock = clock
        self.late = array("q")
        self.unsent = 0
        self.down = 0
        self.outlet: Outlet | None = None
        """Of a network with back-pressure: while that takes no frame, those that have left the model wait."""

    def enter(self, now: int, frame: bytes) -> None:
        """It leaves the model at that time."""
        if self.outlet is None:
            self.put(frame)
        else:
            self.outlet.send(frame)
        self.late.append(max(0, self._clock.reached() - now))

    def put(self, frame: Buffer) -> bool:
        """Give a frame to the kernel; whether it has taken it."""
        try:
            self._send(frame)
        except OSError as error:
            if error.errno in DOWN or not self._wire.has_carrier():
                self.down += 1
            else:
                self.unsent += 1
            return False
        return True

    @property
    def lateness(self) -> Lateness:
        late = sorted(self.late)
        if not late:
            return Lateness(0, 0, 0, 0)
        return Lateness(len(late), late[(len(late) - 1) // 2], late[-(-len(late) * 99 // 100) - 1], late[-1])


class DilatedNic(PricedNic):
    """What a node process has for a NIC. core: its host's. loop: its clock, its tasks."""

    def __init__(self, wire: FrameSocket, mtu: int, profile: Profile, factor: int, head: bytes = b"") -> None:
        """factor: how many nanoseconds of this machine are one of the model's. head: of a network with back-pressure, the
        NIC's address and its frames' EtherType."""
        self.clock = DilatedClock(Waiter(), factor)
        self.loop = Loop(self.clock)
        self.core = Server("core", self.loop)
        self.cable = Cable(wire, self.clock)
        if head:
            self.cable.outlet = outlet(wire, self.cable.put, head, lambda: self._asking.begin())
            self._asking = Asking(self.loop, self.cable.outlet, factor)
        super().__init__(self.loop, "NIC", self.cable, self.core, profile, mtu)
        self._wire = wire
        self._asked = profile
        self._burners: list[tuple[float, Burner]] = []
        self.busy = False
        """Whether the firmware is at work."""
        self._late = self.cable.late
        wire.stamp()
        self.loop.watch(wire.fileno(), self._read)

    @property
    def kept(self) -> int:
        """Frames that have left the model, and wait until the network takes them."""
        return len(self.cable.outlet.kept) if self.cable.outlet is not None else 0

    @property
    def unsent(self) -> int:
        return self.cable.unsent

    @property
    def down(self) -> int:
        return self.cable.down

    def used(self) -> dict[str, dict[str, float]]:
        """How its parts, and its host's core, were used: see `Report`."""
        now = self.loop.now()
        return {
            one.name.removesuffix(_OF): {
                "jobs": one.jobs,
                "busy_ns": one.busy,
                "waited_ns": one.waited,
                "share": one.utilisation(now),
            }
            for one in (self.core, *self.servers)
        }

    def attach(self, agent: Agent) -> None:
        """Whose actions these are; before the first one."""
        self.begin(self.loop.now(), agent)

    def go(self, origin: int, *, again: bool) -> None:
        """The clock shows 0 at that time of the machine's. again: the node has been started before, and begins now."""
        self.clock.origin = origin
        if again:
            self.clock.time = max(0, self.clock.reached())

    def suffer(self, fault: ModelFault) -> None:
        """From the time that the machine's clock shows, as in the simulation (`testbed.controller.scenarios.simulated`)."""
        self.loop.at(max(self.loop.now(), self.clock.reached()), self._suffer, fault)

    def _suffer(self, fault: ModelFault) -> None:
        now = self.loop.now()
        match fault:
            case Stand(until):
                self.pause()
                if until is not None:
                    self.core.reserve(now, max(0, until - now))
            case Resume():
                self.resume(now)
            case Slowed(factor):
                self.cost(self._asked.slowed(factor) if factor > 1 else self._asked)
            case Burn(share):
                self._burners.append((share, Burner(self.loop, self.core, share)))
            case Unburn(share):
                place = next(place for place, (taken, _) in enumerate(self._burners) if taken == share)
                self._burners.pop(place)[1].stop()

    def _read(self, now: int) -> None:
        """Frames have come."""
        shown, at, outlet = self.clock.shown, self.loop.at, self.cable.outlet
        for moment, frame in self._wire.stamped():
            if outlet is not None and is_word(frame) and outlet.hear(frame):
                continue
            came = shown(moment)
            self._late.append(max(0, now - came))
            at(max(now, came), self._take, frame)

    def _take(self, frame: bytes) -> None:
        self.busy = True
        self.receive(self.loop.now(), frame)
        self.busy = False

"""NIC on a dilated clock: the simulation's NIC, whose parts take the times of a profile, on a packet socket.

The NIC and its host's programs run in model time, as in the simulation, however late this machine is. A frame is sent when
the machine's clock has reached the time at which it leaves the model, and arrives at the time at which the kernel has it:
only there lateness enters. It is recorded, in model time: `Lateness`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from protocols.core.firmware import Agent
from protocols.core.profile import Profile
from testbed.engine.loop import POLL_TIME, DilatedClock, Loop
from testbed.engine.server import Burner, Core, usage_of
from testbed.kernel.frame_socket import FrameSocket
from testbed.kernel.waiter import Waiter
from testbed.nic.priced import Hardware, PricedNic
from testbed.runtime.nodes.places import Burn, ModelFault, Resume, Slowed, Stand, Unburn
from testbed.runtime.nodes.veth_port import Asking, HoldingPort, VethPort, port_on

_NIC: Final = "NIC"


@dataclass(frozen=True, slots=True)
class Lateness:
    """Lateness of frames: those sent later than the model sends them, and those that arrived at a time that the model had
    passed already; nanoseconds of model time. frames: number of frames sent or received."""

    frames: int
    p50: int
    p99: int
    longest: int


class Cable:
    """The model's cable, which sends a NIC's frames by a port and records their lateness."""

    __slots__ = ("_clock", "_port", "_send", "late")

    def __init__(self, port: VethPort, clock: DilatedClock) -> None:
        self._port = port
        self._send = port.send
        self._clock = clock
        self.late = array("q")

    def enter(self, now: int, frame: bytes) -> bool | None:
        """Send a frame that leaves the model at that time. Returns True if it waits in the port."""
        waits = self._send(frame)
        self.late.append(max(0, self._clock.reached() - now))
        return waits

    def when_sent(self, now: int, then: Callable[[int], object]) -> None:  # noqa: ARG002
        """Call `then` with the model's time when no frame waits in the port."""
        self._port.when_sent(lambda: then(self._clock.time))

    @property
    def lateness(self) -> Lateness:
        late = sorted(self.late)
        if not late:
            return Lateness(0, 0, 0, 0)
        return Lateness(len(late), late[(len(late) - 1) // 2], late[-(-len(late) * 99 // 100) - 1], late[-1])


class DilatedNic(PricedNic):
    """The NIC of a node process in a dilated run. core: its host's. loop: runs on its clock."""

    def __init__(self, wire: FrameSocket, mtu: int, profile: Profile, factor: int, head: bytes = b"") -> None:
        """factor: nanoseconds of this machine for one of the model. head: in a network with back-pressure, the NIC's address
        and its frames' EtherType."""
        self.clock = DilatedClock(Waiter(), factor)
        self.loop = Loop(self.clock, profile.poll or POLL_TIME)
        self.core = Core("core", self.loop)
        self.port = port_on(wire, head)
        if isinstance(self.port, HoldingPort):
            Asking(self.loop, self.port, factor)
        self.cable = Cable(self.port, self.clock)
        hardware = Hardware(self.clock, self.loop, _NIC, profile.processors)
        super().__init__(self.clock, self.loop, self.cable, self.core, profile, mtu, hardware)
        self._wire = wire
        self._asked = profile
        self._burners: list[tuple[float, Burner]] = []
        self.busy = False
        """Whether the firmware is at work."""
        self._late = self.cable.late
        wire.stamp()
        self.loop.watch(wire.fileno(), self._read)

    def used(self) -> dict[str, dict[str, float]]:
        """Return the usage of its parts and of its host's core, see `Report`."""
        return usage_of((self.core, *self.servers), _NIC, self.loop.now())

    def attach(self, agent: Agent) -> None:
        """Set the agent that the NIC serves, before its first action."""
        self.begin(self.loop.now(), agent)

    def go(self, origin: int, *, again: bool) -> None:
        """Let the clock show 0 at that time of the machine. again: the node was restarted, and begins at the present
        time."""
        self.clock.origin = origin
        if again:
            self.clock.time = max(0, self.clock.reached())

    def apply_fault(self, fault: ModelFault) -> None:
        """Apply a fault at the machine's present time, as in the simulation (`testbed.controller.scenarios.simulated`)."""
        self.loop.at(max(self.loop.now(), self.clock.reached()), self._apply, fault)

    def _apply(self, fault: ModelFault) -> None:
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
                index = next(index for index, (taken, _) in enumerate(self._burners) if taken == share)
                self._burners.pop(index)[1].stop()

    def _read(self, now: int) -> None:
        """Receive frames."""
        shown, at, hear = self.clock.shown, self.loop.at, self.port.hear
        for moment, frame in self._wire.stamped():
            if hear(frame):
                continue
            came = shown(moment)
            self._late.append(max(0, now - came))
            at(max(now, came), self._take, frame)

    def _take(self, frame: bytes) -> None:
        self.busy = True
        self.receive(self.loop.now(), frame)
        self.busy = False

    def _tick(self, now: int) -> None:
        self.busy = True
        super()._tick(now)
        self.busy = False

    def _ring(self, now: int, index: int) -> None:
        self.busy = True
        super()._ring(now, index)
        self.busy = False

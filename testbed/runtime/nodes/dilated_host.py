"""A node on a dilated clock: the simulation's model of a computer, with the costs of a profile, on a packet socket.

Cores, NIC and the programs of all ranks run in model time and in one process, as in the simulation, however late this
machine is. A frame is sent when the machine's clock has reached the time at which the frame leaves the model, and arrives in
the model at the kernel's receive timestamp. A frame can be late only at these two transitions; `Lateness` summarizes by how
much.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from protocols.core.firmware import Adapter, Agent, Firmware, Host, Plug
from protocols.core.profile import Profile
from protocols.core.protocol import Steering
from testbed.engine.loop import POLL_TIME, DilatedClock, Loop
from testbed.engine.server import BackgroundLoad, load_cores, usages_of
from testbed.engine.tasks import Task
from testbed.kernel.frame_socket import FrameSocket
from testbed.kernel.waiter import Waiter
from testbed.runtime.nodes.run_orders import BeginLoad, EndLoad, ModelFault, PauseNic, ResumeNic, SlowNic
from testbed.runtime.nodes.veth_port import AskTimer, FlowControlPort, VethPort, make_port
from testbed.sim.sim_host import FunctionPort, PollAccounts, SimHost
from testbed.sim.sim_node import SimNode
from testbed.spec.layout import Node
from testbed.spec.placement import Rank


@dataclass(frozen=True, slots=True)
class Lateness:
    """Lateness of frames, nanoseconds of model time. A sent frame is late by the time from its departure from the model to
    the system call; a received frame, by the time by which the model had passed the frame's arrival.

    frames: number of frames sent or received. p50, p99: quantiles. longest: maximum.
    """

    frames: int
    p50: int
    p99: int
    longest: int


class Cable:
    """The model's cable, which sends a NIC's frames through a port and records their lateness. latenesses: nanoseconds of
    model time; the host adds those of received frames."""

    __slots__ = ("_clock", "_port", "_send", "latenesses")

    def __init__(self, port: VethPort, clock: DilatedClock) -> None:
        self._port = port
        self._send = port.send
        self._clock = clock
        self.latenesses = array("q")

    def enter(self, now: int, frame: bytes) -> bool | None:
        """Send a frame that leaves the model now. Returns True if it waits in the port."""
        waits = self._send(frame)
        self.latenesses.append(max(0, self._clock.reached() - now))
        return waits

    def when_sent(self, now: int, then: Callable[[int], object]) -> None:  # noqa: ARG002
        """Call `then` with the model's time once no frame waits in the port."""
        self._port.when_sent(lambda: then(self._clock.time))

    @property
    def lateness(self) -> Lateness:
        ordered = sorted(self.latenesses)
        count = len(ordered)
        if not count:
            return Lateness(0, 0, 0, 0)
        return Lateness(count, ordered[(count - 1) // 2], ordered[-(-count * 99 // 100) - 1], ordered[-1])


class BusyFirmware:
    """Firmware with a flag that shows whether it runs. Implements `protocols.core.firmware.Firmware`."""

    __slots__ = ("busy", "firmware")

    def __init__(self, firmware: Firmware) -> None:
        self.firmware: Final = firmware
        self.busy = False

    @property
    def deadline(self) -> int | None:
        return self.firmware.deadline

    def receive(self, now: int, frame: bytes) -> None:
        self.busy = True
        self.firmware.receive(now, frame)
        self.busy = False

    def on_doorbell(self, now: int, index: int) -> None:
        self.busy = True
        self.firmware.on_doorbell(now, index)
        self.busy = False

    def on_timer(self, now: int) -> None:
        self.busy = True
        self.firmware.on_timer(now)
        self.busy = False

    def counter_values(self) -> Mapping[str, int]:
        return self.firmware.counter_values()

    def pending_work(self) -> list[str]:
        return self.firmware.pending_work()


class DilatedHost:
    """The computer of a node process in a dilated run. clock: the dilated clock. loop: event loop on this clock. host: cores
    and NIC. port: sends the NIC's frames. ranks: environments of the programs, in the order of their ranks."""

    def __init__(
        self,
        wire: FrameSocket,
        layout: Node,
        profile: Profile,
        factor: int,
        control_header: bytes = b"",
        steering: Steering | None = None,
    ) -> None:
        """wire: packet socket of the NIC. layout: layout of the node. profile: costs of hosts and NIC. factor: nanoseconds
        of this machine for one of the model. control_header: see `make_port`. steering: see
        `testbed.sim.sim_host.Prices`."""
        self.clock = DilatedClock(Waiter(), factor)
        self.loop = Loop(self.clock, profile.poll or POLL_TIME)
        self.port = make_port(wire, control_header)
        if isinstance(self.port, FlowControlPort):
            AskTimer(self.loop, self.port, factor)
        self.cable = Cable(self.port, self.clock)
        self.host = SimHost(self.clock, self.loop, layout, profile, self.cable, steering)
        self._polls: Final = PollAccounts(self.loop)
        self._wire = wire
        self._profile = profile
        self._background_loads: list[tuple[float, list[BackgroundLoad]]] = []  # (share, loads)
        self._paused_until = 0
        self._firmware: list[BusyFirmware] = []
        wire.enable_timestamps()
        self.loop.watch(wire.fileno(), self._read)

    @property
    def ranks(self) -> list[SimNode]:
        return self.host.ranks

    @property
    def busy(self) -> bool:
        """Whether firmware runs."""
        return any(firmware.busy for firmware in self._firmware)

    @property
    def dropped(self) -> int:
        """Number of frames for which the model's NIC had no buffer."""
        return sum(rank.nic.dropped for rank in self.ranks)

    def attach(
        self, ranks: Iterable[Rank], adapters: Iterable[Adapter], plug: Plug, wrap_host: Callable[[Host], Host]
    ) -> None:
        """Attach each rank to its NIC, or to its function of a shared NIC. plug: makes the firmware and the host library.
        wrap_host: wraps a host library for the NIC."""
        for rank, adapter in zip(ranks, adapters, strict=True):
            node = SimNode(self.clock, self.loop, rank, self.host.cores[rank.core])
            self.ranks.append(node)
            node.adapter = adapter
            node.nic = nic = self.host.nic(node, adapter)
            node.agent = agent = plug(adapter, nic)
            firmware = BusyFirmware(agent.firmware)
            self._firmware.append(firmware)
            nic.begin(self.loop.now(), Agent(firmware, wrap_host(agent.host)))
            if isinstance(self.host.port, FunctionPort):
                self.host.port.set_receiver(adapter.address, nic.receive)

    def adopt(self, rank: SimNode, task: Task[object]) -> None:
        """Account the costs of a task's polls to a rank."""
        self._polls.adopt(task, rank, self._profile)

    def usage(self) -> dict[str, dict[str, float]]:
        """Return the usage of cores and NIC, see `testbed.engine.server.usages_of`."""
        return usages_of(self.host.servers, self.host.name, self.loop.now())

    def start_clock(self, origin: int, *, is_restarted: bool) -> None:
        """Start the clock, and wait until it shows 0, so that actions of the programs at that time are not late. origin: the
        machine's time at which the clock shows 0. is_restarted: whether the node was restarted, and so starts at the present
        time."""
        self.clock.origin = origin
        if is_restarted:
            self.clock.time = max(0, self.clock.reached())
        while self.clock.reached() < 0:
            self.clock.wait(0)

    def apply_fault(self, fault: ModelFault) -> None:
        """Apply a fault at the present time, as in the simulation (`testbed.controller.scenarios.simulated`)."""
        self.loop.at(max(self.loop.now(), self.clock.reached()), self._apply, fault)

    def _apply(self, fault: ModelFault) -> None:
        now = self.loop.now()
        match fault:
            case PauseNic(until):
                for rank in self.ranks:
                    rank.nic.pause()
                begin = max(now, self._paused_until)  # pauses may overlap: reserve each span once
                if until is not None and until > begin:
                    for core in self.host.cores:
                        core.reserve(begin, until - begin)
                    self._paused_until = until
            case ResumeNic():
                for rank in self.ranks:
                    rank.nic.resume(now)
            case SlowNic(factor):
                self.host.set_costs(self._profile.slowed(factor) if factor > 1 else self._profile)
            case BeginLoad(share):
                self._background_loads.append((share, load_cores(self.loop, self.host.cores, share)))
            case EndLoad(share):  # without effect if the node was restarted since the load began
                oldest = next((entry for entry in self._background_loads if entry[0] == share), None)
                if oldest is not None:
                    self._background_loads.remove(oldest)
                    for load in oldest[1]:
                        load.stop()

    def _read(self, now: int) -> None:
        """Read the waiting frames from the socket, and let them arrive in the model at their timestamps."""
        from_base_time, at, on_control_frame = self.clock.from_base_time, self.loop.at, self.port.on_control_frame
        for stamp, frame in self._wire.receive_timestamped():
            if on_control_frame(frame):
                continue
            arrival = from_base_time(stamp)
            self.cable.latenesses.append(max(0, now - arrival))
            at(max(now, arrival), self._receive, frame)

    def _receive(self, frame: bytes) -> None:
        self.host.receive(self.loop.now(), frame)

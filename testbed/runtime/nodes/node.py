"""A node process, from its fork to its end: it becomes its node's, opens its NIC, runs the program, and serves its peers
until it is told to stop.

What it says by its channel: "ready" when its NIC takes frames; "done" with the program's result; "failed" with a
traceback; "waiting" with sentences, when it is signalled; "report" with its counts, last. What it is told: "go", "stop".
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Final, Protocol, cast

from protocols.core.firmware import Adapter, Agent, Host
from testbed.engine.tasks import Task
from testbed.kernel import syscalls
from testbed.kernel.entering import enter
from testbed.kernel.frame_socket import FrameSocket
from testbed.runtime.blaming import blamed, whole
from testbed.runtime.holding import routed_socket
from testbed.runtime.incarnations import incarnation
from testbed.runtime.nodes.channel import Channel
from testbed.runtime.nodes.driver import Driver
from testbed.runtime.nodes.inline import InlineNic
from testbed.runtime.nodes.patience import Patience
from testbed.runtime.nodes.places import Here, Orders, Place
from testbed.runtime.nodes.progress import Progress
from testbed.runtime.nodes.routed import RoutedNic
from testbed.runtime.shared.attached import HostDriver
from testbed.runtime.shared.serving import NodesNic

if TYPE_CHECKING:
    from testbed.runtime.nodes.dilated import DilatedNic, Lateness
    from testbed.runtime.nodes.model_faults import ModelFault

QUESTION: Final = signal.SIGUSR1
"""Asks what is waited for. A signal reaches a program that never ends, too."""

_SAID: Final = 50  # sentences; a program may wait for thousands of transfers
_LONGEST: Final = 500  # characters of one
_ASKED: Final[list[Callable[[int, FrameType | None], None]]] = []
_LEVELS: Final = (Task.call.__code__, Driver.wait.__code__, HostDriver.wait.__code__)


@dataclass(frozen=True, slots=True)
class Report:
    """What a NIC has done in a run. counted: by its firmware. taken: frames that came. The next two were lost inside the
    emulator, by nobody's wish: dropped because the process did not read in time; unsent because the kernel did not take
    them. down: frames for an interface that was down. cpu: nanoseconds of processor time, from "go" on. Of a dilated run
    only: lateness, of its frames; overrun, frames for which the model's NIC had no room; used, how its parts were.
    """

    counted: dict[str, int]
    taken: int
    dropped: int
    unsent: int
    down: int
    cpu: int
    lateness: Lateness | None = None
    overrun: int = 0
    used: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def lost(self) -> int:
        """Frames lost inside the emulator: with one, the run says nothing of the protocol."""
        return self.dropped + self.unsent


def asked(number: int, frame: FrameType | None) -> None:
    """For QUESTION, from before the fork on: a node that cannot answer yet does not die of it. To set a handler costs each
    node pages of Python's enumerations."""
    for answer in _ASKED:
        answer(number, frame)


def live(orders: Orders, number: int, channel: Channel, log: str, progress: Progress, starts: int = 1) -> None:
    """The process's life; does not return. It is the child of the one that has forked it, and ends with it. number: of its
    place. starts: how often the node has been started, with this time."""
    status, place = 1, orders.places[number]
    try:
        parent = os.getppid()
        syscalls.end_with_parent(signal.SIGKILL)
        if os.getppid() != parent:  # it ended before that
            os._exit(1)
        syscalls.name_process(f"node {place.name}")
        _write_to(log)
        _Node(orders, place, channel, partial(progress.watched, number), starts).run()
        status = 0
    except BaseException as error:  # noqa: BLE001  the last line of a process: nothing of the parent's code may run on
        with contextlib.suppress(OSError):  # the disk is full, which may be what ends it
            sys.stderr.write(whole(error))
        channel.tell("failed", blamed(error))
    finally:
        try:
            sys.stdout.flush()
        finally:
            os._exit(status)


def assembled(orders: Orders, device: str, adapter: Adapter) -> tuple[FrameSocket, InlineNic, Agent, Driver]:
    """A NIC on an interface of this process's network namespace, and what drives it. OSError."""
    wire = _wire(orders, device, adapter)
    nic = RoutedNic(wire, _head(orders, adapter)) if adapter.routed else InlineNic(wire)
    agent = orders.plug(adapter, nic)
    nic.attach(agent)
    patience = Patience.among(len(orders.places) or len(orders.numbers))  # who attaches has orders of its own
    driver = Driver(wire, nic, agent.firmware, orders.spin, patience)
    if isinstance(nic, RoutedNic):
        nic.begin(driver.loop)
    return wire, nic, agent, driver


def made(
    orders: Orders, device: str, adapter: Adapter
) -> tuple[FrameSocket, InlineNic | DilatedNic, Agent, Driver | DilatedNic]:
    """The same, of the kind that the orders want."""
    if orders.dilation is None:
        return assembled(orders, device, adapter)
    from testbed.runtime.nodes.dilated import DilatedNic  # the simulation's parts, which no other run needs

    profile = orders.dilation.profile
    wire = _wire(orders, device, adapter)
    head = _head(orders, adapter) if adapter.routed else b""
    nic = DilatedNic(wire, adapter.mtu, profile, orders.dilation.factor, head)
    agent = orders.plug(replace(adapter, pages_apart=profile.pages_apart), nic)
    nic.attach(agent)
    return wire, nic, agent, nic


def _wire(orders: Orders, device: str, adapter: Adapter) -> FrameSocket:
    kind = routed_socket if adapter.routed else FrameSocket
    return kind(device, orders.ethertype, adapter.mtu)


def _head(orders: Orders, adapter: Adapter) -> bytes:
    """What a NIC's frames say of it, behind their destination."""
    return adapter.address + orders.ethertype.to_bytes(2, "big")


def _write_to(log: str) -> None:
    """Let standard output and error go to this file."""
    written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    for standard in (1, 2):
        os.dup2(written, standard)
    os.close(written)


class _Wire(Protocol):
    """What tells how many frames came."""

    @property
    def taken(self) -> int: ...

    @property
    def dropped(self) -> int: ...

    def look(self) -> None: ...


class _Nic(Protocol):
    """What tells how many frames did not leave, and whether the firmware is at work."""

    @property
    def unsent(self) -> int: ...

    @property
    def down(self) -> int: ...

    @property
    def busy(self) -> bool: ...

    @property
    def kept(self) -> int: ...


class _Firmware(Protocol):
    """What can be asked of it, wherever it is."""

    def counted(self) -> Mapping[str, int]: ...

    def waiting(self) -> list[str]: ...


class _Node:
    def __init__(
        self, orders: Orders, place: Place, channel: Channel, watched: Callable[[Host], Host], starts: int
    ) -> None:
        """The process is in the node from here on. watched: what the NIC gets for a host library. OSError."""
        enter(place.surroundings)
        for name, value in place.surroundings.environment.items():  # `update` would ask abstract classes what this is
            os.environ[name] = value
        if place.cpu >= 0:
            os.sched_setaffinity(0, {place.cpu})
        # Of a dilated run, whose NICs are new: as in the simulation.
        counted = place.adapter.incarnation + starts - 1
        adapter = place.adapter.of_incarnation(incarnation() if orders.dilation is None else counted)
        self._channel = channel
        self._starts = starts
        self._dilated: DilatedNic | None = None
        self._shared: NodesNic | None = None
        self._wire: _Wire
        self._nic: _Nic
        self._firmware: _Firmware
        if orders.shared is not None:
            self._shared = shared = NodesNic(orders, orders.shared, place.device)
            self._wire = self._nic = self._firmware = shared
            self._host: Host = shared.host
            self._driver: Driver | DilatedNic | HostDriver = shared.driver
            shared.attach(watched(self._host))
        else:
            self._wire, nic, agent, self._driver = made(orders, place.device, adapter)
            nic.attach(Agent(agent.firmware, watched(agent.host)))
            self._nic, self._firmware, self._host = nic, agent.firmware, agent.host
            if not isinstance(nic, InlineNic):
                self._dilated = nic
        here = Here(place.name, adapter.number, orders.numbers, self._driver.loop, self._dilated, starts)
        self._program = self._driver.loop.spawn(orders.programs[place.name](self._host, here), "program")
        self._begun = 0

    def run(self) -> None:
        _ASKED.append(self._say_who_waits)
        self._channel.tell("ready", os.getpid())
        said = self._channel.hear()
        if said is None:
            return
        if self._dilated is not None:
            assert isinstance(said[1], int)
            self._dilated.go(said[1], again=self._starts > 1)
            self._driver.loop.watch(self._channel.fileno(), self._hear)
        self._begun = self._used()
        loop = self._driver.loop
        self._program.add_callback(lambda _: loop.stop())
        loop.run()
        self._channel.tell("done", self._program.result())
        if isinstance(self._driver, Driver | HostDriver):
            self._driver.spin = 0
            loop.watch(self._channel.fileno(), self._hear)
        loop.run()
        self._channel.tell("report", self._report())

    def _hear(self, _now: int) -> None:
        """While the program runs, what is to be done to a model; when it has ended, that all have."""
        said = self._channel.hear()
        if said is None:  # whoever has started us is gone
            os._exit(1)
        if said[0] == "stop":
            self._driver.loop.stop()
        elif self._dilated is not None:
            self._dilated.suffer(cast("ModelFault", said[1]))

    def _used(self) -> int:
        """Nanoseconds of processor time until now: this process's, and its NIC's where that is another."""
        self._wire.look()
        return time.process_time_ns() + (self._shared.cpu if self._shared is not None else 0)

    def _report(self) -> Report:
        used = self._used() - self._begun
        counted = dict(self._firmware.counted())
        nic, dilated = self._nic, self._dilated
        report = Report(counted, self._wire.taken, self._wire.dropped, nic.unsent, nic.down, used)
        if dilated is None:
            return report
        return replace(report, lateness=dilated.cable.lateness, overrun=dilated.dropped, used=dilated.used())

    def _say_who_waits(self, _number: int, frame: FrameType | None) -> None:
        """Within the signal: whatever the process does now, it stands still meanwhile."""
        program = self._program
        waits_for = program.waits_for or "its turn: it polls"
        lines = ["the program has ended" if program.done else f"the program waits for {waits_for}"]
        if frame is not None and (where := self._where(frame)):
            lines = [where]
        lines += [f"host: {sentence}" for sentence in self._host.waiting()]
        lines += [f"NIC: {sentence}" for sentence in self._firmware.waiting()]
        if self._nic.kept:
            lines.append(f"frames that wait in the NIC until the network takes them: {self._nic.kept}")
        if self._shared is None:
            self._wire.look()
        if self._wire.dropped:
            lines.append(f"frames dropped because nobody read them in time: {self._wire.dropped}")
        if len(lines) > _SAID:
            lines[_SAID:] = [f"and {len(lines) - _SAID:,} more"]
        self._channel.tell("waiting", [line[:_LONGEST] for line in lines])

    def _where(self, innermost: FrameType) -> str:
        """What the process is at; empty when it waits for a frame."""
        place = f"{innermost.f_code.co_filename}:{innermost.f_lineno} in {innermost.f_code.co_name}"
        frame: FrameType | None = innermost
        while frame is not None and frame.f_code not in _LEVELS:
            frame = frame.f_back
        if frame is None or frame.f_code is Task.call.__code__:
            return f"the program runs, at {place}"
        return f"the NIC is at work, at {place}" if self._nic.busy else ""

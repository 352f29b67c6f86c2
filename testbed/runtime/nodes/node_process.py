"""Node process, from its fork to its end: it enters its node, opens its NIC, runs the program, and serves its peers until
it is stopped.

Words that it sends by its channel: "ready" when its NIC takes frames; "done" with the program's result; "failed" with a
traceback; "waiting" with sentences, when it is signalled; "report" with its counts, last. Words that it receives: "go",
"stop", "model" with a fault, and "departed" with a rank that has crashed.
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
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from protocols.core.firmware import Adapter, Agent, Firmware, Host
from testbed.engine.tasks import Task
from testbed.engine.tracebacks import complete_traceback, format_frame, program_line, program_traceback
from testbed.errors import FirmwareError
from testbed.kernel import syscalls
from testbed.kernel.daemons import write_output_to
from testbed.kernel.frame_socket import FrameSocket
from testbed.kernel.setns import enter
from testbed.runtime.incarnations import incarnation
from testbed.runtime.nodes.control_channel import Channel
from testbed.runtime.nodes.inline import InlineNic
from testbed.runtime.nodes.inline_driver import Driver
from testbed.runtime.nodes.patience import Patience
from testbed.runtime.nodes.places import NodePlacement, Orders, ProgramNode
from testbed.runtime.nodes.run_progress import Progress
from testbed.runtime.nodes.veth_port import Asking, HoldingPort, VethPort, port_on, socket_on
from testbed.runtime.shared.attachment import HostDriver
from testbed.runtime.shared.node_agents import NodesNic

if TYPE_CHECKING:
    from testbed.runtime.nodes.dilated_host import DilatedHost, Lateness
    from testbed.runtime.nodes.places import ModelFault, NodeModel
    from testbed.sim.sim_node import SimNode

QUESTION: Final = signal.SIGUSR1
"""Signal that asks what the node waits for. It reaches even a program that never yields."""

_MAX_SENTENCES: Final = 50  # sentences of a reply; a program may wait for thousands of transfers
_MAX_SENTENCE: Final = 500  # characters of one
_HANDLERS: Final[list[Callable[[int, FrameType | None], None]]] = []
_POLLS: Final = 1_000_000_000  # ns after a poll, within which a program is reported as polling
_ANSWER: Final = 100_000_000  # ns within which a NIC has answered a poll, for which the program waits meanwhile


@dataclass(frozen=True, slots=True)
class Report:
    """Report of a NIC on a run. counted: the firmware's counters. taken: received frames. dropped, unsent: frames lost
    inside the emulator, because the process did not read in time, or the kernel did not take them. down: frames for an
    interface that was down. cpu: nanoseconds of processor time, from "go" on. In a dilated run only: lateness of its
    frames; overrun, frames for which the model's NIC had no room; used, the usage of its parts; ranks, the counters by
    rank in place of `counted`.
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
    ranks: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def lost(self) -> int:
        """Frames lost inside the emulator: a run with any says nothing about the protocol."""
        return self.dropped + self.unsent


def answer_question(number: int, frame: FrameType | None) -> None:
    """Handle QUESTION. The handler is set before the fork, so that a node that cannot answer yet does not die of the signal;
    setting one in each node would cost it pages of Python's enumerations."""
    for answer in _HANDLERS:
        answer(number, frame)


def run_node(orders: Orders, number: int, channel: Channel, log: str, progress: Progress, starts: int = 1) -> None:
    """Run the forked node process, which ends with its parent; does not return. number: of its placement. starts: how
    often the node has been started, including this time."""
    status, placement = 1, orders.places[number]
    try:
        parent = os.getppid()
        syscalls.end_with_parent(signal.SIGKILL)
        if os.getppid() != parent:  # the parent ended before the signal was set
            os._exit(1)
        syscalls.name_process(f"node {placement.name}")
        write_output_to(log)
        _Node(orders, placement, channel, partial(progress.watched, number), starts).run()
        status = 0
    except BaseException as error:  # noqa: BLE001  none of the parent's code may run on in the child
        with contextlib.suppress(OSError):  # the disk is full, which may be the error itself
            sys.stderr.write(complete_traceback(error))
        reason = (error.what, error.when) if isinstance(error, FirmwareError) else program_traceback(error)
        channel.send("failed", reason)
        status = 0  # the error is reported: the end of the process is no death
    finally:
        try:
            sys.stdout.flush()
        finally:
            os._exit(status)


def build_inline_nic(orders: Orders, device: str, adapter: Adapter) -> tuple[FrameSocket, InlineNic, Agent, Driver]:
    """Build an inline NIC on an interface of this process's network namespace, and its driver. OSError."""
    wire = _wire(orders, device, adapter)
    port = port_on(wire, _head(orders, adapter))
    nic = InlineNic(port)
    agent = orders.plug(adapter, nic)
    nic.attach(agent)
    patience = Patience.among(len(orders.places) or len(orders.numbers))  # an attached process has no places
    driver = Driver(wire, nic, agent.firmware, orders.spin, patience)
    if isinstance(port, HoldingPort):
        Asking(driver.loop, port)
    return wire, nic, agent, driver


def build_dilated_host(
    orders: Orders, device: str, model: NodeModel, starts: int, watched: Callable[[Host], Host]
) -> tuple[FrameSocket, DilatedHost]:
    """Build a node's computer of a dilated run, on an interface of this process's network namespace. watched: wraps each
    rank's host library for the NIC. OSError."""
    from testbed.runtime.nodes.dilated_host import DilatedHost  # the simulation's parts, which no other run needs

    assert orders.dilation is not None
    first, factor, steering = model.adapters[0], orders.dilation.factor, orders.dilation.steering
    wire = _wire(orders, device, first)
    host = DilatedHost(wire, model.layout, model.profile, factor, _head(orders, first), steering)
    # NICs are new, and incarnations count as in the simulation.
    adapters = [
        replace(
            adapter.with_incarnation(adapter.incarnation + starts - 1, is_restarted=starts > 1),
            pages_apart=model.profile.pages_apart,
        )
        for adapter in model.adapters
    ]
    host.begin(model.ranks, adapters, orders.plug, watched)
    return wire, host


def _wire(orders: Orders, device: str, adapter: Adapter) -> FrameSocket:
    wire = socket_on(device, orders.ethertype, adapter.mtu, holding=adapter.routed)
    if orders.mtus:
        wire.count_oversized(orders.mtus)
    return wire


def _head(orders: Orders, adapter: Adapter) -> bytes:
    """Return source address and EtherType of a NIC's control frames; empty where the network has no back-pressure."""
    if not adapter.routed:
        return b""
    return adapter.address + orders.ethertype.to_bytes(2, "big")


class ByRank(dict[str, object]):
    """Results of the programs of a node's ranks, by rank: what "done" brings in a dilated run."""


class _RankAgent(NamedTuple):
    """A rank's firmware and host library. model: in a dilated run."""

    name: str
    number: int
    firmware: Firmware | NodesNic
    host: Host
    model: SimNode | None = None


class _Node:
    def __init__(
        self, orders: Orders, placement: NodePlacement, channel: Channel, watched: Callable[[Host], Host], starts: int
    ) -> None:
        """Enter the node, build its NIC and spawn its programs. watched: wraps the host library for the NIC. OSError."""
        enter(placement.node_context)
        # One by one: `update` would ask abstract classes what this is.
        for name, value in placement.node_context.environment.items():
            os.environ[name] = value
        if orders.queues.bound and placement.functions:
            os.sched_setaffinity(0, {orders.queues.processor(placement.function)})
        elif placement.cpu >= 0:
            os.sched_setaffinity(0, {placement.cpu})
        self._orders = orders
        self._channel = channel
        self._starts = starts
        self._dilated: DilatedHost | None = None
        self._shared: NodesNic | None = None
        self._wire: FrameSocket | NodesNic
        self._nic: InlineNic | DilatedHost | NodesNic
        self._port: VethPort | NodesNic
        self._driver: Driver | DilatedHost | HostDriver
        self._agents: list[_RankAgent] = []
        self._departed: list[Callable[[int], object]] = []
        self._programs: list[Task[object]] = []
        if placement.model is not None:
            self._wire, dilated = build_dilated_host(orders, placement.device, placement.model, starts, watched)
            self._nic = self._driver = self._dilated = dilated
            self._port = dilated.port
            self._agents = [
                _RankAgent(rank.name, rank.number, rank.agent.firmware, rank.agent.host, rank) for rank in dilated.ranks
            ]
        elif orders.shared is not None and placement.functions:
            self._shared = shared = NodesNic(orders, orders.shared, placement.device, placement.function)
            self._wire = self._nic = self._port = shared
            self._driver = shared.driver
            self._agents = [_RankAgent(placement.name, placement.adapter.number, shared, shared.host)]
            shared.attach(watched(shared.host))
        else:
            adapter = placement.adapter.with_incarnation(incarnation(), is_restarted=starts > 1)
            self._wire, nic, agent, self._driver = build_inline_nic(orders, placement.device, adapter)
            nic.attach(Agent(agent.firmware, watched(agent.host)))
            self._nic, self._port = nic, nic.port
            self._agents = [_RankAgent(placement.name, adapter.number, agent.firmware, agent.host)]
        self._loop = self._driver.loop
        self._loop.on_failure = self._report_failure
        for rank_agent in self._agents:
            self._spawn(rank_agent)
        self._begun = 0
        self._started = 0  # when the program was started, where the NIC's clock does not show 0 then

    def _spawn(self, rank: _RankAgent) -> None:
        """Spawn a rank's program."""
        orders = self._orders
        here = ProgramNode(
            rank.name, rank.number, orders.numbers, self._loop, rank.model, self._starts, departed=self._departed
        )
        if self._dilated is not None and rank.model is not None:
            here = replace(here, adopt=partial(self._dilated.adopt, rank.model))
        task = self._loop.spawn(orders.programs[rank.name](rank.host, here), "program")
        if self._dilated is not None:
            here.adopt(task)
        self._programs.append(task)

    def run(self) -> None:
        _HANDLERS.append(self._answer)
        self._channel.send("ready", os.getpid())
        message = self._channel.receive()
        if message is None:
            return
        started, listens = cast("tuple[int, bool]", message[1])
        if self._dilated is not None:
            self._dilated.go(started, again=self._starts > 1)
            self._driver.loop.watch(self._channel.fileno(), self._on_word)
        else:
            self._started = time.monotonic_ns()
            if listens:
                self._driver.loop.watch(self._channel.fileno(), self._on_word)
        self._begun = self._used()
        loop = self._loop
        for program in self._programs:
            program.add_callback(lambda _: loop.stop())
        left = len(self._programs)
        while left:
            self._run_loop()  # until a program has ended
            left = 0
            for program in self._programs:
                if program.done:
                    program.result()  # raises its error
                else:
                    left += 1
        if self._dilated is None:
            self._channel.send("done", self._programs[0].result())
        else:
            names = [agent.name for agent in self._agents]
            results = [program.result() for program in self._programs]
            self._channel.send("done", ByRank(zip(names, results, strict=True)))
        if isinstance(self._driver, Driver | HostDriver):
            self._driver.spin = 0
            if not listens:
                loop.watch(self._channel.fileno(), self._on_word)
        self._run_loop()
        self._channel.send("report", self._report())

    def _run_loop(self) -> None:
        try:
            self._loop.run()
        except FirmwareError as error:
            raise FirmwareError(error.what, error.when - self._started) from error

    def _report_failure(self, error: BaseException) -> None:
        """Report a failure before the program can catch it."""
        if isinstance(error, FirmwareError):
            with contextlib.suppress(ConnectionError):  # the starting process is gone
                self._channel.send("failed", (error.what, error.when - self._started))

    def _on_word(self, _now: int) -> None:
        """Process a word: a model's fault or a crashed rank while the program runs, "stop" when all programs have ended."""
        message = self._channel.receive()
        if message is None:  # the starting process is gone
            os._exit(1)
        if message[0] == "stop":
            self._driver.loop.stop()
        elif message[0] == "departed":
            for report in self._departed:
                report(cast(int, message[1]))
        elif self._dilated is not None:
            self._dilated.apply_fault(cast("ModelFault", message[1]))

    def _used(self) -> int:
        """Return the nanoseconds of processor time until now of this process, and of its NIC's agent if it has one."""
        self._wire.update_counts()
        return time.process_time_ns() + (self._shared.cpu if self._shared is not None else 0)

    def _report(self) -> Report:
        used = self._used() - self._begun
        counted = {agent.name: dict(agent.firmware.counted()) for agent in self._agents}
        port, dilated = self._port, self._dilated
        first = counted[self._agents[0].name]
        report = Report(first, self._wire.received, self._wire.dropped, port.unsent, port.down, used)
        if dilated is None:
            return report
        late, overrun = dilated.cable.lateness, dilated.dropped
        return replace(report, lateness=late, overrun=overrun, used=dilated.used(), ranks=counted)

    def _answer(self, _number: int, frame: FrameType | None) -> None:
        """Answer QUESTION, within the signal's handler: the interrupted code does not run meanwhile."""
        with contextlib.suppress(RuntimeError):  # a flush was interrupted
            sys.stdout.flush()
        lines = [self._state(frame)]
        for agent in self._agents:
            of = f"{agent.name}, " if len(self._agents) > 1 else ""
            lines += [f"{of}host: {sentence}" for sentence in agent.host.waiting()]
            lines += [f"{of}NIC: {sentence}" for sentence in agent.firmware.waiting()]
        if self._port.kept:
            lines.append(f"frames that wait in the NIC until the network takes them: {self._port.kept}")
        if self._shared is None:
            self._wire.update_counts()
        if self._wire.dropped:
            lines.append(f"frames dropped because they were not read in time: {self._wire.dropped}")
        if self._port.unsent:
            lines.append(f"frames that the kernel did not take, though the interface was up: {self._port.unsent}")
        lines += [f"NIC: {sentence}" for sentence in self._wire.oversized_sentences()]
        if len(lines) > _MAX_SENTENCES:
            lines[_MAX_SENTENCES:] = [f"and {len(lines) - _MAX_SENTENCES:,} more"]
        self._channel.send("waiting", [line[:_MAX_SENTENCE] for line in lines])

    def _state(self, innermost: FrameType | None) -> str:
        """Describe the process's present state. innermost: the frame that the signal interrupted."""
        program = next((program for program in self._programs if not program.done), self._programs[0])
        frames = self._loop.task_frames(innermost)
        polls = program.last_poll is not None and self._loop.now() - program.last_poll < _ANSWER
        if innermost is not None and self._nic.busy and not polls:  # each poll lets the NIC work
            line = program_line(frames)
            return f"the NIC is at work, at {format_frame(innermost)}" + (
                f", for the program at {line}" if line else ""
            )
        if program.done:
            return "the program has ended"
        if innermost is None or (not frames and (program.waits_for or program.last_poll is None)):
            if (
                program.last_poll is not None
                and self._dilated is None
                and self._loop.now() - program.last_poll < _ANSWER
            ):
                return f"the program polls, at {program_line(program.frames())}"
            return f"the program {program.state}"
        task = self._loop.current or program
        name = "the program" if task is program else f"task {task.name!r}"
        line = program_line(frames) or program_line(task.frames()) or format_frame(innermost)
        if task.last_poll is None:
            return f"{name} runs, at {line}"
        ago = self._loop.now() - task.last_poll
        return (
            f"{name} polls, at {line}" if ago < _POLLS else f"{name} runs, at {line}; it polled {ago / 1e9:.3g} s ago"
        )

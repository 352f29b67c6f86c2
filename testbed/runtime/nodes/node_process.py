"""Node process, from its fork to its end: it enters its node, opens its NIC, runs the program, and serves its peers until
it is stopped.

It sends on its channel: "ready" with its pid, when its NIC receives frames; "done" with the program's result; "failed" with
a traceback; "waiting" with sentences about what it waits for, after STATE_QUERY; and last "report" with a `NicReport`. It
receives: "go", "stop", "model" with a fault, and "departed" with a rank that has crashed.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from protocols.core.firmware import Adapter, Agent, Firmware, Host
from testbed.engine.tasks import Task
from testbed.engine.tracebacks import complete_traceback, format_frame, program_line
from testbed.errors import FirmwareError, merge_equal
from testbed.kernel import syscalls
from testbed.kernel.daemons import write_output_to
from testbed.kernel.frame_socket import FrameSocket
from testbed.kernel.setns import enter
from testbed.runtime.nodes.control_channel import Channel
from testbed.runtime.nodes.inline_driver import Driver
from testbed.runtime.nodes.inline_nic import InlineNic
from testbed.runtime.nodes.patience import Patience
from testbed.runtime.nodes.program_output import describe_failure
from testbed.runtime.nodes.run_orders import NodePlacement, ProgramNode, RunOrders
from testbed.runtime.nodes.run_progress import Progress
from testbed.runtime.nodes.veth_port import AskTimer, FlowControlPort, VethPort, incarnation, make_port, open_socket
from testbed.runtime.shared.attachment import HostDriver
from testbed.runtime.shared.node_agents import SharedNodeNic

if TYPE_CHECKING:
    from testbed.runtime.nodes.dilated_host import DilatedHost, Lateness
    from testbed.runtime.nodes.run_orders import ModelFault, NodeModel
    from testbed.sim.sim_node import SimNode

STATE_QUERY: Final = signal.SIGUSR1
"""Signal that asks a node process what it waits for. It interrupts even a program that never yields."""

_MAX_SENTENCES: Final = 50  # sentences of a reply; a program may wait for thousands of transfers
_MAX_SENTENCE_LENGTH: Final = 500  # characters
_HANDLERS: Final[list[Callable[[int, FrameType | None], None]]] = []
_POLLING_TIME: Final = 1_000_000_000  # ns after its last poll within which a program is reported as polling
_MAX_POLL_DURATION: Final = 100_000_000  # ns within which a poll returns from the NIC to the program


@dataclass(frozen=True, slots=True)
class NicReport:
    """Report of a NIC on a run. counted: the firmware's counters. received: number of frames received. dropped: frames lost
    inside the emulator because the process did not read them in time. unsent: frames that the kernel did not accept. down:
    frames for an interface that was down. cpu: nanoseconds of processor time since "go".

    In a dilated run only: lateness: lateness of the frames. overrun: number of frames for which the model's NIC had no
    buffer. usage: see `testbed.engine.server.usages_of`. ranks: counters of each rank; `counted` has those of the first.
    """

    counted: dict[str, int]
    received: int
    dropped: int
    unsent: int
    down: int
    cpu: int
    lateness: Lateness | None = None
    overrun: int = 0
    usage: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    ranks: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def lost(self) -> int:
        """Number of frames lost inside the emulator. A run with such losses is no measurement of the protocol."""
        return self.dropped + self.unsent


def on_state_query(number: int, frame: FrameType | None) -> None:
    """Handle STATE_QUERY. The handler is set before the fork, so that the signal does not end a node process that cannot
    answer yet; setting it in each node process would copy the pages of Python's enumerations."""
    for handler in _HANDLERS:
        handler(number, frame)


def run_node(orders: RunOrders, number: int, channel: Channel, log: str, progress: Progress, starts: int = 1) -> None:
    """Run the forked node process, which ends with its parent. This never returns. number: index of its placement. log: path
    of the file for its output. starts: how often the node has been started, including this time."""
    status, placement = 1, orders.placements[number]
    try:
        parent = os.getppid()
        syscalls.end_with_parent(signal.SIGKILL)
        if os.getppid() != parent:  # the parent ended before the signal was set
            os._exit(1)
        syscalls.name_process(f"node {placement.name}")
        write_output_to(log)
        faulthandler.enable(2)  # a crash writes its traceback to the log
        _Node(orders, placement, channel, partial(progress.wrap, number), starts).run()
        status = 0
    except BaseException as error:  # noqa: BLE001  the child must not return into the parent's code
        with contextlib.suppress(OSError):  # the disk is full, which may be the error itself
            sys.stderr.write(complete_traceback(error))
            sys.stdout.flush()
        if isinstance(error, FirmwareError):
            channel.send("failed", (error.what, error.when))
        else:
            channel.send("failed", describe_failure(error, Path(log).parent, placement.name))
        status = 0  # the error has been sent, so this exit is not reported as a death
    finally:
        try:
            sys.stdout.flush()
        finally:
            os._exit(status)


def build_inline_nic(orders: RunOrders, device: str, adapter: Adapter) -> tuple[FrameSocket, InlineNic, Agent, Driver]:
    """Build an inline NIC on an interface of this process's network namespace, and its driver. Raises OSError."""
    wire = _open_socket(orders, device, adapter)
    port = make_port(wire, _control_header(orders, adapter))
    nic = InlineNic(port)
    agent = orders.plug(adapter, nic)
    nic.attach(agent)
    # The orders of an attached process have no placements.
    processes = len(orders.placements) or len(orders.numbers)
    driver = Driver(
        wire, nic, agent.firmware, orders.spin, Patience.for_processes(processes), has_input_fifo=agent.has_input_fifo
    )
    if isinstance(port, FlowControlPort):
        AskTimer(driver.loop, port)
    return wire, nic, agent, driver


def build_dilated_host(
    orders: RunOrders, device: str, model: NodeModel, starts: int, wrap_host: Callable[[Host], Host]
) -> tuple[FrameSocket, DilatedHost]:
    """Build a node's computer of a dilated run, on an interface of this process's network namespace. starts: see `run_node`.
    wrap_host: wraps each rank's host library for the NIC. Raises OSError."""
    from testbed.runtime.nodes.dilated_host import DilatedHost  # imports the simulation, which no other run needs

    assert orders.dilation is not None
    first, factor, steering = model.adapters[0], orders.dilation.factor, orders.dilation.steering
    wire = _open_socket(orders, device, first)
    host = DilatedHost(wire, model.layout, model.profile, factor, _control_header(orders, first), steering)
    # Each start of a node has the next incarnation, as in the simulation.
    adapters = [
        replace(
            adapter.with_incarnation(adapter.incarnation + starts - 1, is_restarted=starts > 1),
            pages_apart=model.profile.pages_apart,
        )
        for adapter in model.adapters
    ]
    host.attach(model.ranks, adapters, orders.plug, wrap_host)
    return wire, host


def _open_socket(orders: RunOrders, device: str, adapter: Adapter) -> FrameSocket:
    wire = open_socket(device, orders.ethertype, adapter.mtu, flow_control=adapter.routed)
    if orders.mtus:
        wire.count_oversized(orders.mtus)
    return wire


def _control_header(orders: RunOrders, adapter: Adapter) -> bytes:
    """Return source address and EtherType of a NIC's control frames; empty in a network without back-pressure."""
    if not adapter.routed:
        return b""
    return adapter.address + orders.ethertype.to_bytes(2, "big")


class ByRank(dict[str, object]):
    """Results of the programs of a node's ranks, by rank name: the data of "done" in a dilated run."""


class _RankAgent(NamedTuple):
    """A rank's firmware and host library. model: in a dilated run."""

    name: str
    number: int
    firmware: Firmware | SharedNodeNic
    host: Host
    model: SimNode | None = None


class _Node:
    def __init__(
        self,
        orders: RunOrders,
        placement: NodePlacement,
        channel: Channel,
        wrap_host: Callable[[Host], Host],
        starts: int,
    ) -> None:
        """Enter the node, build its NIC and spawn its programs. wrap_host: wraps the host library for the NIC. Raises
        OSError, AttachError."""
        enter(placement.node_context)
        # Not with `update`, whose isinstance check of an abstract base class writes to memory pages shared with the parent.
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
        self._shared: SharedNodeNic | None = None
        self._wire: FrameSocket | SharedNodeNic
        self._nic: InlineNic | DilatedHost | SharedNodeNic
        self._port: VethPort | SharedNodeNic
        self._driver: Driver | DilatedHost | HostDriver
        self._agents: list[_RankAgent] = []
        self._crash_callbacks: list[Callable[[int, bool], object]] = []
        self._programs: list[Task[object]] = []
        if placement.model is not None:
            self._wire, dilated = build_dilated_host(orders, placement.device, placement.model, starts, wrap_host)
            self._nic = self._driver = self._dilated = dilated
            self._port = dilated.port
            self._agents = [
                _RankAgent(rank.name, rank.number, rank.agent.firmware, rank.agent.host, rank) for rank in dilated.ranks
            ]
        elif orders.shared is not None and placement.functions:
            self._shared = shared = SharedNodeNic(orders, orders.shared, placement.device, placement.function)
            self._wire = self._nic = self._port = shared
            self._driver = shared.driver
            self._agents = [_RankAgent(placement.name, placement.adapter.number, shared, shared.host)]
            shared.attach(wrap_host(shared.host))
        else:
            adapter = placement.adapter.with_incarnation(incarnation(), is_restarted=starts > 1)
            self._wire, nic, agent, self._driver = build_inline_nic(orders, placement.device, adapter)
            nic.attach(Agent(agent.firmware, wrap_host(agent.host)))
            self._nic, self._port = nic, nic.port
            self._agents = [_RankAgent(placement.name, adapter.number, agent.firmware, agent.host)]
        self._loop = self._driver.loop
        self._loop.on_failure = self._report_failure
        for rank_agent in self._agents:
            self._spawn(rank_agent)
        self._cpu_before = 0  # processor time at "go"
        self._started = 0  # monotonic time of "go"; 0 in a dilated run, since its clock starts at 0

    def _spawn(self, rank: _RankAgent) -> None:
        """Spawn a rank's program."""
        orders = self._orders
        node = ProgramNode(
            rank.name, rank.number, orders.numbers, self._loop, rank.model, self._starts,
            crash_callbacks=self._crash_callbacks,
        )  # fmt: skip
        if self._dilated is not None and rank.model is not None:
            node = replace(node, adopt=partial(self._dilated.adopt, rank.model))
        task = self._loop.spawn(orders.programs[rank.name](rank.host, node), "program")
        if self._dilated is not None:
            node.adopt(task)
        self._programs.append(task)

    def run(self) -> None:
        """Run the programs after "go" from the starting process, and serve the peers until "stop"."""
        _HANDLERS.append(self._send_state)
        self._channel.send("ready", os.getpid())
        message = self._channel.receive()
        if message is None:
            return
        started, listens = cast("tuple[int, bool]", message[1])
        if self._dilated is not None:
            self._dilated.start_clock(started, is_restarted=self._starts > 1)
            self._driver.loop.watch(self._channel.fileno(), self._on_message)
        else:
            self._started = time.monotonic_ns()
            if listens:
                self._driver.loop.watch(self._channel.fileno(), self._on_message)
        self._cpu_before = self._cpu_time()
        loop = self._loop
        for program in self._programs:
            program.add_callback(lambda _: loop.stop())
        running = len(self._programs)
        while running:
            self._run_loop()  # until a program has ended
            running = 0
            for program in self._programs:
                if program.done:
                    program.result()  # raises the program's error
                else:
                    running += 1
        if self._dilated is None:
            self._channel.send("done", self._programs[0].result())
        else:
            names = [agent.name for agent in self._agents]
            results = [program.result() for program in self._programs]
            self._channel.send("done", ByRank(zip(names, results, strict=True)))
        if isinstance(self._driver, Driver | HostDriver):
            self._driver.spin = 0
            if not listens:
                loop.watch(self._channel.fileno(), self._on_message)
        self._run_loop()
        self._channel.send("report", self._report())

    def _run_loop(self) -> None:
        try:
            self._loop.run()
        except FirmwareError as error:
            raise FirmwareError(error.what, error.when - self._started) from error

    def _report_failure(self, error: BaseException) -> None:
        """Send a failure of the firmware at once, since the program might catch the error."""
        if isinstance(error, FirmwareError):
            with contextlib.suppress(ConnectionError):  # the starting process is gone
                self._channel.send("failed", (error.what, error.when - self._started))

    def _on_message(self, _now: int) -> None:
        """Handle a message: "model" or "departed" while the program runs, "stop" when all programs have ended."""
        message = self._channel.receive()
        if message is None:  # the starting process is gone
            os._exit(1)
        if message[0] == "stop":
            self._driver.loop.stop()
        elif message[0] == "departed":
            for callback in self._crash_callbacks:
                callback(*cast("tuple[int, bool]", message[1]))
        elif self._dilated is not None:
            self._dilated.apply_fault(cast("ModelFault", message[1]))

    def _cpu_time(self) -> int:
        """Return the processor time used by this process, and by its NIC's agent if there is one, nanoseconds."""
        self._wire.update_counts()
        return time.process_time_ns() + (self._shared.cpu if self._shared is not None else 0)

    def _report(self) -> NicReport:
        cpu = self._cpu_time() - self._cpu_before
        counted = {agent.name: dict(agent.firmware.counter_values()) for agent in self._agents}
        port, dilated = self._port, self._dilated
        first = counted[self._agents[0].name]
        report = NicReport(first, self._wire.received, self._wire.dropped, port.unsent, port.down, cpu)
        if dilated is None:
            return report
        lateness, overrun = dilated.cable.lateness, dilated.dropped
        return replace(report, lateness=lateness, overrun=overrun, usage=dilated.usage(), ranks=counted)

    def _send_state(self, _number: int, frame: FrameType | None) -> None:
        """Reply to STATE_QUERY. As a signal handler, it interrupts the process's other code at any point."""
        with contextlib.suppress(RuntimeError):  # a flush was interrupted
            sys.stdout.flush()
        lines = [self._state(frame)]
        if self._port.frames_waiting:
            lines.append(f"frames that wait in the NIC until the network accepts them: {self._port.frames_waiting}")
        if self._shared is None:
            self._wire.update_counts()
        if self._wire.dropped:
            lines.append(f"frames dropped because they were not read in time: {self._wire.dropped}")
        if self._port.unsent:
            lines.append(f"frames that the kernel did not accept, though the interface was up: {self._port.unsent}")
        lines += [f"NIC: {sentence}" for sentence in self._wire.oversized_sentences()]
        for agent in self._agents:
            rank = f"{agent.name}, " if len(self._agents) > 1 else ""
            lines += [f"{rank}NIC: {sentence}" for sentence in agent.firmware.pending_work()]
            lines += [f"{rank}host: {sentence}" for sentence in agent.host.pending_work()]
        lines = merge_equal(lines)
        if len(lines) > _MAX_SENTENCES:
            lines[_MAX_SENTENCES:] = [f"and {len(lines) - _MAX_SENTENCES:,} more"]
        self._channel.send("waiting", [line[:_MAX_SENTENCE_LENGTH] for line in lines])

    def _state(self, innermost: FrameType | None) -> str:
        """Describe the process's present state. innermost: the stack frame that the signal interrupted."""
        program = next((program for program in self._programs if not program.done), self._programs[0])
        frames = self._loop.task_frames(innermost)
        is_in_poll = program.last_poll is not None and self._loop.now() - program.last_poll < _MAX_POLL_DURATION
        if innermost is not None and self._nic.busy and not is_in_poll:  # during a poll the NIC is busy only briefly
            line = program_line(frames)
            return f"the NIC is running, at {format_frame(innermost)}" + (
                f", for the program at {line}" if line else ""
            )
        if program.done:
            return "the program has ended"
        if innermost is None or (not frames and (program.waits_for or program.last_poll is None)):
            if is_in_poll and self._dilated is None:
                return f"the program polls, at {program_line(program.frames())}"
            return f"the program {program.state}"
        task = self._loop.current or program
        name = "the program" if task is program else f"task {task.name!r}"
        line = program_line(frames) or program_line(task.frames()) or format_frame(innermost)
        if task.last_poll is None:
            return f"{name} runs, at {line}"
        ago = self._loop.now() - task.last_poll
        return (
            f"{name} polls, at {line}"
            if ago < _POLLING_TIME
            else f"{name} runs, at {line}; it polled {ago / 1e9:.3g} s ago"
        )

"""Execution of a workload in the simulation."""

from __future__ import annotations

import contextlib
import gc
import io
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Final, TextIO, cast

from protocols.core.firmware import Host
from testbed.controller.runs.execution import Closable, Execution, Follow, Plan, TimeIsUpError, run_rank
from testbed.controller.runs.folders import Part
from testbed.controller.verdict.verdicts import Grade, Verdict
from testbed.engine.loop import Loop
from testbed.engine.server import usages_of
from testbed.engine.tasks import Task, Work
from testbed.engine.tracebacks import complete_traceback, program_traceback
from testbed.errors import FirmwareError, NotFoundError, TestbedError, reason_of
from testbed.fates.records import Record
from testbed.fates.rules import RuleSet
from testbed.fields import known_fields
from testbed.kernel.filesystem import read_text
from testbed.mpi.escape import Escape, never_free
from testbed.observe.recorded import FATES
from testbed.runtime.journal import BufferedLines
from testbed.runtime.nodes.node_run import ProgramError, last_output
from testbed.sim.sim_host import Prices
from testbed.sim.sim_node import SimNode
from testbed.sim.simulation import Simulation, StalledError
from testbed.spec.layout import Layout

SIMULATED: Final = Verdict(Grade.TRUSTED, (), ("a simulation: nothing is late in it, and lost only what shall be",))

_SECOND: Final = 1_000_000_000
_SETTLES: Final = 2 * _SECOND
"""Nanoseconds for which the network goes on after a program has raised: longer than any message travels, see
`promises`."""
_TICK: Final = 1.0
"""Seconds of real time between two progress reports."""

_LAST_WORDS: Final = 1.0
"""Seconds of real time that programs get to clean up when they are cancelled."""

_CAUGHT: Final = 0.2
"""Seconds of real time after which a program that still runs has caught the exception that was to end it."""


def simulate(layout: Layout, base: Path, plan: Plan, part: Part) -> Execution:
    """Run the workload on all nodes, on a virtual clock. base: directory of the files that impairments name.

    Raises ProgramError with the node's name and a traceback; StalledError where programs wait for ever, or for longer
    than plan.timeout of virtual time; TimeIsUpError after plan.timeout of real time.
    """
    names = plan.names
    rules = RuleSet(known_fields(), [link.name for link in layout.links]) if plan.beside else None
    if plan.history:
        part.history.mkdir(exist_ok=True)
    fates = BufferedLines(part.folder / FATES)

    def note(record: Record) -> None:
        fates.write_line(record.to_line())

    with contextlib.ExitStack() as stack:
        stack.callback(fates.close)
        folder, log = (part.folder, None) if plan.capture else (None, note)
        simulation = stack.enter_context(
            Simulation(
                layout,
                plan.protocol.plug,
                profile=Prices(plan.profile, plan.profiles, plan.protocol.steering),
                seed=plan.seed,
                rules=rules,
                files=_texts(layout, base),
                folder=folder,
                log=log,
            )
        )
        for beside in plan.beside:
            assert rules is not None
            beside.simulated(simulation, rules)
        output = _Output(simulation.loop, part.logs)
        clock = _CoreClock if plan.is_priced else _SimClock
        starts: Counter[str] = Counter()

        async def rank(endpoint: Host, node: SimNode) -> object:
            output.belongs(node.name)
            starts[node.name] += 1
            try:
                node_clock = clock(simulation, node, output)
                count, on_departures = starts[node.name], node.departure_callbacks.append
                return await run_rank(plan, part, names, node.number, endpoint, node_clock, count, on_departures)
            except (ProgramError, FirmwareError):  # raised by an awaited task, or by its NIC
                raise
            except (Exception, SystemExit) as error:  # any error of a program is reported with its place
                output.tell_of(error)
                raise ProgramError(f"{node.name}: {program_traceback(error)}") from error

        for name in names:
            simulation.spawn(name, rank)
        stack.callback(output.close)
        report_progress = _progress_reporter(simulation, plan.follow) if plan.follow is not None else None
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            try:
                _run(simulation, plan.timeout, output, report_progress)
            except (StalledError, TimeIsUpError) as error:
                output.close()
                message = "\n".join([str(error), *last_output(part.logs, names)])
                if isinstance(error, StalledError):
                    raise StalledError(message, error.when, error.final) from None
                raise TimeIsUpError(message) from None
            except ProgramError as error:
                if plan.history:
                    _settle(simulation, plan)
                    error.when = simulation.now()
                raise
        results = {
            name: task.result() for name in names for task in simulation.programs(name)
        }  # crashed programs have no result
        counted = {name: dict(node.agent.firmware.counted()) for name, node in simulation.nodes.items()}
        used = {name: usages_of(host.servers, host.name, simulation.now()) for name, host in simulation.hosts.items()}
        switches = {name: dict(counted) for name, counted in simulation.network.switches.items()}
    return Execution(results, counted, SIMULATED, used=used if plan.is_priced else {}, switches=switches)


def _settle(simulation: Simulation, plan: Plan) -> None:
    """Let the network come to rest after a program ended the run: checkers need to see which messages still arrive."""
    for beside in plan.beside:
        if isinstance(beside, Closable):
            beside.close()
    simulation.settle(_SETTLES)


def _progress_reporter(simulation: Simulation, follow: Follow) -> Callable[[], object]:
    """Return a function that reports the simulation's progress, to be called between two of its steps."""
    loop = simulation.loop

    def tell() -> None:
        counted = [node.agent.firmware.counted().get("messages_received") for node in simulation.nodes.values()]
        messages = sum(count for count in counted if count is not None)
        words = f", {messages:,} messages" if any(count is not None for count in counted) else ""
        follow(f"{loop.now() / _SECOND:.3f} s simulated, {loop.scheduled():,} events{words}")

    return tell


class _SimClock:
    """A node's `Clock`."""

    __slots__ = ("_loop", "_node", "_output", "_simulation", "compute", "now", "sleep")

    def __init__(self, simulation: Simulation, node: SimNode, output: _Output) -> None:
        self._simulation = simulation
        self._loop = simulation.loop
        self._node = node
        self._output = output
        self.now = node.now
        self.sleep = node.sleep
        self.compute = node.compute

    def cpu(self) -> int:
        return self._node.core.busy

    def spawn(self, work: Work[object], name: str) -> Task[object]:
        task = self._loop.spawn(self._output.of(self._node, work), f"{name} on {self._node.name}")
        self._node.tasks[task] = work
        self._simulation.adopt(task, self._node)
        return task


class _CoreClock(_SimClock):
    """A node's `Clock` where talking to a NIC costs host time: a program continues once its core has done what it asked
    for."""

    __slots__ = ()

    def __init__(self, simulation: Simulation, node: SimNode, output: _Output) -> None:
        super().__init__(simulation, node, output)
        self.now = node.reached
        self.sleep = self._sleep

    async def _sleep(self, nanoseconds: int) -> None:
        await self._loop.sleep_until(self._node.reached() + nanoseconds)


class _Output(io.TextIOBase):
    """Standard output of all programs: a task's output goes to its node's log."""

    def __init__(self, loop: Loop, logs: Path) -> None:
        self._loop = loop
        self._logs = logs
        self._nodes: dict[int, str] = {}  # a task's number -> its node
        self._files: dict[str, TextIO] = {}
        self._else = sys.stdout
        self.is_over = False
        """Whether programs are being cancelled."""

    def belongs(self, node: str) -> None:
        """Assign the output of the running task to a node."""
        if self._loop.current is not None:
            self._nodes[self._loop.current.number] = node

    async def _carry(self, node: SimNode, work: Work[object]) -> object:
        task = self._loop.current
        self.belongs(node.name)
        try:
            return await work
        except FirmwareError:
            raise
        except Exception as error:
            self.tell_of(error)
            raise ProgramError(f"{node.name}: {program_traceback(error)}") from error
        finally:
            if task is not None:
                node.tasks.pop(task, None)

    def of(self, node: SimNode, work: Work[object]) -> Work[object]:
        return cast("Work[object]", self._carry(node, work))

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        task = self._loop.current
        node = self._nodes.get(task.number) if task is not None else None
        if node is None:
            return self._else.write(text)
        if node not in self._files:
            self._files[node] = (self._logs / f"{node}.log").open("a", encoding="utf-8", errors="replace")
        return self._files[node].write(text)

    def tell_of(self, error: BaseException) -> None:
        """Write a program's traceback to its log, unless it is being cancelled."""
        if not self.is_over:
            self.write(complete_traceback(error))

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()


class _TimeIsUp(BaseException):
    pass


def _run(simulation: Simulation, seconds: float, output: _Output, report_progress: Callable[[], object] | None) -> None:
    """Run the programs for at most `seconds` of virtual time and of real time: a program that computes for ever lets no
    virtual time pass. told: called every _TICK seconds. Programs that do not end are cancelled, and stay so whatever
    they catch.

    Raises StalledError, TimeIsUpError. Only the main thread can be interrupted by a timer; in others real time is
    unlimited.
    """
    end = time.monotonic() + seconds
    failed: list[BaseException] = []
    place = ""

    def work() -> None:
        try:
            simulation.run(timeout=round(seconds * _SECOND))
        except BaseException as error:
            failed.append(error)
            output.is_over = True
            if is_main:
                signal.setitimer(signal.ITIMER_REAL, _LAST_WORDS)
            with contextlib.suppress(TestbedError):  # errors of cleaning up; the reason of the cancellation is raised
                simulation.loop.close()
            raise

    def on_alarm(_number: int, frame: FrameType | None) -> None:
        nonlocal place
        if not failed and report_progress is not None and (left := end - time.monotonic()) > 0:
            report_progress()
            signal.setitimer(signal.ITIMER_REAL, min(_TICK, left))
            return
        signal.setitimer(signal.ITIMER_REAL, _CAUGHT)
        if not place:
            place = simulation.stall_report(f"the simulation has not ended within {seconds:g} s on this machine", frame)
            raise _TimeIsUp
        never_free(simulation.loop.abandon())
        escape.leave(_TimeIsUp())

    is_main = threading.current_thread() is threading.main_thread()
    if not is_main:
        work()
        return
    escape = Escape(work)
    usual = signal.signal(signal.SIGALRM, on_alarm)
    was = gc.get_threshold(), sys.modules["__main__"], sys.argv  # which abandoned programs do not restore
    signal.setitimer(signal.ITIMER_REAL, seconds if report_progress is None else min(_TICK, seconds))
    try:
        escape.run()
    except _TimeIsUp:
        if failed and not isinstance(failed[0], _TimeIsUp):
            raise failed[0] from None
        if simulation.loop.failure is not None:  # the program caught the timeout and went on
            raise simulation.loop.failure from None
        raise TimeIsUpError(f"{place}\n--timeout gives it longer") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, usual)
        gc.set_threshold(*was[0])
        sys.modules["__main__"], sys.argv = was[1:]
        if failed:  # otherwise all have ended
            never_free([simulation.loop.unclosed, simulation.loop.abandon()])


def _texts(layout: Layout, base: Path) -> Mapping[str, str]:
    """Read the files that impairments name, by those names."""
    texts = {}
    for link in layout.links:
        for side in (link.forward, link.backward):
            for path in filter(None, (side.jitter_file, side.rate_trace)):
                try:
                    texts[path] = read_text(base / path)
                except FileNotFoundError as error:
                    raise NotFoundError(reason_of(error)) from error
                except (OSError, UnicodeDecodeError) as error:
                    reason = reason_of(error) if isinstance(error, OSError) else f"{base / path} is not text"
                    raise TestbedError(reason) from error
    return texts

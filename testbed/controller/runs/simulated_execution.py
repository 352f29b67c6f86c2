"""Execution of a workload in the simulation."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import io
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn, Self, TextIO, cast

from protocols.core.firmware import Host
from testbed.controller.runs.execution import Closable, Execution, Plan, ProgressCallback, RunTimeoutError, run_rank
from testbed.controller.runs.folders import RepetitionFiles
from testbed.controller.verdict.verdicts import Grade, Verdict
from testbed.engine.coroutines import until
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
from testbed.runtime.nodes.node_run import ProgramError
from testbed.runtime.nodes.program_output import describe_failure, last_output
from testbed.sim.sim_host import Prices
from testbed.sim.sim_node import SimNode
from testbed.sim.simulation import Simulation, StalledError
from testbed.spec.layout import Layout

SIMULATED: Final = Verdict(Grade.TRUSTED, (), ("a simulation: no frame is late, and only configured losses occur",))

_SECOND: Final = 1_000_000_000
_SETTLE_TIME: Final = 2 * _SECOND
"""Virtual nanoseconds for which the simulation continues after a program has raised, so that messages in flight arrive.
Checkers do not see those that take longer."""

_NO_PROGRESS_ADVICE: Final = (
    "virtual time has not advanced for {:.1f} s: without a profile, the code of programs takes none, and frames take none "
    "on links without a delay or rate; so a loop that waits for a time of MPI.Wtime() may never end\n"
)
_PROGRESS_INTERVAL: Final = 1.0
"""Seconds of real time between two progress reports."""

_CLEANUP_TIMEOUT: Final = 1.0
"""Seconds of real time that programs have to clean up when they are cancelled."""

_ABANDON_TIMEOUT: Final = 0.2
"""Seconds of real time after which a program that still runs has caught the exception that cancels it, and is abandoned."""

_MIN_COLLECTED_MEMORY: Final = 64 << 20
"""Growth of the process's resident memory during a run, in bytes, above which garbage is collected after the run. The
collection takes a fraction of such a run's time."""


def simulate(layout: Layout, base: Path, plan: Plan, files: RepetitionFiles) -> Execution:
    """Run the workload on all nodes, on a virtual clock. base: directory of the files that impairments name.

    Raises ProgramError with the node's name and a traceback; FirmwareError; StalledError if no event is pending, or
    plan.timeout of virtual time has passed, before all programs have ended; RunTimeoutError after plan.timeout of real
    time, in the main thread only; NotFoundError or TestbedError for a file of an impairment.
    """
    with _collect_large_garbage():
        return _simulate(layout, base, plan, files)


@contextlib.contextmanager
def _collect_large_garbage() -> Iterator[None]:
    """Collect garbage at the end if the run has left much memory. The objects of a simulation refer to each other, so that
    only the collector frees them, by default after many more runs: large runs in one process would fill the memory."""
    before = _resident_memory()
    try:
        yield
    finally:
        if _resident_memory() - before > _MIN_COLLECTED_MEMORY:
            gc.collect()


def _resident_memory() -> int:
    """Return the bytes of this process in memory."""
    return int(read_text(Path("/proc/self/statm")).split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _simulate(layout: Layout, base: Path, plan: Plan, files: RepetitionFiles) -> Execution:
    names = plan.names
    rules = RuleSet(known_fields(), [link.name for link in layout.links]) if plan.companions else None
    if plan.history:
        files.history.mkdir(exist_ok=True)
    fates = BufferedLines(files.folder / FATES)

    def log_fate(record: Record) -> None:
        fates.write_line(record.to_line())

    with contextlib.ExitStack() as stack:
        stack.callback(fates.close)
        folder, log = (files.folder, None) if plan.capture else (None, log_fate)
        simulation = stack.enter_context(
            Simulation(
                layout,
                plan.protocol.plug,
                profile=Prices(plan.profile, plan.profiles, plan.protocol.steering),
                rules=rules,
                files=_read_files(layout, base),
                folder=folder,
                log=log,
            )
        )
        for companion in plan.companions:
            assert rules is not None
            companion.simulated(simulation, rules)
        interruption = stack.enter_context(_Interruption())
        output = _Output(simulation.loop, files.logs, interruption)
        clock = _CoreClock if plan.is_priced else _SimClock
        starts: Counter[str] = Counter()

        async def rank(host: Host, node: SimNode) -> object:
            output.assign_task(node.name)
            starts[node.name] += 1
            try:
                node_clock = clock(simulation, node, output)
                count, register = starts[node.name], node.crash_callbacks.append
                return await run_rank(plan, files, names, node.number, host, node_clock, count, register)
            except (ProgramError, FirmwareError):  # raised by an awaited task or the NIC
                raise
            except (Exception, SystemExit, KeyboardInterrupt) as error:
                interruption.check(error)
                output.write_traceback(error)
                raise ProgramError(f"{node.name}: {describe_failure(error, files.logs, node.name)}") from error

        for name in names:
            simulation.spawn(name, rank)
        stack.callback(output.close)
        report_progress = _progress_reporter(simulation, plan.on_progress) if plan.on_progress is not None else None
        if not faulthandler.is_enabled():
            stack.callback(faulthandler.disable)
            faulthandler.enable(2)  # a crash of a program ends this process: show the line
        with (
            contextlib.redirect_stdout(_Stream(output, sys.stdout)),
            contextlib.redirect_stderr(_Stream(output, sys.stderr)),
            _contain_exits(simulation.loop),
        ):
            try:
                _run(simulation, plan.timeout, output, report_progress)
            except (StalledError, RunTimeoutError) as error:
                output.close()
                message = "\n".join([str(error), *last_output(files.logs, names)])
                if isinstance(error, StalledError):
                    raise StalledError(message, error.when, error.final) from None
                raise RunTimeoutError(message) from None
            except ProgramError as error:
                if plan.history:
                    _settle(simulation, plan)
                    error.when = simulation.now()
                raise
        results = {
            name: task.result() for name in names for task in simulation.programs(name)
        }  # crashed programs have no result
        counters = {name: dict(node.agent.firmware.counter_values()) for name, node in simulation.nodes.items()}
        usage = {name: usages_of(host.servers, host.name, simulation.now()) for name, host in simulation.hosts.items()}
        switches = {name: dict(counts) for name, counts in simulation.network.switch_counters.items()}
        verdict = replace(SIMULATED, notes=(*SIMULATED.notes, *_full_queues(simulation)))
    return Execution(results, counters, verdict, usage=usage if plan.is_priced else {}, switches=switches)


class _Interruption:
    """Distinguish Ctrl-C during the block from a KeyboardInterrupt that a program raises itself."""

    __slots__ = ("_handler", "_was_received")

    def __init__(self) -> None:
        self._was_received = False
        self._handler = signal.getsignal(signal.SIGINT)

    def __enter__(self) -> Self:
        if self._can_be_noted():
            signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self._can_be_noted():
            signal.signal(signal.SIGINT, self._handler)

    def check(self, error: BaseException) -> None:
        """Raise an error again if Ctrl-C has caused it."""
        if self._was_received and isinstance(error, KeyboardInterrupt):
            raise error

    def _can_be_noted(self) -> bool:
        """Whether Ctrl-C can be noted: only the main thread handles signals, and without a Python handler they raise
        nothing."""
        return threading.current_thread() is threading.main_thread() and callable(self._handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._was_received = True
        assert callable(self._handler)
        self._handler(number, frame)


@contextlib.contextmanager
def _contain_exits(loop: Loop) -> Iterator[None]:
    """Let `os._exit` in a program end that program with an error, as in namespaces, and not this process."""
    exit_process, process = os._exit, os.getpid()

    def exit_program(status: int) -> NoReturn:
        if os.getpid() != process or loop.current is None:  # in a child process, or before any program has begun
            exit_process(status)
        raise SystemExit(f"os._exit({status})")

    os._exit = exit_program
    try:
        yield
    finally:
        os._exit = exit_process


def _full_queues(simulation: Simulation) -> list[str]:
    """Return a note on the frames that were dropped because the queue of a link was full; empty if there were none."""
    directions = simulation.network.link_directions.items()
    lost = {f"{link} {name}": direction.overflowed for (link, name), direction in directions if direction.overflowed}
    if not lost:
        return []
    most = max(lost, key=lambda name: lost[name])
    return [
        f"{sum(lost.values()):,} frames were dropped because the queue of their link was full; the most ({lost[most]:,}) on "
        f"{most}"
    ]


def _settle(simulation: Simulation, plan: Plan) -> None:
    """Close the companions, and continue the simulation without programs for _SETTLE_TIME, so that messages in flight arrive
    and checkers see them."""
    for companion in plan.companions:
        if isinstance(companion, Closable):
            companion.close()
    simulation.settle(_SETTLE_TIME)


def _progress_reporter(simulation: Simulation, on_progress: ProgressCallback) -> Callable[[], object]:
    """Return a function that reports the simulation's progress. A signal handler may call it at any time: it only reads the
    simulation's state, and `on_progress` writes to the original standard output and error."""
    loop, stdout, stderr = simulation.loop, sys.stdout, sys.stderr

    def report() -> None:
        counts = [node.agent.firmware.counter_values().get("messages_received") for node in simulation.nodes.values()]
        total = sum(count for count in counts if count is not None)
        messages = f", {total:,} messages" if any(count is not None for count in counts) else ""
        with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
            on_progress(f"{loop.now() / _SECOND:.3f} s simulated, {loop.scheduled_count():,} events{messages}")

    return report


class _SimClock:
    """The `Clock` of one rank's programs, whose calls of the host library take no time."""

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
        task = self._loop.spawn(self._output.wrap(self._node, work), f"{name} on {self._node.name}")
        self._node.tasks[task] = work
        self._simulation.adopt(task, self._node)
        return task


class _CoreClock(_SimClock):
    """The `Clock` of one rank's programs in a run with costs: a call of the host library occupies the rank's core, and `now`
    and `sleep` include the time until the core has posted the requests made so far."""

    __slots__ = ()

    def __init__(self, simulation: Simulation, node: SimNode, output: _Output) -> None:
        super().__init__(simulation, node, output)
        self.now = node.program_time
        self.sleep = self._sleep

    async def _sleep(self, nanoseconds: int) -> None:
        await until(self._node.program_time() + nanoseconds)


class _Output:
    """Standard output and error of all programs, by rank: each rank's text goes to its log."""

    def __init__(self, loop: Loop, logs: Path, interruption: _Interruption) -> None:
        self._loop = loop
        self._interruption = interruption
        self._logs = logs
        self._nodes: dict[int, str] = {}  # by task number
        self._files: dict[str, TextIO] = {}
        self.is_cancelling = False
        """Whether programs are being cancelled."""

    def assign_task(self, node: str) -> None:
        """Assign the output of the running task to a rank. node: name of the rank."""
        if self._loop.current is not None:
            self._nodes[self._loop.current.number] = node

    async def _run_assigned(self, node: SimNode, work: Work[object]) -> object:
        task = self._loop.current
        self.assign_task(node.name)
        try:
            return await work
        except (ProgramError, FirmwareError):  # raised by an awaited task or the NIC
            raise
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            self._interruption.check(error)
            self.write_traceback(error)
            raise ProgramError(f"{node.name}: {program_traceback(error)}") from error
        finally:
            if task is not None:
                node.tasks.pop(task, None)

    def wrap(self, node: SimNode, work: Work[object]) -> Work[object]:
        """Return the work of a task with its output assigned to a rank."""
        return cast("Work[object]", self._run_assigned(node, work))

    def log(self) -> TextIO | None:
        """Return the log of the rank whose task runs; None if no task of a rank runs."""
        task = self._loop.current
        node = self._nodes.get(task.number) if task is not None and self._loop.in_task else None
        if node is None:
            return None
        if node not in self._files:
            self._files[node] = (self._logs / f"{node}.log").open("a", encoding="utf-8", errors="replace")
        return self._files[node]

    def write_traceback(self, error: BaseException) -> None:
        """Write the traceback of the running program to its log, unless programs are being cancelled."""
        log = None if self.is_cancelling else self.log()
        if log is not None:
            log.write(complete_traceback(error))
            log.flush()

    def flush(self) -> None:
        for file in self._files.values():
            file.flush()

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()


class _Stream(io.TextIOBase):
    """Standard output or error during a simulation: text of a rank's task goes to its log, other text, such as a
    companion's, to the original stream."""

    def __init__(self, output: _Output, original: TextIO) -> None:
        self._output = output
        self._original = original

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        return (self._output.log() or self._original).write(text)

    def flush(self) -> None:
        self._output.flush()
        self._original.flush()


class _TimeoutReached(BaseException):
    """Raised in a program that runs when the timeout is reached."""


def _run(simulation: Simulation, seconds: float, output: _Output, report_progress: Callable[[], object] | None) -> None:
    """Run the programs for at most `seconds` of virtual time and of real time; a program that computes forever lets no
    virtual time pass. report_progress: called every _PROGRESS_INTERVAL. Programs that do not end are cancelled, and
    abandoned if they catch the cancellation.

    Raises StalledError, RunTimeoutError, FirmwareError, and the errors of programs. A timer can interrupt only the main
    thread; in other threads real time is unlimited, and no progress is reported.
    """
    end = time.monotonic() + seconds
    failed: list[BaseException] = []
    stall_report, last_time, since, advice = "", -1, end, ""

    def work() -> None:
        try:
            if is_main:  # armed here, so that even a short timeout is raised in the work
                signal.setitimer(signal.ITIMER_REAL, min(_PROGRESS_INTERVAL, seconds / 2))
            simulation.run(timeout=round(seconds * _SECOND))
        except BaseException as error:
            failed.append(error)
            output.is_cancelling = True
            if is_main:
                signal.setitimer(signal.ITIMER_REAL, _CLEANUP_TIMEOUT)
            with contextlib.suppress(TestbedError):  # an error of the cleanup; the reason of the cancellation is raised
                simulation.loop.close()
            for node in simulation.nodes.values():
                node.close_unstarted()
            raise

    def on_alarm(_number: int, frame: FrameType | None) -> None:
        nonlocal stall_report, last_time, since, advice
        if not failed and (remaining := end - time.monotonic()) > 0:
            if simulation.now() != last_time:
                last_time, since = simulation.now(), time.monotonic()
            if report_progress is not None:
                report_progress()
            signal.setitimer(signal.ITIMER_REAL, min(_PROGRESS_INTERVAL, remaining))
            return
        signal.setitimer(signal.ITIMER_REAL, _ABANDON_TIMEOUT)
        if not stall_report:
            stalled = time.monotonic() - since if simulation.now() == last_time else 0.0
            if stalled >= seconds / 4:
                advice = _NO_PROGRESS_ADVICE.format(stalled)
            stall_report = simulation.stall_report(
                f"the simulation has not ended within {seconds:g} s of real time", frame
            )
            raise _TimeoutReached
        never_free(simulation.loop.abandon())
        escape.leave(_TimeoutReached())

    is_main = threading.current_thread() is threading.main_thread()
    if not is_main:
        work()
        return
    escape = Escape(work)
    previous_handler = signal.signal(signal.SIGALRM, on_alarm)
    saved = gc.get_threshold(), sys.modules["__main__"], sys.argv  # abandoned programs do not restore them
    directory = os.open(".", os.O_PATH)  # programs may change it
    try:
        escape.run()
    except _TimeoutReached:
        if failed and not isinstance(failed[0], _TimeoutReached):
            raise failed[0] from None
        if simulation.loop.failure is not None:  # firmware failed, and the program that called it did not return
            raise simulation.loop.failure from None
        raise RunTimeoutError(f"{stall_report}\n{advice}--timeout allows more time") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous_handler)
        gc.set_threshold(*saved[0])
        sys.modules["__main__"], sys.argv = saved[1:]
        os.fchdir(directory)
        os.close(directory)
        if failed:  # otherwise all programs have ended, or `on_alarm` has abandoned them
            never_free([simulation.loop.unclosed, simulation.loop.abandon()])


def _read_files(layout: Layout, base: Path) -> Mapping[str, str]:
    """Read the files that impairments name; return their text by the name in the description. Raises NotFoundError for a
    missing file, TestbedError for one that cannot be read or is not text."""
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

"""A workload in the simulation."""

from __future__ import annotations

import contextlib
import io
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final, TextIO, cast

from testbed.controller.executing import Execution, Follow, Plan, TimeIsUpError, names_of, one_rank
from testbed.controller.folders import Part
from testbed.controller.verdicts import Grade, Verdict
from testbed.engine.loop import Loop
from testbed.errors import NotFoundError, TestbedError, reason_of
from testbed.fields import known_fields
from testbed.observe.recorded import FATES
from testbed.runtime.blaming import blamed, whole
from testbed.runtime.journal import Lines
from testbed.runtime.nodes.run import ProgramError
from testbed.sim.node import SimNode
from testbed.sim.simulation import Simulation
from testbed.spec.layout import Layout
from testbed.wire.rules import RuleSet

if TYPE_CHECKING:
    from protocols.core.firmware import Host
    from testbed.engine.tasks import Task, Work
    from testbed.wire.fates import Record

SIMULATED: Final = Verdict(Grade.TRUSTED, (), ("a simulation: nothing is late in it, and lost only what shall be",))

_SECOND: Final = 1_000_000_000
_TICK: Final = 1.0
"""Seconds on this machine between two words on how far a simulation is."""


def simulate(layout: Layout, base: Path, plan: Plan, part: Part) -> Execution:
    """Run the workload on all nodes, on a virtual clock. base: where the files are that impairments name.

    Raises ProgramError with the node's name and a traceback; StalledError where programs wait for ever, or for longer than
    plan.timeout of virtual time; TimeIsUpError when it has taken so long on this machine.
    """
    names = names_of(layout, plan.chosen, plan.protocol)
    rules = RuleSet(known_fields(), [link.name for link in layout.links]) if plan.beside else None
    if plan.history:
        part.history.mkdir(exist_ok=True)
    fates = Lines(part.folder / FATES)

    def note(record: Record) -> None:
        fates.put(record.to_line())

    with contextlib.ExitStack() as stack:
        stack.callback(fates.close)
        folder, log = (part.folder, None) if plan.capture else (None, note)
        simulation = stack.enter_context(
            Simulation(
                layout,
                plan.protocol.plug,
                profile=plan.profile,
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
        clock = _SimClock if plan.profile.is_free else _CoreClock
        starts: Counter[str] = Counter()

        async def rank(endpoint: Host, node: SimNode) -> object:
            output.belongs(node.name)
            starts[node.name] += 1
            try:
                return await one_rank(
                    plan,
                    part,
                    names,
                    node.number,
                    endpoint,
                    clock(simulation.loop, node, output),
                    starts[node.name],
                )
            except ProgramError:  # of a task that it has awaited
                raise
            except (Exception, SystemExit) as error:  # whatever a program raises; told with its place
                output.write(whole(error))
                raise ProgramError(f"{node.name}: {blamed(error)}") from error

        for name in names:
            simulation.spawn(name, rank)
        stack.callback(output.close)
        told = _told(simulation, plan.follow) if plan.follow is not None else None
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output), _within(plan.timeout, told):
            simulation.run(timeout=round(plan.timeout * _SECOND))
        results = {name: task.result() for name in names for task in simulation.programs(name)}  # none of who crashed
        counted = {name: dict(node.agent.firmware.counted()) for name, node in simulation.nodes.items()}
        used = {name: _used(node, simulation.now()) for name, node in simulation.nodes.items()}
        switches = {name: dict(one.counters) for name, one in simulation.network.crossbars.items()}
    return Execution(results, counted, SIMULATED, used=used if not plan.profile.is_free else {}, switches=switches)


def _used(node: SimNode, now: int) -> Mapping[str, Mapping[str, float]]:
    """See `Execution`."""
    return {
        one.name.removesuffix(f" of {node.name}"): {
            "jobs": one.jobs, "busy_ns": one.busy, "waited_ns": one.waited, "share": one.utilisation(now),
        }
        for one in (node.core, *node.nic.servers)
    }  # fmt: skip


def _told(simulation: Simulation, follow: Follow) -> Callable[[], object]:
    """What tells how far the simulation is, between any two of its steps."""
    loop = simulation.loop

    def tell() -> None:
        counted = [node.agent.firmware.counted().get("messages_received") for node in simulation.nodes.values()]
        messages = sum(count for count in counted if count is not None)
        words = f", {messages:,} messages" if any(count is not None for count in counted) else ""
        # A number of the sequence is used up: what follows is in the same order without it.
        follow(f"{loop.now() / _SECOND:.3f} s simulated, {loop.next_sequence():,} events{words}")

    return tell


class _SimClock:
    """A node's `Clock`."""

    __slots__ = ("_loop", "_node", "_output", "compute", "now", "sleep")

    def __init__(self, loop: Loop, node: SimNode, output: _Output) -> None:
        self._loop = loop
        self._node = node
        self._output = output
        self.now = node.now
        self.sleep = node.sleep
        self.compute = node.compute

    def cpu(self) -> int:
        return self._node.core.busy

    def spawn(self, work: Work[object], name: str) -> Task[object]:
        return self._loop.spawn(self._output.of(self._node.name, work), f"{name} on {self._node.name}")


class _CoreClock(_SimClock):
    """The same where talking to a NIC costs its host time: what a program does next it does when its core has done what it
    asked for before."""

    __slots__ = ()

    def __init__(self, loop: Loop, node: SimNode, output: _Output) -> None:
        super().__init__(loop, node, output)
        self.now = node.reached
        self.sleep = self._sleep

    async def _sleep(self, nanoseconds: int) -> None:
        await self._loop.sleep_until(self._node.reached() + nanoseconds)


class _Output(io.TextIOBase):
    """Standard output of all programs: what a task prints goes to its node's log."""

    def __init__(self, loop: Loop, logs: Path) -> None:
        self._loop = loop
        self._logs = logs
        self._nodes: dict[int, str] = {}  # a task's number -> its node
        self._files: dict[str, TextIO] = {}
        self._else = sys.stdout

    def belongs(self, node: str) -> None:
        """What the task prints that runs now is this node's."""
        if self._loop.current is not None:
            self._nodes[self._loop.current.number] = node

    async def _carry(self, node: str, work: Work[object]) -> object:
        self.belongs(node)
        try:
            return await work
        except Exception as error:
            self.write(whole(error))
            raise ProgramError(f"{node}: {blamed(error)}") from error

    def of(self, node: str, work: Work[object]) -> Work[object]:
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

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()


class _TimeIsUp(BaseException):
    pass


@contextlib.contextmanager
def _within(seconds: float, told: Callable[[], object] | None = None) -> Iterator[None]:
    """Break off what has not ended after so long on this machine: a program that computes for ever lets no virtual time
    pass. told: called every second until then. Only the main thread can be interrupted so; in others nothing watches."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    place = ""

    def ring(_number: int, frame: FrameType | None) -> None:
        nonlocal place
        if told is not None and (left := end - time.monotonic()) > 0:
            told()
            signal.setitimer(signal.ITIMER_REAL, min(_TICK, left))
            return
        if frame is not None:
            place = f", at {frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
        raise _TimeIsUp

    usual = signal.signal(signal.SIGALRM, ring)
    end = time.monotonic() + seconds
    signal.setitimer(signal.ITIMER_REAL, seconds if told is None else min(_TICK, seconds))
    try:
        yield
    except _TimeIsUp:
        raise TimeIsUpError(
            f"the simulation has not ended within {seconds:g} s on this machine{place}; --timeout gives it longer"
        ) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, usual)


def _texts(layout: Layout, base: Path) -> Mapping[str, str]:
    """The files that impairments name, by the names that these give them."""
    found = {}
    for link in layout.links:
        for side in (link.forward, link.backward):
            for path in filter(None, (side.jitter_file, side.rate_trace)):
                try:
                    found[path] = (base / path).read_text()
                except FileNotFoundError as error:
                    raise NotFoundError(reason_of(error)) from error
                except (OSError, UnicodeDecodeError) as error:
                    reason = reason_of(error) if isinstance(error, OSError) else f"{base / path} is not text"
                    raise TestbedError(reason) from error
    return found

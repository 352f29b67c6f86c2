"""Exhaustive fate schedules: all combinations of fates of the first six transmissions between two nodes, then a perfect
network.

A transmission is a frame, also an acknowledgement, that arrives at the end of the link, in either direction. It is passed,
dropped, delivered twice, or held until after the next one of its direction. This gives 4^6 = 4,096 schedules for an exchange
of messages. Schedules that differ only in fates after the end of the exchange are equivalent, and one of them is executed.
Each must deliver every message exactly once, in order and complete, notify both hosts, leave no resource or timer, and end
within a bounded time after the last fault: a small scope that is searched completely (after TigerBeetle's generators).

A `Subject` is a protocol with its exchanges.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Final, NamedTuple, Protocol

from protocols.core.firmware import Plug
from testbed.controller.conformance.network_faults import SECOND
from testbed.controller.conformance.trials import Violation, errors_as_violations
from testbed.fabric.interface import Receive
from testbed.sim.simulation import Simulation
from testbed.spec.layout import DirectionName, Layout
from testbed.spec.model import Description
from testbed.spec.resolver import resolve

DEPTH: Final = 6
"""Default number of transmissions whose fates are chosen."""
FATES: Final = {"p": "passed", "d": "dropped", "t": "delivered twice", "h": "held behind the next"}
_LETTERS: Final = "".join(FATES)
_PASSED: Final = _LETTERS[0]


class Stage(Protocol):
    """Exchange between two nodes by one protocol. plug: plug of the NICs. bound: maximum duration after the last fault,
    nanoseconds."""

    plug: Plug
    bound: int

    def begin(self, simulation: Simulation) -> None:
        """Start the programs."""

    def run(self, simulation: Simulation) -> None:
        """Run the simulation until the programs have ended. Raises Violation after a timeout, or if a check fails."""

    def check(self, simulation: Simulation) -> None:
        """Check the exchange when no frame is in flight. Raises Violation for errors and pending operations."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A protocol with its exchanges. name: name of its entry point. stages: exchanges, by name. depth: number of
    transmissions whose fates are chosen. command: command that repeats a schedule, as a %-format for the exchange and the
    fates. rest: virtual time in which the network becomes idle after an exchange."""

    name: str
    stages: Mapping[str, Callable[[], Stage]]
    command: str
    depth: int = DEPTH
    rest: int = SECOND

    def replay(self, exchange: str, fates: str) -> str:
        """Return the command that runs a schedule again."""
        return self.command % (exchange, fates)


@cache
def _layout() -> Layout:
    """Return a layout of two nodes. Transmission times are long enough for acknowledgements to arrive between data
    frames."""
    return resolve(Description.back_to_back(delay="2us", rate="1gbit"))


@dataclass(frozen=True, slots=True)
class Transmission:
    """A transmission. when: time of its arrival, nanoseconds. fate: a letter of FATES. size: bytes."""

    when: int
    direction: DirectionName
    fate: str
    size: int

    def __str__(self) -> str:
        arrow = "->" if self.direction == "forward" else "<-"
        return f"{self.when:>13,} ns  n1 {arrow} n2  {self.size:>5} bytes  {FATES[self.fate]}"


@dataclass(slots=True)
class Gate:
    """Receivers at both ends of the link that apply the fates to transmissions; later transmissions pass."""

    fates: str
    transmissions: list[Transmission] = field(default_factory=list)
    _held: dict[DirectionName, bytes] = field(default_factory=dict)
    _receive: dict[DirectionName, Receive] = field(default_factory=dict)

    def install(self, simulation: Simulation) -> None:
        """Insert the gate between the link and the NICs of a simulation."""
        for (_, direction), link_direction in simulation.network.link_directions.items():
            self.set_receiver(direction, link_direction.receive)
            link_direction.set_receiver(partial(self.transmit, direction))

    def set_receiver(self, direction: DirectionName, receive: Receive) -> None:
        """Set the receiver of frames in this direction."""
        self._receive[direction] = receive

    def transmit(self, direction: DirectionName, now: int, frame: bytes) -> None:
        """Apply the next fate to a frame."""
        number = len(self.transmissions)
        fate = self.fates[number] if number < len(self.fates) else _PASSED
        self.transmissions.append(Transmission(now, direction, fate, len(frame)))
        receive, held_frame = self._receive[direction], self._held.pop(direction, None)
        if fate == "h":
            self._held[direction] = frame
        elif fate != "d":
            receive(now, frame)
            if fate == "t":
                receive(now, frame)
        if held_frame is not None:
            receive(now, held_frame)

    def release(self, now: int) -> bool:
        """Deliver held frames that no other frame followed; return False if there are none."""
        held, self._held = self._held, {}
        for direction, frame in held.items():
            self._receive[direction](now, frame)
        return bool(held)

    @property
    def last_fault_time(self) -> int:
        """Time of the last fault, nanoseconds; 0 if there was none."""
        return max((sent.when for sent in self.transmissions if sent.fate != _PASSED), default=0)


@dataclass(frozen=True, slots=True)
class ScheduleResult:
    """Result of a schedule without violation. recovery: nanoseconds from the last fault to the end of the exchange."""

    transmissions: Sequence[Transmission]
    recovery: int


def run(subject: Subject, exchange: str, fates: str) -> ScheduleResult:
    """Run one schedule. Raises Violation; any other error carries the command that repeats it as a note."""
    gate = Gate(fates)
    try:
        return ScheduleResult(gate.transmissions, run_with_gate(subject, exchange, gate))
    except Exception as error:
        error.add_note(subject.replay(exchange, fates))
        raise


@errors_as_violations()
def run_with_gate(subject: Subject, exchange: str, gate: Gate) -> int:
    """Run an exchange through a gate, with all checks; return the recovery time, see `ScheduleResult`. Raises Violation."""
    stage = subject.stages[exchange]()
    with Simulation(_layout(), stage.plug, seed=0) as simulation:
        gate.install(simulation)
        stage.begin(simulation)
        stage.run(simulation)
        recovery = simulation.now() - gate.last_fault_time
        if recovery > stage.bound:
            raise Violation(
                f"the exchange ended {recovery:,} ns after the last fault; at most {stage.bound:,} ns are allowed"
            )
        simulation.run_until(simulation.now() + subject.rest)
        while gate.release(simulation.now()):
            simulation.run_until(simulation.now() + subject.rest)
        stage.check(simulation)
        for node in simulation.nodes.values():
            if node.agent.firmware.deadline is not None:
                raise Violation(f"{node.name}: no operation is pending, but a timer runs")
    return recovery


def next_schedule(fates: str, used: int) -> str:
    """Return the next schedule that differs in the first `used` fates; empty after the last one."""
    for index in reversed(range(min(used, len(fates)))):
        if fates[index] != _LETTERS[-1]:
            next_letter = _LETTERS[_LETTERS.index(fates[index]) + 1]
            return fates[:index] + next_letter + _PASSED * (len(fates) - index - 1)
    return ""


class Failure(NamedTuple):
    """A schedule with a violation. command: runs it again."""

    command: str
    exchange: str
    fates: str
    reason: str

    def __str__(self) -> str:
        return f"{self.command}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Tally:
    """Totals of schedules. executed: number of executed schedules. covered: number of schedules, with equivalent ones.
    failures: the first failures. recovery: longest time from the last fault to the end of an exchange, nanoseconds."""

    executed: int = 0
    covered: int = 0
    failures: tuple[Failure, ...] = ()
    recovery: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.executed + other.executed, self.covered + other.covered, self.failures + other.failures,
            max(self.recovery, other.recovery),
        )  # fmt: skip


def search(subject: Subject, exchange: str, first: str, depth: int = DEPTH, max_failures: int = 10) -> Tally:
    """Run all schedules of an exchange whose first fate is `first`, up to `max_failures` failures."""
    executed = covered = recovery = 0
    failures: list[Failure] = []
    fates = first + _PASSED * (depth - 1)
    while fates.startswith(first) and len(failures) < max_failures:
        executed += 1
        used = depth  # number of fates that were applied
        try:
            result = run(subject, exchange, fates)
        except Violation as violation:
            failures.append(Failure(subject.replay(exchange, fates), exchange, fates, str(violation)))
        else:
            used = min(depth, len(result.transmissions))
            recovery = max(recovery, result.recovery)
        covered += len(FATES) ** (depth - used)
        fates = next_schedule(fates, used)
    return Tally(executed, covered, tuple(failures), recovery)


def reduce_fates(subject: Subject, failure: Failure) -> Failure:
    """Reduce a failing schedule: replace one fault after the other by a pass, as long as the schedule still fails."""
    for index in reversed(range(len(failure.fates))):
        fates = failure.fates[:index] + _PASSED + failure.fates[index + 1 :]
        try:
            run(subject, failure.exchange, fates)
        except Violation as violation:
            failure = Failure(subject.replay(failure.exchange, fates), failure.exchange, fates, str(violation))
    return failure


def search_all(build: Callable[[], Subject], depth: int, max_failures: int = 10) -> dict[str, Tally]:
    """Run all schedules of every exchange, on all processors; return tallies by the exchange's name. build: returns the
    subject; it is pickled, and called in each process. max_failures: see `search`."""
    exchanges = list(build().stages)
    tallies = dict.fromkeys(exchanges, Tally())
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        searches = [(exchange, first) for exchange in exchanges for first in FATES]
        for (exchange, _), tally in zip(
            searches, pool.map(partial(_search, build, depth, max_failures), searches), strict=True
        ):
            tallies[exchange] += tally
    return tallies


def _search(build: Callable[[], Subject], depth: int, max_failures: int, start: tuple[str, str]) -> Tally:
    """Run the schedules of an exchange with this first fate, in a worker process."""
    return search(build(), *start, depth, max_failures)

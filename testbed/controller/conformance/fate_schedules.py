"""Exhaustive schedules: every fate that the first six transmissions between two nodes can meet, then a perfect network.

A transmission is a frame, acknowledgements included, that comes to the end of the link, in either direction; it is passed,
dropped, delivered twice, or held until behind the next one of its direction. That is 4^6 = 4,096 schedules for an
exchange of messages; those that differ in nothing that took place, as the exchange was over before the sixth transmission,
are run once. Each must deliver every message exactly once, in order and whole, tell both hosts, leave nothing over, and end
within a bounded time after the last fault: a small scope, searched to its end (after TigerBeetle's generators).

Another protocol is another `Subject`.
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
from testbed.controller.conformance.trials import Violation, judged
from testbed.engine.sources import source
from testbed.fabric.interface import Receive
from testbed.sim.sim_direction import SimDirection
from testbed.sim.simulation import Simulation
from testbed.spec.layout import DirectionName, Layout
from testbed.spec.model import Description
from testbed.spec.resolver import resolve

DEPTH: Final = 6
"""Transmissions whose fate is chosen, usually."""
FATES: Final = {"p": "passed", "d": "dropped", "t": "delivered twice", "h": "held behind the next"}
_LETTERS: Final = "".join(FATES)
_PASSED: Final = _LETTERS[0]


class Stage(Protocol):
    """Exchange between two nodes by one protocol. plug: for the simulation. bound: ns after the last fault by which it
    ends."""

    plug: Plug
    bound: int

    def begin(self, simulation: Simulation) -> None:
        """Start the programs."""

    def go_on(self, simulation: Simulation) -> None:
        """Let time pass until the programs have ended. Raises Violation after TIMEOUT, or if a check fails."""

    def check(self, simulation: Simulation) -> None:
        """Check the exchange when no frame is in flight. Raises Violation if something is wrong or left over."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A protocol. name: its entry point's. stages: its exchanges, by name. depth: transmissions whose fate is chosen.
    command: runs a schedule again; a %-format for the exchange and its fates. rest: virtual time in which what is still
    under way after the exchange comes to rest."""

    name: str
    stages: Mapping[str, Callable[[], Stage]]
    command: str
    depth: int = DEPTH
    rest: int = SECOND

    def replay(self, exchange: str, fates: str) -> str:
        """Return the one command that runs a schedule again."""
        return self.command % (exchange, fates)


@cache
def _layout() -> Layout:
    """Two nodes. A frame takes the wire so long that acknowledgements come between the data."""
    return resolve(Description.back_to_back(delay="2us", rate="1gbit"))


@dataclass(frozen=True, slots=True)
class Transmission:
    """when: nanoseconds, of its coming to the link's end. fate: a letter of FATES. size: bytes."""

    when: int
    direction: DirectionName
    fate: str
    size: int

    def __str__(self) -> str:
        arrow = "->" if self.direction == "forward" else "<-"
        return f"{self.when:>13,} ns  n1 {arrow} n2  {self.size:>5} bytes  {FATES[self.fate]}"


@dataclass(slots=True)
class Gate:
    """Stands at both ends of the link and lets each transmission meet its fate; those behind the last fate pass."""

    fates: str
    transmissions: list[Transmission] = field(default_factory=list)
    _held: dict[DirectionName, bytes] = field(default_factory=dict)
    _receive: dict[DirectionName, Receive] = field(default_factory=dict)

    def stand(self, simulation: Simulation) -> None:
        for (_, direction), way in simulation.network.link_directions.items():
            assert isinstance(way, SimDirection), "exchanges have a plain cable"
            self.lead(direction, way.receive)
            way.set_receiver(partial(self.transmit, direction))

    def lead(self, direction: DirectionName, receive: Receive) -> None:
        """Set the receiver of frames in this direction."""
        self._receive[direction] = receive

    def transmit(self, direction: DirectionName, now: int, frame: bytes) -> None:
        number = len(self.transmissions)
        fate = self.fates[number] if number < len(self.fates) else _PASSED
        self.transmissions.append(Transmission(now, direction, fate, len(frame)))
        receive, before = self._receive[direction], self._held.pop(direction, None)
        if fate == "h":
            self._held[direction] = frame
        elif fate != "d":
            receive(now, frame)
            if fate == "t":
                receive(now, frame)
        if before is not None:
            receive(now, before)

    def release(self, now: int) -> bool:
        """Deliver held frames behind which nothing came; return False if there are none."""
        held, self._held = self._held, {}
        for direction, frame in held.items():
            self._receive[direction](now, frame)
        return bool(held)

    @property
    def healed(self) -> int:
        """Time of the last fault; 0 if there was none."""
        return max((one.when for one in self.transmissions if one.fate != _PASSED), default=0)


@dataclass(frozen=True, slots=True)
class Ran:
    """A schedule under which all went well. recovery: nanoseconds from the last fault to the end of the exchange."""

    transmissions: Sequence[Transmission]
    recovery: int


def run(subject: Subject, exchange: str, fates: str) -> Ran:
    """Run one schedule. Raises Violation; any other error carries the command that repeats it as a note."""
    gate = Gate(fates)
    try:
        return Ran(gate.transmissions, go_through(subject, exchange, gate))
    except Exception as error:
        error.add_note(subject.replay(exchange, fates))
        raise


@judged()
def go_through(subject: Subject, exchange: str, gate: Gate) -> int:
    """An exchange between nodes with this gate between them, and all checks; what `Ran` calls recovery."""
    stage = subject.stages[exchange]()
    with Simulation(_layout(), stage.plug, seed=0) as simulation:
        gate.stand(simulation)
        stage.begin(simulation)
        stage.go_on(simulation)
        recovery = simulation.now() - gate.healed
        if recovery > stage.bound:
            raise Violation(f"over only {recovery:,} ns after the last fault: at most {stage.bound:,}")
        simulation.run_until(simulation.now() + subject.rest)
        while gate.release(simulation.now()):
            simulation.run_until(simulation.now() + subject.rest)
        stage.check(simulation)
        for node in simulation.nodes.values():
            if node.agent.firmware.deadline is not None:
                raise Violation(f"{node.name}: nothing is under way, and a timer runs")
    return recovery


def following(fates: str, took_place: int) -> str:
    """The next schedule that is another one where something took place; empty behind the last one."""
    for place in reversed(range(min(took_place, len(fates)))):
        if fates[place] != _LETTERS[-1]:
            another = _LETTERS[_LETTERS.index(fates[place]) + 1]
            return fates[:place] + another + _PASSED * (len(fates) - place - 1)
    return ""


def drawn(seed: int, subject: Subject, depth: int = DEPTH) -> tuple[Subject, str, str]:
    """A schedule at random."""
    chance = source(seed, f"schedule of {subject.name}")
    exchange = chance.choice(list(subject.stages))
    return subject, exchange, "".join([chance.choice(_LETTERS) for _ in range(depth)])


class Failure(NamedTuple):
    """A schedule that went wrong. command: runs it again."""

    command: str
    exchange: str
    fates: str
    why: str

    def __str__(self) -> str:
        return f"{self.command}: {self.why}"


@dataclass(frozen=True, slots=True)
class Tally:
    """ran: how many schedules. stand_for: how many these are with those that differ in nothing that took place. failed: the
    first of them. recovery: the longest, nanoseconds."""

    ran: int = 0
    stand_for: int = 0
    failed: tuple[Failure, ...] = ()
    recovery: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.ran + other.ran, self.stand_for + other.stand_for, self.failed + other.failed,
            max(self.recovery, other.recovery),
        )  # fmt: skip


def search(subject: Subject, exchange: str, first: str, depth: int = DEPTH, max_failures: int = 10) -> Tally:
    """Run all schedules with this fate of the first transmission, up to `max_failures` failures."""
    ran = stand_for = recovery = 0
    failed: list[Failure] = []
    fates = first + _PASSED * (depth - 1)
    while fates.startswith(first) and len(failed) < max_failures:
        ran += 1
        took_place = depth
        try:
            outcome = run(subject, exchange, fates)
        except Violation as violation:
            failed.append(Failure(subject.replay(exchange, fates), exchange, fates, str(violation)))
        else:
            took_place = min(depth, len(outcome.transmissions))
            recovery = max(recovery, outcome.recovery)
        stand_for += len(FATES) ** (depth - took_place)
        fates = following(fates, took_place)
    return Tally(ran, stand_for, tuple(failed), recovery)


def reduce_fates(subject: Subject, failure: Failure) -> Failure:
    """Return a failing schedule with as few fates other than a pass as one by one can be taken out."""
    for place in reversed(range(len(failure.fates))):
        fates = failure.fates[:place] + _PASSED + failure.fates[place + 1 :]
        try:
            run(subject, failure.exchange, fates)
        except Violation as violation:
            failure = Failure(subject.replay(failure.exchange, fates), failure.exchange, fates, str(violation))
    return failure


def everything(make: Callable[[], Subject], depth: int, max_failures: int = 10) -> dict[str, Tally]:
    """Run all schedules of every exchange, on all processors; return tallies by the exchange's name. make: is pickled, and
    makes the subject in each process. max_failures: see `search`."""
    exchanges = list(make().stages)
    tallies = dict.fromkeys(exchanges, Tally())
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        parts = [(exchange, first) for exchange in exchanges for first in FATES]
        for (exchange, _), tally in zip(
            parts, pool.map(partial(_search, make, depth, max_failures), parts), strict=True
        ):
            tallies[exchange] += tally
    return tallies


def _search(make: Callable[[], Subject], depth: int, max_failures: int, part: tuple[str, str]) -> Tally:
    return search(make(), *part, depth, max_failures)

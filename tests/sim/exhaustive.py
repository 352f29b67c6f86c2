"""Exhaustive schedules: every fate that the first six transmissions between two nodes can meet, then a perfect network.

A transmission is a frame, acknowledgements included, that comes to the end of the link, in either direction; it is passed,
dropped, delivered twice, or held until behind the next one of its direction. That is 4^6 = 4,096 schedules for an
exchange of messages; those that differ in nothing that took place, as the exchange was over before the sixth transmission,
are run once. Each must deliver every message exactly once, in order and whole, tell both hosts, leave nothing over, and end
within a bounded time after the last fault: a small scope, searched to its end (after TigerBeetle's generators).

    python -m tests.sim.exhaustive emp               every schedule of every exchange, on all processors
    python -m tests.sim.exhaustive emp 1+1 pdthpp    one of them again, in words

Another protocol is another `Subject`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Final, Protocol

from protocols.core.firmware import Plug
from testbed.engine.sources import source
from testbed.sim.sim_direction import DirectionName, Receive
from testbed.sim.simulation import Simulation
from testbed.spec.layout import Layout
from testbed.spec.model import Description
from testbed.spec.resolver import resolve
from tests.sim.am2_exchanges import CASES, STRANGERS, Active
from tests.sim.exhaustive_exchanges import (
    EMP_MATCHING,
    EXCHANGES,
    MX_EAGER,
    MX_PULLED,
    SSAM_MATCHING,
    VIA_MATCHING,
    Matching,
)
from tests.sim.swarm_faults import Violation, unwrapped
from tests.sim.trials import print_line

SECOND: Final = 1_000_000_000

DEPTH: Final = 6
"""Transmissions whose fate is chosen, usually."""
FATES: Final = {"p": "passed", "d": "dropped", "t": "delivered twice", "h": "held behind the next"}
_LETTERS: Final = "".join(FATES)
_PASSED: Final = _LETTERS[0]
SILENCE: Final = SECOND
"""Virtual time in which whatever is still under way after the exchange comes to rest."""


class Stage(Protocol):
    """Exchange between two nodes by one protocol. plug: for the simulation. bound: ns after the last fault by which it
    ends."""

    plug: Plug
    bound: int

    def begin(self, simulation: Simulation) -> None:
        """Start the programs."""

    def go_on(self, simulation: Simulation) -> None:
        """Let time pass until the programs have ended. Raises Violation after PATIENCE, or if a check fails."""

    def check(self, simulation: Simulation) -> None:
        """Check the exchange when no frame is in flight. Raises Violation if something is wrong or left over."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A protocol. name: its entry point's. stages: its exchanges, by name. depth: transmissions whose fate is chosen."""

    name: str
    stages: Mapping[str, Callable[[], Stage]]
    depth: int = DEPTH


EMP: Final = Subject("emp", {name: partial(Matching, EMP_MATCHING, exchange) for name, exchange in EXCHANGES.items()})
AM2: Final = Subject(
    "am2", {name: partial(Active, case, have_met=name not in STRANGERS) for name, case in CASES.items()}, depth=5
)
SSAM: Final = Subject(
    "ssam", {name: partial(Matching, SSAM_MATCHING, exchange) for name, exchange in EXCHANGES.items()}, depth=4
)
VIA: Final = Subject(
    "via", {name: partial(Matching, VIA_MATCHING, exchange) for name, exchange in EXCHANGES.items()}, depth=4
)
OPENMX: Final = Subject(
    "openmx",
    {
        f"{kind}{name}": partial(Matching, matched, exchange)
        for kind, matched in (("", MX_EAGER), ("pulled-", MX_PULLED))
        for name, exchange in EXCHANGES.items()
    },
    depth=4,
)
SUBJECTS: Final = {subject.name: subject for subject in (EMP, AM2, SSAM, VIA, OPENMX)}


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
            self.lead(direction, way.receive)
            way.lead_to(partial(self.transmit, direction))

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
        error.add_note(replay(subject, exchange, fates))
        raise


@unwrapped()
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
        simulation.run_until(simulation.now() + SILENCE)
        while gate.release(simulation.now()):
            simulation.run_until(simulation.now() + SILENCE)
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


@dataclass(frozen=True, slots=True)
class Tally:
    """ran: how many schedules. stand_for: how many these are with those that differ in nothing that took place. failed: the
    first of them, each in a sentence. recovery: the longest, nanoseconds."""

    ran: int = 0
    stand_for: int = 0
    failed: tuple[str, ...] = ()
    recovery: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.ran + other.ran, self.stand_for + other.stand_for, self.failed + other.failed,
            max(self.recovery, other.recovery),
        )  # fmt: skip


def search(subject: Subject, exchange: str, first: str, depth: int = DEPTH, max_failures: int = 10) -> Tally:
    """Run all schedules with this fate of the first transmission, up to `max_failures` failures."""
    ran = stand_for = recovery = 0
    failed: list[str] = []
    fates = first + _PASSED * (depth - 1)
    while fates.startswith(first) and len(failed) < max_failures:
        ran += 1
        took_place = depth
        try:
            outcome = run(subject, exchange, fates)
        except Violation as violation:
            failed.append(f"{replay(subject, exchange, fates)}: {violation}")
        else:
            took_place = min(depth, len(outcome.transmissions))
            recovery = max(recovery, outcome.recovery)
        stand_for += len(FATES) ** (depth - took_place)
        fates = following(fates, took_place)
    return Tally(ran, stand_for, tuple(failed), recovery)


def _search(part: tuple[str, str, str, int]) -> Tally:
    subject, exchange, first, depth = part
    return search(SUBJECTS[subject], exchange, first, depth)


def everything(subject: Subject, depth: int) -> dict[str, Tally]:
    """All schedules of every exchange, on all processors; by the exchange's name."""
    parts = [(subject.name, exchange, first, depth) for exchange in subject.stages for first in FATES]
    tallies = dict.fromkeys(subject.stages, Tally())
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for (_, exchange, _, _), tally in zip(parts, pool.map(_search, parts), strict=True):
            tallies[exchange] += tally
    return tallies


def replay(subject: Subject, exchange: str, fates: str) -> str:
    """The one command that runs a schedule again."""
    return f"python -m tests.sim.exhaustive {subject.name} {exchange} {fates}"


def main(arguments: Sequence[str]) -> int:
    subject = SUBJECTS[arguments[0]]
    if len(arguments) == 1:
        tallies = everything(subject, subject.depth)
        for name, tally in tallies.items():
            print_line(
                f"{name:>8}: {tally.ran:>5,} ran for {tally.stand_for:,}; at most {tally.recovery:,} ns to recover"
            )
        failed = [line for tally in tallies.values() for line in tally.failed]
        print_line("\n".join(failed) if failed else "nothing wrong")
        return bool(failed)
    gate, wrong = Gate(arguments[2]), ""
    try:
        recovery = go_through(subject, arguments[1], gate)
    except Violation as violation:
        wrong = str(violation)
    print_line("\n".join(map(str, gate.transmissions)))
    print_line(wrong or f"nothing wrong; over {recovery:,} ns after the last fault")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Exhaustive schedules: every fate that the first six transmissions between two nodes can meet, then a perfect network.

A transmission is a frame, acknowledgements included, that comes to the end of the link, in either direction; it is passed,
dropped, delivered twice, or held until behind the next one of its direction. That is 4^6 = 4,096 schedules for an
exchange of messages; those that differ in nothing that took place, as the exchange was over before the sixth transmission,
are run once. Each must deliver every message exactly once, in order and whole, tell both hosts, leave nothing over, and end
within a bounded time after the last fault: a small scope, searched to its end (after TigerBeetle's generators).

    python tests/sim/exhaustive.py emp               every schedule of every exchange, on all processors
    python tests/sim/exhaustive.py emp 1+1 pdthpp    one of them again, in words

Another protocol is another `Subject`; all else comes from the registry.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, Final

from exhaustive_exchanges import EXCHANGES, Exchange, Party
from swarm_faults import Violation
from trials import say

from protocols.core.firmware import Plug
from protocols.core.protocol import Protocol
from protocols.emp import host as emp
from protocols.emp.settings import Settings
from testbed.engine.sources import source
from testbed.registry import PROTOCOLS, load
from testbed.sim.simulation import Simulation, StalledError
from testbed.sim.way import DirectionName, Receive
from testbed.spec.layout import Layout
from testbed.spec.model import Description
from testbed.spec.resolving import resolve

MILLISECOND, SECOND = 1_000_000, 1_000_000_000

DEPTH: Final = 6
"""Transmissions whose fate is chosen."""
FATES: Final = {"p": "passed", "d": "dropped", "t": "delivered twice", "h": "held behind the next"}
_LETTERS: Final = "".join(FATES)
_PASSED: Final = _LETTERS[0]
PATIENCE: Final = 20 * SECOND
"""Virtual time after which an exchange is taken to have come to a halt."""
SILENCE: Final = SECOND
"""Virtual time in which whatever is still under way after the exchange comes to rest."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A protocol. name: its entry point's. payload: bytes of a message in a full frame, so that messages have as many frames
    as they are meant to. bound: nanoseconds after the last fault in which every exchange is over. resources: what a host
    has of all that a transfer takes and gives back. plug: another one than the entry point's, with settings so small
    that a few frames come to their limits."""

    name: str
    payload: int
    bound: int
    resources: Callable[[Any], tuple[int, ...]]
    plug: Plug | None = None

    def size(self, frames: int) -> int:
        """Bytes of a message of so many frames, the last one about half full."""
        return self.payload * frames - self.payload // 2


# A header that was lost is sent again after at most one longest time-out. What was sent behind it was not admitted
# meanwhile, and waits for its own timer: one more. The rest are round trips.
EMP: Final = Subject(
    "emp", payload=1472, bound=2 * Settings().longest_timeout + MILLISECOND,
    resources=lambda host: (host.free, host.pinned), plug=emp.plug(Settings(window=2)),
)  # fmt: skip
SUBJECTS: Final = {EMP.name: EMP}


@cache
def _layout() -> Layout:
    """Two nodes. A frame takes the wire so long that acknowledgements come between the data."""
    return resolve(Description.back_to_back(delay="2us", rate="1gbit"))


@cache
def _protocol(name: str) -> Protocol:
    found = load(PROTOCOLS, name)
    assert isinstance(found, Protocol)
    return found


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
        for (_, direction), way in simulation.network.ways.items():
            self.lead(direction, way.receive)
            way.lead_to(partial(self.transmit, direction))

    def lead(self, direction: DirectionName, receive: Receive) -> None:
        """What comes in this direction goes there."""
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
        """Deliver what was held and found nothing to come behind; False if there is nothing."""
        held, self._held = self._held, {}
        for direction, frame in held.items():
            self._receive[direction](now, frame)
        return bool(held)

    @property
    def healed(self) -> int:
        """When the last fault was; 0 if there was none."""
        return max((one.when for one in self.transmissions if one.fate != _PASSED), default=0)


@dataclass(frozen=True, slots=True)
class Ran:
    """A schedule under which all went well. recovery: nanoseconds from the last fault to the end of the exchange."""

    transmissions: Sequence[Transmission]
    recovery: int


def run(subject: Subject, exchange: Exchange, fates: str) -> Ran:
    """One schedule. Raises Violation; whatever else is raised has the command that does it again as its note."""
    gate = Gate(fates)
    try:
        return Ran(gate.transmissions, go_through(subject, exchange, gate))
    except Exception as error:
        error.add_note(replay(subject, exchange, fates))
        raise


def go_through(subject: Subject, exchange: Exchange, gate: Gate) -> int:
    """An exchange between nodes with this gate between them, and all checks; what `Ran` calls recovery."""
    protocol = _protocol(subject.name)
    with Simulation(_layout(), subject.plug or protocol.plug, seed=0) as simulation:
        gate.stand(simulation)
        nodes = list(simulation.nodes.values())
        devices = [protocol.device(node.endpoint) for node in nodes]
        before = [subject.resources(node.endpoint) for node in nodes]
        parties = [Party(number, device, exchange, subject.size) for number, device in enumerate(devices)]
        for node, party in zip(nodes, parties, strict=True):
            simulation.spawn(node.name, party.carry_on)
        try:
            simulation.run(timeout=PATIENCE)
        except StalledError as error:
            raise Violation(f"no progress on a healed network: {error}") from error
        recovery = simulation.now() - gate.healed
        if recovery > subject.bound:
            raise Violation(f"over only {recovery:,} ns after the last fault: at most {subject.bound:,}")
        simulation.run_until(simulation.now() + SILENCE)
        while gate.release(simulation.now()):
            simulation.run_until(simulation.now() + SILENCE)
        for party, device, node, had in zip(parties, devices, nodes, before, strict=True):
            party.check_memory()
            if left := [*device.waiting(), *node.waiting()]:
                raise Violation(f"{node.name} is not done: {'; '.join(left)}")
            if node.agent.firmware.deadline is not None:
                raise Violation(f"{node.name}: nothing is under way, and a timer runs")
            if (has := subject.resources(node.endpoint)) != had:
                raise Violation(f"{node.name}: of its resources {had} are left {has}")
    return recovery


def following(fates: str, took_place: int) -> str:
    """The next schedule that is another one where something took place; empty behind the last one."""
    for place in reversed(range(min(took_place, len(fates)))):
        if fates[place] != _LETTERS[-1]:
            another = _LETTERS[_LETTERS.index(fates[place]) + 1]
            return fates[:place] + another + _PASSED * (len(fates) - place - 1)
    return ""


def drawn(seed: int, subject: Subject, depth: int = DEPTH) -> tuple[Subject, Exchange, str]:
    """A schedule at random."""
    chance = source(seed, f"schedule of {subject.name}")
    exchange = chance.choice(list(EXCHANGES.values()))
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


def search(subject: Subject, exchange: Exchange, first: str, depth: int = DEPTH, most_failures: int = 10) -> Tally:
    """All schedules whose first transmission meets this fate, or those until so many have failed."""
    ran = stand_for = recovery = 0
    failed: list[str] = []
    fates = first + _PASSED * (depth - 1)
    while fates.startswith(first) and len(failed) < most_failures:
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
    return search(SUBJECTS[subject], EXCHANGES[exchange], first, depth)


def everything(subject: Subject, depth: int = DEPTH) -> dict[str, Tally]:
    """All schedules of every exchange, on all processors; by the exchange's name."""
    parts = [(subject.name, exchange, first, depth) for exchange in EXCHANGES for first in FATES]
    tallies = dict.fromkeys(EXCHANGES, Tally())
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for (_, exchange, _, _), tally in zip(parts, pool.map(_search, parts), strict=True):
            tallies[exchange] += tally
    return tallies


def replay(subject: Subject, exchange: Exchange, fates: str) -> str:
    """The one command that runs a schedule again."""
    return f"python tests/sim/exhaustive.py {subject.name} {exchange.name} {fates}"


def main(arguments: Sequence[str]) -> int:
    subject = SUBJECTS[arguments[0]]
    if len(arguments) == 1:
        tallies = everything(subject)
        for name, tally in tallies.items():
            say(f"{name:>8}: {tally.ran:>5,} ran for {tally.stand_for:,}; at most {tally.recovery:,} ns to recover")
        failed = [line for tally in tallies.values() for line in tally.failed]
        say("\n".join(failed) if failed else "nothing wrong")
        return bool(failed)
    gate, wrong = Gate(arguments[2]), ""
    try:
        recovery = go_through(subject, EXCHANGES[arguments[1]], gate)
    except Violation as violation:
        wrong = str(violation)
    say("\n".join(map(str, gate.transmissions)))
    say(wrong or f"nothing wrong; over {recovery:,} ns after the last fault")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

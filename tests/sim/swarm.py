"""The swarm: random cases of a message-passing protocol in the simulator, each first under faults, then on a healed network.

A case is drawn from its seed alone: a topology of 2 to 8 nodes, at least 100 messages of mixed sizes between them, in which
order the receives are posted, the protocol's settings, and at least two kinds of fault on the links. While they last,
nothing wrong may be delivered (safety); once they are lifted everything must arrive (liveness). Then the history is
checked: exactly once, in the order that the interface promises, nothing leaked.

    python tests/sim/swarm.py 4711        run one case again, and shrink it if it fails
    python tests/sim/swarm.py 0 1000      a range of them

Another protocol with posted sends and receives is another `Subject`.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Protocol, cast

from protocols.core.completion import Completion
from protocols.core.firmware import Host, Plug
from protocols.emp import host as emp
from protocols.emp.settings import Settings
from testbed.engine.sources import Source, source
from testbed.sim.node import SimNode
from testbed.sim.simulation import Simulation, StalledError
from testbed.spec.layout import Impairment, Layout
from testbed.spec.model import Description
from testbed.spec.resolving import resolve

MICROSECOND, MILLISECOND, SECOND = 1_000, 1_000_000, 1_000_000_000

MESSAGES = 100
SIZES = (0, 1, 4, 60, 400, 1455, 1456, 1457, 2000, 2928, 4096, 4097, 6000, 12_000)
LARGEST = max(SIZES)
PATTERN = bytes((i * i // 7 + i) & 0xFF for i in range(LARGEST + 4096))
PATIENCE = 60 * SECOND
"""Virtual time after the faults, in which a case must have ended."""


class Violation(AssertionError):  # noqa: N818  # it is no error of ours
    """What a protocol promises did not hold."""


class Received(Protocol):
    @property
    def source(self) -> int: ...
    @property
    def tag(self) -> int: ...
    @property
    def length(self) -> int: ...


class Matching(Host, Protocol):
    """A host library with posted sends and receives."""

    def post_send(self, destination: int, tag: int, data: bytes | bytearray) -> Completion[emp.Received]: ...
    def post_receive(self, source: int, tag: int, buffer: bytearray) -> Completion[emp.Received]: ...
    @property
    def free(self) -> int: ...
    @property
    def pinned(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Message:
    source: int
    sink: int
    tag: int
    size: int


@dataclass(frozen=True, slots=True)
class Cut:
    """A link is out, from begin to end."""

    link: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Case:
    """settings: the protocol's, as keys and values. eager: all sends are posted at once, and the receives a few at a time;
    otherwise the other way round. wild: of each node, whether its receives name sources and tags ("no"), tags ("source")
    or nothing ("all"). links: what is wrong with each until the faults end."""

    seed: int
    shape: str
    nodes: int
    settings: tuple[tuple[str, int], ...]
    messages: tuple[Message, ...]
    eager: bool
    outstanding: int
    wild: tuple[str, ...]
    links: tuple[Impairment, ...]
    cuts: tuple[Cut, ...]
    until: int


@dataclass(frozen=True, slots=True)
class Subject:
    """A protocol. settings: those of one case, drawn. plug: the protocol with them."""

    name: str
    settings: Callable[[Source, bool], dict[str, int]]
    plug: Callable[[dict[str, int]], Plug]


def _emp_settings(chance: Source, eager: bool) -> dict[str, int]:
    timeout = chance.choice((200 * MICROSECOND, MILLISECOND, 5 * MILLISECOND))
    return {
        "unit": chance.choice((1, 2, 3, 3, 5)),
        "timeout": timeout,
        "longest_timeout": timeout * chance.choice((1, 4, 32)),
        "window": chance.choice((1, 2, 16)),
        # With few, receives in another order than the messages come would wait for one another.
        "held": 640 if eager else chance.choice((1, 3, 640)),
    }


EMP = Subject("emp", _emp_settings, lambda settings: emp.plug(Settings(**settings)))

# Kinds of fault, each with what it may be on a link.
FAULTS: dict[str, Callable[[Source], dict[str, object]]] = {
    "loss": lambda chance: {"loss": chance.choice((0.01, 0.05, 0.3))},
    "bursts": lambda chance: {"gemodel": (0.02, chance.choice((0.1, 0.5)), 1.0, 0.0)},
    "corruption": lambda chance: {"corrupt": chance.choice((0.01, 0.2)), "corrupt_bits": chance.choice((1, 3))},
    "duplication": lambda chance: {"duplicate": chance.choice((0.02, 0.3))},
    "reordering": lambda chance: {
        "reorder": chance.choice((0.02, 0.3)),
        "delay": chance.choice((50, 2000)) * MICROSECOND,
    },
    "jitter": lambda chance: {"jitter": chance.choice((10, 40)) * MICROSECOND, "delay": 50 * MICROSECOND},
    "congestion": lambda chance: {"rate": chance.choice((20, 200)) * 10**6, "queue_frames": chance.choice((4, 30))},
}
BLACKOUT = "blackout"
SHAPES: dict[str, tuple[int, int]] = {
    "back-to-back": (2, 2),
    "star": (2, 8),
    "line": (2, 5),
    "ring": (3, 6),
    "dumbbell": (4, 8),
}
CALM = Impairment(delay=5 * MICROSECOND)


@cache
def layout_of(shape: str, nodes: int) -> Layout:
    """Without impairments: a case sets its own."""
    made = {
        "back-to-back": Description.back_to_back,
        "star": lambda: Description.star(nodes),
        "line": lambda: Description.line(nodes),
        "ring": lambda: Description.ring(nodes),
        "dumbbell": lambda: Description.dumbbell(nodes // 2, nodes - nodes // 2),
    }
    return resolve(made[shape]())


def draw(seed: int, subject: Subject = EMP) -> Case:
    """The case of a seed."""
    chance = source(seed, f"case of {subject.name}")
    shape = chance.choice(list(SHAPES))
    low, high = SHAPES[shape]
    nodes = low + chance.below(high - low + 1)
    eager = chance.random() < 0.5
    tags = chance.choice((1, 2, 5))
    largest = chance.choice((5, 9, 9, len(SIZES)))
    messages = tuple([
        Message(chance.below(nodes), chance.below(nodes), chance.below(tags), SIZES[chance.below(largest)])
        for _ in range(MESSAGES + chance.below(20))
    ])  # fmt: skip
    kinds = chance.sample([*FAULTS, BLACKOUT], 2 + chance.below(3))
    links = layout_of(shape, nodes).links
    until = chance.choice((2, 10, 50)) * MILLISECOND
    impairments = []
    for _ in links:
        keys: dict[str, object] = {"delay": CALM.delay}
        for kind in kinds:
            if kind in FAULTS and chance.random() < 0.7:
                keys |= FAULTS[kind](chance)
        impairments.append(replace(CALM, **keys))  # type: ignore[arg-type]  # the keys are an impairment's
    cuts = []
    for number in range(len(links)):
        if BLACKOUT in kinds and chance.random() < 0.4:
            begin = chance.below(until)
            cuts.append(Cut(number, begin, begin + 1 + chance.below(until - begin)))
    return Case(
        seed, shape, nodes, tuple(subject.settings(chance, eager).items()), messages, eager, 1 + chance.below(8),
        tuple([chance.choice(("no", "no", "source", "all")) for _ in range(nodes)]), tuple(impairments), tuple(cuts), until,
    )  # fmt: skip


def payload(number: int, size: int) -> bytes:
    """Of the number-th message, all different as far as their size allows."""
    return PATTERN[number * 31 % 4096 :][:size]


@dataclass(frozen=True, slots=True)
class Took:
    """A receive that was posted: its buffer, what it got, and what was in the buffer then."""

    buffer: bytearray
    received: emp.Received
    data: bytes


async def send_all(endpoint: Matching, node: SimNode, case: Case) -> None:
    chance = source(case.seed, f"sends of {node.name}")
    under_way: list[Completion[emp.Received]] = []
    for number, message in enumerate(case.messages):
        if message.source != node.number:
            continue
        memory = bytearray(payload(number, message.size))
        under_way.append(endpoint.post_send(message.sink, message.tag, memory))
        under_way[-1].add_callback(partial(reuse, memory))
        if not case.eager and len(under_way) >= case.outstanding:
            await fine(under_way.pop(0))
        if chance.random() < 0.3:
            await node.sleep(chance.below(300 * MICROSECOND))
    for completion in under_way:
        await fine(completion)


def reuse(memory: bytearray, _: object) -> None:
    """A sender's memory serves something else as soon as its message is sent."""
    memory[:] = b"\xdd" * len(memory)


async def receive_all(endpoint: Matching, node: SimNode, case: Case) -> list[Took]:
    chance = source(case.seed, f"receives of {node.name}")
    mine = [message for message in case.messages if message.sink == node.number]
    chance.shuffle(mine)
    wild = case.wild[node.number]
    posted: list[tuple[Completion[emp.Received], bytearray]] = []
    took: list[Took] = []
    for message in mine:
        if case.eager and len(posted) - len(took) >= case.outstanding:
            took.append(await taken(*posted[len(took)]))
        origin = message.source if wild == "no" else emp.ANY_SOURCE
        tag = emp.ANY_TAG if wild == "all" else message.tag
        buffer = bytearray(LARGEST)
        posted.append((endpoint.post_receive(origin, tag, buffer), buffer))
        if chance.random() < 0.3:
            await node.sleep(chance.below(500 * MICROSECOND))
    for one in posted[len(took) :]:
        took.append(await taken(*one))
    return took


async def taken(completion: Completion[emp.Received], buffer: bytearray) -> Took:
    received = await fine(completion)
    return Took(buffer, received, bytes(buffer[: received.length]))


async def fine(completion: Completion[emp.Received]) -> emp.Received:
    """What it gives: nothing of a case may fail."""
    try:
        return await completion
    except emp.EmpError as error:
        raise Violation(f"{completion} failed: {error}") from error


def run(case: Case, subject: Subject = EMP, patience: int = PATIENCE) -> Counter[str]:
    """Run a case; how often each row of the firmware's state table was taken. Raises Violation, after so much virtual time
    on a healed network at the latest."""
    layout = layout_of(case.shape, case.nodes)
    names = [link.name for link in layout.links]
    with Simulation(layout, subject.plug(dict(case.settings)), seed=case.seed) as simulation:
        for name, impairment in zip(names, case.links, strict=True):
            simulation.change(name, impairment)
        free = {name: cast(Matching, node.endpoint).free for name, node in simulation.nodes.items()}
        for node in layout.nodes:
            simulation.spawn(node.name, send_all, case)
        receivers = [simulation.spawn(node.name, receive_all, case) for node in layout.nodes]
        for when, _, name, act in sorted(
            [(cut.begin, 0, names[cut.link], simulation.cut) for cut in case.cuts]
            + [(cut.end, 1, names[cut.link], simulation.mend) for cut in case.cuts],
            key=lambda one: one[:3],
        ):
            simulation.run_until(when)
            act(name)
        simulation.run_until(case.until)
        for name in names:
            simulation.mend(name)
            simulation.change(name, CALM)
        try:
            simulation.run(timeout=patience)
        except StalledError as error:
            raise Violation(f"no progress on a healed network: {error}") from error
        for number, task in enumerate(receivers):
            check_node(case, number, task.result())
        rows: Counter[str] = Counter()
        for node in simulation.nodes.values():
            rows.update(node.agent.firmware.counted())
            endpoint = cast(Matching, node.endpoint)
            if endpoint.waiting() or node.agent.firmware.waiting():
                raise Violation(f"{node.name} is not done: {endpoint.waiting()} {node.agent.firmware.waiting()}")
            if endpoint.pinned or endpoint.free != free[node.name]:
                raise Violation(
                    f"{node.name} leaks: {endpoint.pinned} regions, {free[node.name] - endpoint.free} descriptors"
                )
            if node.agent.firmware.deadline is not None:
                raise Violation(f"{node.name}: nothing is under way, and a timer runs")
        if rows["messages_sent"] != len(case.messages) or rows["messages_received"] != len(case.messages):
            raise Violation(f"{len(case.messages)} messages, and {rows}")
        return rows


def check_node(case: Case, node: int, took: Sequence[Took]) -> None:
    """Exactly once, and never overtaking: receives that one message fits take messages of one source in the order in which
    they were sent."""
    by_tag = case.wild[node] != "all"
    lanes: dict[tuple[int, int], list[tuple[int, Message]]] = {}
    for number, message in enumerate(case.messages):
        if message.sink == node:
            lanes.setdefault((message.source, message.tag if by_tag else 0), []).append((number, message))
    for one in took:
        source_, tag, length = one.received
        lane = lanes.get((source_, tag if by_tag else 0))
        if not lane:
            raise Violation(f"node {node}: a message from {source_}, tag {tag}, that was not sent, or not so often")
        number, message = lane.pop(0)
        if message.tag != tag or length != message.size or one.data != payload(number, message.size):
            raise Violation(f"node {node}: instead of message {number} ({message}) came {one.received}")
        if one.buffer[:length] != one.data or one.buffer.count(0, length) != LARGEST - length:
            raise Violation(
                f"node {node}: more was written than message {number} ({message}), or later than it was told"
            )
    missing = sum(len(lane) for lane in lanes.values())
    if missing:
        raise Violation(f"node {node}: {missing} messages did not come")


def verdict(case: Case, subject: Subject = EMP) -> str:
    """What is wrong with a case, or nothing."""
    try:
        run(case, subject)
    except Violation as violation:
        return str(violation)
    return ""


def shrink(case: Case, subject: Subject = EMP, attempts: int = 400) -> Case:
    """A case that fails like this one with fewer messages, cuts and impairments. One for which that holds of itself."""
    smallest, left = case, attempts
    progress = True
    while progress and left > 0:
        progress = False
        for candidate in smaller(smallest):
            left -= 1
            if verdict(candidate, subject):
                smallest, progress = candidate, True
                break
            if left <= 0:
                break
    return smallest


def smaller(case: Case) -> Iterator[Case]:
    """Less of everything, the largest steps first."""
    count = len(case.messages)
    step = count // 2
    while step:
        for at in range(0, count, step):
            yield replace(case, messages=case.messages[:at] + case.messages[at + step :])
        step //= 2
    for at in range(len(case.cuts)):
        yield replace(case, cuts=case.cuts[:at] + case.cuts[at + 1 :])
    for at, impairment in enumerate(case.links):
        if impairment != CALM:
            yield replace(case, links=(*case.links[:at], CALM, *case.links[at + 1 :]))


@dataclass(frozen=True, slots=True)
class Tally:
    """Of many cases: how many, which failed and why, how often each row was taken."""

    cases: int
    failed: dict[int, str]
    rows: Counter[str]


def _some(seeds: Sequence[int]) -> Tally:
    failed: dict[int, str] = {}
    rows: Counter[str] = Counter()
    for seed in seeds:
        try:
            rows.update(run(draw(seed)))
        except Violation as violation:
            failed[seed] = str(violation)
    return Tally(len(seeds), failed, rows)


def many(seeds: Iterable[int]) -> Tally:
    """Cases of EMP, on all processors."""
    wanted = list(seeds)
    parts = [wanted[at : at + 50] for at in range(0, len(wanted), 50)]
    failed: dict[int, str] = {}
    rows: Counter[str] = Counter()
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for tally in pool.map(_some, parts):
            failed |= tally.failed
            rows.update(tally.rows)
    return Tally(len(wanted), failed, rows)


def replay(seed: int) -> str:
    """The one command that runs a case again."""
    return f"python tests/sim/swarm.py {seed}"


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def main(arguments: Sequence[str]) -> int:
    if len(arguments) == 2:
        tally = many(range(int(arguments[0]), int(arguments[1])))
        for row, count in sorted(tally.rows.items()):
            say(f"{count:>12,}  {row}")
        for seed, why in tally.failed.items():
            say(f"{replay(seed)}: {why}")
        say(f"{tally.cases} cases, {len(tally.failed)} failed")
        return bool(tally.failed)
    case = draw(int(arguments[0]))
    why = verdict(case)
    say(why or "nothing wrong")
    if why:
        least = shrink(case)
        say(f"\nshrunk to {len(least.messages)} messages:\n{least}\n{verdict(least)}")
    return bool(why)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The swarm: random cases of a message-passing protocol in the simulator, each first under faults, then on a healed network.

A case is drawn from its seed alone: a topology of 2 to 8 nodes, at least 100 messages of mixed sizes between them, in which
order the receives are posted, the protocol's settings, and at least two kinds of fault on the links. While they last,
nothing wrong may be delivered (safety); once they are lifted everything must arrive (liveness). Then the history is
checked: exactly once, in the order that the interface promises, nothing leaked.

    python -m tests.sim.swarm 4711        run one case again, and shrink it if it fails
    python -m tests.sim.swarm 0 1000      a range of them

Another protocol with posted sends and receives is another `Subject`.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, cast

from protocols.core.completion import Completion
from protocols.core.firmware import Host, Plug
from protocols.emp import host as emp
from protocols.emp.settings import Settings
from testbed.engine.sources import Source, source
from testbed.sim.sim_node import SimNode
from testbed.sim.simulation import Simulation, StalledError
from testbed.spec.layout import Impairment
from tests.sim.swarm_faults import (
    CALM,
    MICROSECOND,
    MILLISECOND,
    SECOND,
    Cut,
    Violation,
    calmer,
    cut_and_mend,
    draw_faults,
    draw_shape,
    layout_of,
    unwrapped,
)
from tests.sim.trials import Swarm, fewer, without_one

MESSAGES = 100
SIZES = (0, 1, 4, 60, 400, 1455, 1456, 1457, 2000, 2928, 4096, 4097, 6000, 12_000)
LARGEST = max(SIZES)
PATTERN = bytes((i * i // 7 + i) & 0xFF for i in range(LARGEST + 4096))
PATIENCE = 60 * SECOND
"""Virtual time after the faults, in which a case must have ended."""


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
    def post_probe(self, source: int, tag: int, *, claim: bool) -> Completion[emp.Found | None]: ...
    def post_claimed(self, found: emp.Found, buffer: bytearray) -> Completion[emp.Received]: ...
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
class Case:
    """Random case of EMP.

    settings: the protocol's. eager: all sends are posted at once and the receives a few at a time; otherwise the other
    way round. wild: of each node, whether its receives name sources and tags ("no"), tags ("source") or nothing
    ("all"). links: impairment of each until the faults end.
    """

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


def draw(seed: int, subject: Subject = EMP) -> Case:
    """The case of a seed."""
    chance = source(seed, f"case of {subject.name}")
    shape, nodes = draw_shape(chance)
    eager = chance.random() < 0.5
    tags = chance.choice((1, 2, 5))
    largest = chance.choice((5, 9, 9, len(SIZES)))
    messages = tuple([
        Message(chance.below(nodes), chance.below(nodes), chance.below(tags), SIZES[chance.below(largest)])
        for _ in range(MESSAGES + chance.below(20))
    ])  # fmt: skip
    links, cuts, until = draw_faults(chance, layout_of(shape, nodes))
    return Case(
        seed, shape, nodes, tuple(subject.settings(chance, eager).items()), messages, eager, 1 + chance.below(8),
        tuple([chance.choice(("no", "no", "source", "all")) for _ in range(nodes)]), links, cuts, until,
    )  # fmt: skip


def payload(number: int, size: int) -> bytes:
    """Return the content of a message; contents differ as far as their size allows."""
    return PATTERN[number * 31 % 4096 :][:size]


@dataclass(frozen=True, slots=True)
class Took:
    """Posted receive: its buffer, its result, and the buffer's content at that time."""

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
    """Wait for a completion that must not fail. Raises Violation if it does."""
    try:
        return await completion
    except emp.EmpError as error:
        raise Violation(f"{completion} failed: {error}") from error


@unwrapped()
def run(case: Case, subject: Subject = EMP, patience: int = PATIENCE) -> Counter[str]:
    """Run a case; return its NICs' counters. Raises Violation, at the latest after `patience` ns on a healed network."""
    layout = layout_of(case.shape, case.nodes)
    names = [link.name for link in layout.links]
    with Simulation(layout, subject.plug(dict(case.settings)), seed=case.seed) as simulation:
        for name, impairment in zip(names, case.links, strict=True):
            simulation.change(name, impairment)
        free = {name: cast(Matching, node.endpoint).free for name, node in simulation.nodes.items()}
        for node in layout.nodes:
            simulation.spawn(node.name, send_all, case)
        receivers = [simulation.spawn(node.name, receive_all, case) for node in layout.nodes]
        cut_and_mend(simulation, names, case.cuts)
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


def smaller(case: Case) -> Iterator[Case]:
    """Yield reduced cases, the largest reductions first."""
    for messages in fewer(case.messages):
        yield replace(case, messages=messages)
    for cuts in without_one(case.cuts):
        yield replace(case, cuts=cuts)
    for links in calmer(case.links):
        yield replace(case, links=links)


SWARM = Swarm("python -m tests.sim.swarm", draw, run, smaller)


if __name__ == "__main__":
    sys.exit(SWARM.main(sys.argv[1:]))

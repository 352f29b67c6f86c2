"""The message swarm: random cases of a message-passing protocol in the simulator, each first under faults, then on a healed
network.

A case is drawn from its seed alone: a topology of 2 to 8 nodes, at least 100 messages of mixed sizes between their ranks, in
which order the receives are posted, the protocol's settings, and at least two kinds of fault on the links. While they last,
nothing wrong may be delivered (safety); once they are lifted everything must arrive (liveness). Then the history is
checked: exactly once, in the order that the interface promises, nothing left over.

A protocol is a `Subject`. Its messages go through a `Transport`: MPI's device, or a host library's own sends and receives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Protocol

from protocols.core.completion import Completion
from protocols.core.firmware import Plug
from protocols.mpi.constants import ANY_SOURCE, ANY_TAG
from protocols.mpi.device import Device
from protocols.mpi.mpi_errors import MPIError
from testbed.controller.conformance.exchanges import reuse
from testbed.controller.conformance.network_faults import (
    CALM,
    KINDS,
    MICROSECOND,
    MILLISECOND,
    SECOND,
    Cut,
    calmer,
    cut_and_mend,
    draw_faults,
    draw_shape,
    layout_of,
)
from testbed.controller.conformance.trials import Violation, fewer, judged, without_one
from testbed.engine.sources import Source, source
from testbed.sim.sim_node import SimNode
from testbed.sim.simulation import Simulation, StalledError
from testbed.spec.layout import Impairment
from testbed.spec.placement import with_ranks

MESSAGES: Final = 100
SIZES: Final = (0, 1, 4, 60, 400, 1455, 1456, 1457, 2000, 2928, 4096, 4097, 6000, 12_000)
LARGEST: Final = max(SIZES)
PATTERN: Final = bytes((i * i // 7 + i) & 0xFF for i in range(LARGEST + 4096))
TIMEOUT: Final = 60 * SECOND
"""Virtual time after the faults, in which a case must have ended."""
REST: Final = 400 * MILLISECOND
"""Virtual time in which acknowledgements, credits and commands that no program waits for have come."""


class Received(Protocol):
    @property
    def source(self) -> int: ...
    @property
    def tag(self) -> int: ...
    @property
    def length(self) -> int: ...


class Transport(Protocol):
    """Sends and receives of one rank. wildcards: the source and the tag that stand for any. failures: errors of
    completions."""

    @property
    def wildcards(self) -> tuple[int, int]: ...

    @property
    def failures(self) -> tuple[type[Exception], ...]: ...

    async def connect(self) -> None:
        """Make the connections that a program is to find."""

    def send(self, destination: int, tag: int, data: bytearray, synchronous: bool) -> Completion[Any]: ...

    def receive(self, source: int, tag: int, buffer: bytearray) -> Completion[Any]:
        """Post a receive; its completion has a `Received`."""


class DeviceTransport:
    """Messages by MPI's device."""

    wildcards = (ANY_SOURCE, ANY_TAG)
    failures: tuple[type[Exception], ...] = (MPIError,)

    def __init__(self, device: Device) -> None:
        self.device: Final = device

    async def connect(self) -> None:
        await self.device.connect()

    def send(self, destination: int, tag: int, data: bytearray, synchronous: bool) -> Completion[Any]:
        return self.device.send(destination, 0, tag, memoryview(data), synchronous)

    def receive(self, source: int, tag: int, buffer: bytearray) -> Completion[Any]:
        return self.device.receive(source, 0, tag, memoryview(buffer))


@dataclass(frozen=True, slots=True)
class Message:
    """Message from a rank to another one, or itself."""

    source: int
    sink: int
    tag: int
    size: int


@dataclass(frozen=True, slots=True)
class Case:
    """Random case.

    settings: the protocol's. eager: all sends are posted at once and the receives a few at a time; otherwise the other
    way round. wild: of each rank, whether its receives name sources and tags ("no"), tags ("source") or nothing ("all").
    links: impairment of each until the faults end. per_node: ranks of a node. synchronous: one of so many messages is
    sent synchronously; 0: none.
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
    per_node: int = 1
    synchronous: int = 0


def no_settings(_chance: Source, _eager: bool) -> dict[str, int]:
    return {}


def _no_check(_nodes: Sequence[SimNode], _transports: Sequence[Any]) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Subject:
    """A protocol.

    settings: those of one case, drawn. plug: the protocol with them. transport: of a rank, on a NIC that has not sent
    yet. sizes: of messages, small ones first. is_mpi: cases have several ranks on a node, and synchronous messages. faults:
    kinds that links may have. rest: virtual time after the programs, in which everything comes to rest. check: is then given
    all ranks, with their transports; raises Violation.
    """

    name: str
    plug: Callable[[dict[str, int]], Plug]
    transport: Callable[[SimNode], Transport]
    settings: Callable[[Source, bool], dict[str, int]] = no_settings
    sizes: Sequence[int] = SIZES
    is_mpi: bool = True
    faults: Sequence[str] = KINDS
    rest: int = REST
    check: Callable[[Sequence[SimNode], Sequence[Any]], None] = _no_check


def draw(seed: int, subject: Subject) -> Case:
    """The case of a seed."""
    chance = source(seed, f"case of {subject.name}")
    shape, nodes = draw_shape(chance)
    eager = chance.random() < 0.5
    tags = chance.choice((1, 2, 5))
    sizes = subject.sizes
    largest = chance.choice((5, 9, 9, len(SIZES)))
    messages = tuple([
        Message(chance.below(nodes), chance.below(nodes), chance.below(tags), sizes[chance.below(min(largest, len(sizes)))])
        for _ in range(MESSAGES + chance.below(20))
    ])  # fmt: skip
    links, cuts, until = draw_faults(chance, layout_of(shape, nodes), subject.faults)
    case = Case(
        seed, shape, nodes, tuple(subject.settings(chance, eager).items()), messages, eager, 1 + chance.below(8),
        tuple([chance.choice(("no", "no", "source", "all")) for _ in range(nodes)]), links, cuts, until,
    )  # fmt: skip
    return _with_ranks(case) if subject.is_mpi else case


def _with_ranks(case: Case) -> Case:
    """Return a case with several ranks on each node, or one, and with synchronous messages."""
    chance = source(case.seed, "ranks")
    per_node = chance.choice((1, 1, 2))
    if per_node > 1:
        ranks = case.nodes * per_node
        messages = [replace(one, source=chance.below(ranks), sink=chance.below(ranks)) for one in case.messages]
        case = replace(case, messages=tuple(messages), wild=case.wild * per_node)
    return replace(case, per_node=per_node, synchronous=chance.choice((3, 10, 1_000)))


def payload(number: int, size: int) -> bytes:
    """Return the content of a message; contents differ as far as their size allows."""
    return PATTERN[number * 31 % 4096 :][:size]


@dataclass(frozen=True, slots=True)
class Took:
    """Posted receive: its buffer, its result, and the buffer's content at that time."""

    buffer: bytearray
    received: Received
    data: bytes


class Rank:
    """Programs of one rank in a case."""

    def __init__(self, transport: Transport, node: SimNode, case: Case) -> None:
        self._transport = transport
        self._node = node
        self._case = case

    async def send_all(self, _host: object, node: SimNode) -> None:
        case, transport = self._case, self._transport
        await self._connect()
        chance = source(case.seed, f"sends of {node.name}")
        under_way: list[Completion[Any]] = []
        for number, message in enumerate(case.messages):
            if message.source != node.number:
                continue
            memory = bytearray(payload(number, message.size))
            # An eager program has no receive yet: a synchronous send would wait for it.
            synchronous = bool(case.synchronous) and number % case.synchronous == 1 and not case.eager
            under_way.append(transport.send(message.sink, message.tag, memory, synchronous))
            under_way[-1].add_callback(partial(reuse, memory))
            if not case.eager and len(under_way) >= case.outstanding:
                await self._fine(under_way.pop(0))
            if chance.random() < 0.3:
                await node.sleep(chance.below(300 * MICROSECOND))
        for completion in under_way:
            await self._fine(completion)

    async def receive_all(self, _host: object, node: SimNode) -> list[Took]:
        case, transport = self._case, self._transport
        chance = source(case.seed, f"receives of {node.name}")
        mine = [message for message in case.messages if message.sink == node.number]
        chance.shuffle(mine)
        wild = case.wild[node.number]
        any_source, any_tag = transport.wildcards
        posted: list[tuple[Completion[Any], bytearray]] = []
        took: list[Took] = []
        for message in mine:
            if case.eager and len(posted) - len(took) >= case.outstanding:
                took.append(await self._taken(*posted[len(took)]))
            origin = message.source if wild == "no" else any_source
            tag = any_tag if wild == "all" else message.tag
            buffer = bytearray(LARGEST)
            posted.append((transport.receive(origin, tag, buffer), buffer))
            if chance.random() < 0.3:
                await node.sleep(chance.below(500 * MICROSECOND))
        for one in posted[len(took) :]:
            took.append(await self._taken(*one))
        return took

    async def _connect(self) -> None:
        try:
            await self._transport.connect()
        except self._transport.failures as error:
            raise Violation(f"{self._node.name} is not connected: {error}") from error

    async def _taken(self, completion: Completion[Any], buffer: bytearray) -> Took:
        received: Received = await self._fine(completion)
        return Took(buffer, received, bytes(buffer[: received.length]))

    async def _fine(self, completion: Completion[Any]) -> Any:
        """Wait for a completion that must not fail. Raises Violation if it does."""
        try:
            return await completion
        except self._transport.failures as error:
            raise Violation(f"{completion} failed: {error}") from error


@judged()
def run(case: Case, subject: Subject, timeout: int = TIMEOUT) -> Counter[str]:
    """Run a case; return its NICs' counters. Raises Violation, at the latest after `timeout` ns on a healed network."""
    layout = layout_of(case.shape, case.nodes)
    names = [link.name for link in layout.links]
    if case.per_node > 1:
        layout = with_ranks(layout, case.per_node, {node.name: 1 for node in layout.nodes})
    with Simulation(layout, subject.plug(dict(case.settings)), seed=case.seed) as simulation:
        for name, impairment in zip(names, case.links, strict=True):
            simulation.change(name, impairment)
        nodes = list(simulation.nodes.values())
        transports = [subject.transport(node) for node in nodes]
        receivers = []
        for node, transport in zip(nodes, transports, strict=True):
            rank = Rank(transport, node, case)
            simulation.spawn(node.name, rank.send_all)
            receivers.append(simulation.spawn(node.name, rank.receive_all))
        cut_and_mend(simulation, names, case.cuts)
        simulation.run_until(case.until)
        for name in names:
            simulation.mend(name)
            simulation.change(name, CALM)
        try:
            simulation.run(timeout=timeout)
        except StalledError as error:
            raise Violation(f"no progress on a healed network: {error}") from error
        for number, task in enumerate(receivers):
            check_node(case, number, task.result())
        simulation.run_until(simulation.now() + subject.rest)
        rows: Counter[str] = Counter()
        for node in nodes:
            rows.update(node.agent.firmware.counted())
            if left := [*node.agent.host.waiting(), *node.agent.firmware.waiting()]:
                raise Violation(f"{node.name} is not done: {left}")
            if node.agent.firmware.deadline is not None:
                raise Violation(f"{node.name}: nothing is under way, and a timer runs")
        subject.check(nodes, transports)
        return rows


def check_node(case: Case, rank: int, took: Sequence[Took]) -> None:
    """Exactly once, and never overtaking: receives that one message fits take messages of one source in the order in which
    they were sent. Raises Violation."""
    by_tag = case.wild[rank] != "all"
    lanes: dict[tuple[int, int], list[tuple[int, Message]]] = {}
    for number, message in enumerate(case.messages):
        if message.sink == rank:
            lanes.setdefault((message.source, message.tag if by_tag else 0), []).append((number, message))
    for one in took:
        origin, tag, length = one.received.source, one.received.tag, one.received.length
        lane = lanes.get((origin, tag if by_tag else 0))
        if not lane:
            raise Violation(f"rank {rank}: a message from {origin}, tag {tag}, that was not sent, or not so often")
        number, message = lane.pop(0)
        if message.tag != tag or length != message.size or one.data != payload(number, message.size):
            raise Violation(f"rank {rank}: instead of message {number} ({message}) came {one.received}")
        if one.buffer[:length] != one.data or one.buffer.count(0, length) != LARGEST - length:
            raise Violation(
                f"rank {rank}: more was written than message {number} ({message}), or later than it was told"
            )
    missing = sum(len(lane) for lane in lanes.values())
    if missing:
        raise Violation(f"rank {rank}: {missing} messages did not come")


def smaller(case: Case) -> Iterator[Case]:
    """Yield reduced cases, the largest reductions first."""
    for messages in fewer(case.messages):
        yield replace(case, messages=messages)
    for cuts in without_one(case.cuts):
        yield replace(case, cuts=cuts)
    for links in calmer(case.links):
        yield replace(case, links=links)

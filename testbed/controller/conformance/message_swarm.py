"""The message swarm: random cases of a message-passing protocol in the simulator, each first under faults, then on a healed
network.

A case is drawn from its seed: a topology of 2 to 8 nodes, at least 100 messages of mixed sizes between their ranks, the
order in which receives are posted, the protocol's settings, and at least two kinds of fault on the links. Under faults, no
wrong message may be delivered (safety); once they are lifted, all messages must arrive (liveness). Then each message must
have been received exactly once and in the order that the interface guarantees, and no operation or timer may be left.

A protocol is a `Subject`. Its messages are sent by a `Transport`: MPI's device, or sends and receives of a host library.
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
    DELAY_ONLY,
    KINDS,
    MICROSECOND,
    MILLISECOND,
    SECOND,
    Cut,
    draw_faults,
    draw_shape,
    layout_of,
    run_cuts,
    without_impairment,
)
from testbed.controller.conformance.trials import Violation, errors_as_violations, fewer, without_one
from testbed.engine.sources import Source, source
from testbed.sim.sim_node import SimNode
from testbed.sim.simulation import Simulation, StalledError
from testbed.spec.layout import Impairment
from testbed.spec.placement import with_ranks

MIN_MESSAGES: Final = 100  # of a case
SIZES: Final = (0, 1, 4, 60, 400, 1455, 1456, 1457, 2000, 2928, 4096, 4097, 6000, 12_000)
MAX_SIZE: Final = max(SIZES)
PATTERN: Final = bytes((i * i // 7 + i) & 0xFF for i in range(MAX_SIZE + 4096))
TIMEOUT: Final = 60 * SECOND
"""Virtual time after the faults in which a case must end, nanoseconds."""
REST: Final = 400 * MILLISECOND
"""Virtual time in which acknowledgements, credits and commands that no program waits for arrive, nanoseconds."""


class Received(Protocol):
    """Envelope of a received message. length: bytes."""

    @property
    def source(self) -> int: ...
    @property
    def tag(self) -> int: ...
    @property
    def length(self) -> int: ...


class Transport(Protocol):
    """Sends and receives of one rank. wildcards: source and tag that match any. failures: exception types of completions."""

    @property
    def wildcards(self) -> tuple[int, int]: ...

    @property
    def failures(self) -> tuple[type[Exception], ...]: ...

    async def connect(self) -> None:
        """Connect to all peers before the program begins."""

    def send(self, destination: int, tag: int, data: bytearray, synchronous: bool) -> Completion[Any]: ...

    def receive(self, source: int, tag: int, buffer: bytearray) -> Completion[Any]:
        """Post a receive, whose completion has a `Received` as its result."""


class DeviceTransport:
    """Transport by MPI's device."""

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
    """Message from a rank to another rank or itself."""

    source: int
    sink: int
    tag: int
    size: int


@dataclass(frozen=True, slots=True)
class Case:
    """Random case.

    settings: settings of the protocol. eager: all sends are posted at once, and receives a few (`outstanding`) at a time;
    otherwise vice versa. wild: wildcards of each rank's receives: none ("no"), of the source ("source"), or of source and
    tag ("all"). links: impairment of each link until the faults end. until: end of the faults, virtual nanoseconds.
    per_node: ranks per node. synchronous: interval of synchronous messages, in messages; 0: none.
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


def no_settings(_rng: Source, _eager: bool) -> dict[str, int]:
    return {}


def _no_check(_nodes: Sequence[SimNode], _transports: Sequence[Any]) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Subject:
    """A protocol.

    settings: draws the settings of a case. plug: builds the protocol with settings. transport: transport of a rank whose
    NIC has not sent yet. sizes: sizes of messages, ascending. is_mpi: whether cases have several ranks on a node, and
    synchronous messages. faults: kinds of faults on links. rest: virtual time after the programs in which the network
    becomes idle. check: called after that with all ranks and their transports; raises Violation.
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
    """Draw the case of a seed."""
    rng = source(seed, f"case of {subject.name}")
    shape, nodes = draw_shape(rng)
    eager = rng.random() < 0.5
    tags = rng.choice((1, 2, 5))
    sizes = subject.sizes
    size_count = rng.choice((5, 9, 9, len(SIZES)))
    size_count = min(size_count, len(sizes))
    messages = tuple([
        Message(rng.below(nodes), rng.below(nodes), rng.below(tags), sizes[rng.below(size_count)])
        for _ in range(MIN_MESSAGES + rng.below(20))
    ])  # fmt: skip
    links, cuts, until = draw_faults(rng, layout_of(shape, nodes), subject.faults)
    case = Case(
        seed, shape, nodes, tuple(subject.settings(rng, eager).items()), messages, eager, 1 + rng.below(8),
        tuple([rng.choice(("no", "no", "source", "all")) for _ in range(nodes)]), links, cuts, until,
    )  # fmt: skip
    return _with_ranks(case) if subject.is_mpi else case


def _with_ranks(case: Case) -> Case:
    """Return the case with a drawn number of ranks per node and a drawn share of synchronous messages."""
    rng = source(case.seed, "ranks")
    per_node = rng.choice((1, 1, 2))
    if per_node > 1:
        ranks = case.nodes * per_node
        messages = [replace(message, source=rng.below(ranks), sink=rng.below(ranks)) for message in case.messages]
        case = replace(case, messages=tuple(messages), wild=case.wild * per_node)
    return replace(case, per_node=per_node, synchronous=rng.choice((3, 10, 1_000)))


def payload(number: int, size: int) -> bytes:
    """Return the content of message `number`; contents differ as far as their size allows."""
    return PATTERN[number * 31 % 4096 :][:size]


@dataclass(frozen=True, slots=True)
class CompletedReceive:
    """Completed receive: its buffer, its result, and the content of the buffer on completion."""

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
        """Send all messages of this rank."""
        case, transport = self._case, self._transport
        await self._connect()
        rng = source(case.seed, f"sends of {node.name}")
        pending: list[Completion[Any]] = []
        for number, message in enumerate(case.messages):
            if message.source != node.number:
                continue
            memory = bytearray(payload(number, message.size))
            # The receives of an eager case are posted later, and a synchronous send would wait for them.
            synchronous = bool(case.synchronous) and number % case.synchronous == 1 and not case.eager
            pending.append(transport.send(message.sink, message.tag, memory, synchronous))
            pending[-1].add_callback(partial(reuse, memory))
            if not case.eager and len(pending) >= case.outstanding:
                await self._succeed(pending.pop(0))
            if rng.random() < 0.3:
                await node.sleep(rng.below(300 * MICROSECOND))
        for completion in pending:
            await self._succeed(completion)

    async def receive_all(self, _host: object, node: SimNode) -> list[CompletedReceive]:
        """Receive all messages to this rank."""
        case, transport = self._case, self._transport
        rng = source(case.seed, f"receives of {node.name}")
        incoming = [message for message in case.messages if message.sink == node.number]
        rng.shuffle(incoming)
        wild = case.wild[node.number]
        any_source, any_tag = transport.wildcards
        posted: list[tuple[Completion[Any], bytearray]] = []
        completed: list[CompletedReceive] = []
        for message in incoming:
            if case.eager and len(posted) - len(completed) >= case.outstanding:
                completed.append(await self._complete(*posted[len(completed)]))
            origin = message.source if wild == "no" else any_source
            tag = any_tag if wild == "all" else message.tag
            buffer = bytearray(MAX_SIZE)
            posted.append((transport.receive(origin, tag, buffer), buffer))
            if rng.random() < 0.3:
                await node.sleep(rng.below(500 * MICROSECOND))
        for completion, buffer in posted[len(completed) :]:
            completed.append(await self._complete(completion, buffer))
        return completed

    async def _connect(self) -> None:
        try:
            await self._transport.connect()
        except self._transport.failures as error:
            raise Violation(f"{self._node.name} cannot connect: {error}") from error

    async def _complete(self, completion: Completion[Any], buffer: bytearray) -> CompletedReceive:
        received: Received = await self._succeed(completion)
        return CompletedReceive(buffer, received, bytes(buffer[: received.length]))

    async def _succeed(self, completion: Completion[Any]) -> Any:
        """Wait for a completion. Raises Violation if it fails."""
        try:
            return await completion
        except self._transport.failures as error:
            raise Violation(f"{completion} failed: {error}") from error


@errors_as_violations()
def run(case: Case, subject: Subject, timeout: int = TIMEOUT) -> Counter[str]:
    """Run a case; return the sums of its NICs' counters. timeout: on the healed network, virtual nanoseconds. Raises
    Violation."""
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
        run_cuts(simulation, names, case.cuts)
        simulation.run_until(case.until)
        for name in names:
            simulation.restore(name)
            simulation.change(name, DELAY_ONLY)
        try:
            simulation.run(timeout=timeout)
        except StalledError as error:
            raise Violation(f"no progress on a healed network: {error}") from error
        for number, task in enumerate(receivers):
            check_receives(case, number, task.result())
        simulation.run_until(simulation.now() + subject.rest)
        counters: Counter[str] = Counter()
        for node in nodes:
            counters.update(node.agent.firmware.counter_values())
            if pending := [*node.agent.host.pending_work(), *node.agent.firmware.pending_work()]:
                raise Violation(f"{node.name} has pending operations: {pending}")
            if node.agent.firmware.deadline is not None:
                raise Violation(f"{node.name}: no operation is pending, but a timer runs")
        subject.check(nodes, transports)
        return counters


def check_receives(case: Case, rank: int, receives: Sequence[CompletedReceive]) -> None:
    """Check that a rank received each message exactly once, and the messages of each channel in the order of their
    sends. The messages of a channel match the same receives. Raises Violation."""
    by_tag = case.wild[rank] != "all"
    channels: dict[tuple[int, int], list[tuple[int, Message]]] = {}
    for number, message in enumerate(case.messages):
        if message.sink == rank:
            channels.setdefault((message.source, message.tag if by_tag else 0), []).append((number, message))
    for receive in receives:
        origin, tag, length = receive.received.source, receive.received.tag, receive.received.length
        channel = channels.get((origin, tag if by_tag else 0))
        if not channel:
            raise Violation(
                f"rank {rank} received a message from {origin}, tag {tag}, that was not sent, or once too often"
            )
        number, message = channel.pop(0)
        if message.tag != tag or length != message.size or receive.data != payload(number, message.size):
            raise Violation(f"rank {rank}: expected message {number} ({message}), received {receive.received}")
        if receive.buffer[:length] != receive.data or receive.buffer.count(0, length) != MAX_SIZE - length:
            raise Violation(
                f"rank {rank}: the buffer of message {number} ({message}) was written beyond its end or after completion"
            )
    missing = sum(len(channel) for channel in channels.values())
    if missing:
        raise Violation(f"rank {rank}: {missing} messages were not received")


def smaller(case: Case) -> Iterator[Case]:
    """Yield reduced cases, the largest reductions first."""
    for messages in fewer(case.messages):
        yield replace(case, messages=messages)
    for cuts in without_one(case.cuts):
        yield replace(case, cuts=cuts)
    for links in without_impairment(case.links):
        yield replace(case, links=links)

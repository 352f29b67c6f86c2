"""Random cases of VIPL calls: VIs are connected, used, reset and reconnected; some peers violate access rights.

In each round of a connection both sides post their receives, connect, transfer by Send, RDMA Write and RDMA Read, end with
a fenced Send, and disconnect; the next round reuses the VI. In a hostile round one transfer is forbidden: it must break the
connection and touch nothing. Every reliable level is drawn.

    python -m tests.sim.via_verbs_swarm 4711
    python -m tests.sim.via_verbs_swarm 0 1000
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar, cast

from protocols.via.host import ViaNic
from protocols.via.vip_descriptors import Memory, Segment
from protocols.via.vipl_names import (
    IMMEDIATE,
    OP_RDMAREAD,
    OP_RDMAWRITE,
    OP_SENDRECV,
    QFENCE,
    Reliability,
    ViaError,
    ViState,
)
from protocols.via.virtual_interface import Descriptor, Vi
from testbed.controller.conformance.message_swarm import PATTERN
from testbed.controller.conformance.network_faults import (
    DELAY_ONLY,
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
from testbed.controller.conformance.trials import Swarm, Violation, without_one
from testbed.engine.sources import Source, source
from testbed.engine.tasks import Task
from testbed.sim.sim_node import SimNode
from testbed.sim.simulation import Simulation, StalledError
from testbed.spec.layout import Impairment
from testbed.spec.placement import with_ranks
from tests.sim.unwrapped_errors import unwrapped
from tests.sim.via_swarm import VIA

TIMEOUT: Final = 60 * SECOND
QUIET_PERIOD: Final = 2 * SECOND
SIZE: Final = 4096
"""Bytes of a side's memory that its peer may write and read, and of that from which it sends."""
GUARD: Final = 64
"""Bytes behind each memory that must not change."""
PART_SIZE: Final = 512
"""Bytes of a part of a memory; each transfer of a round has its own part."""
UNTOUCHED: Final = 0xEE
FORBIDDEN: Final = ("beyond", "handle", "tag", "permission")


@dataclass(frozen=True, slots=True)
class Round:
    """transfers: transfers of each side, its operations: "send", "write", "notify" (a write with immediate data) or "read".
    hostile: the first side's forbidden access at the end; "" for none."""

    transfers: tuple[tuple[str, ...], tuple[str, ...]]
    hostile: str


@dataclass(frozen=True, slots=True)
class Session:
    """The rounds of a pair of VIs on two nodes."""

    nodes: tuple[int, int]
    level: Reliability
    rounds: tuple[Round, ...]


AnySession = TypeVar("AnySession")


@dataclass(frozen=True, slots=True)
class Case(Generic[AnySession]):
    """sessions: what each pair of VIs does. links: impairment of each until the faults end. per_node: ranks of a node."""

    seed: int
    shape: str
    nodes: int
    settings: tuple[tuple[str, int], ...]
    sessions: tuple[AnySession, ...]
    links: tuple[Impairment, ...]
    cuts: tuple[Cut, ...]
    until: int
    per_node: int = 1


def draw(seed: int) -> Case[Session]:
    """Draw the case of a seed."""
    rng = source(seed, "case of VIA's calls")
    shape, nodes = draw_shape(rng)
    sessions = []
    for _ in range(2 + rng.below(5)):
        first = rng.below(nodes)
        second = (first + 1 + rng.below(nodes - 1)) % nodes
        level = rng.choice((Reliability.RELIABLE_DELIVERY, Reliability.RELIABLE_RECEPTION))
        sessions.append(Session((first, second), level, tuple([_draw_round(rng) for _ in range(2 + rng.below(3))])))
    links, cuts, faults_end = draw_faults(rng, layout_of(shape, nodes))
    settings = VIA.settings(rng, False)
    return Case(seed, shape, nodes, tuple(settings.items()), tuple(sessions), links, cuts, faults_end)


def _draw_round(rng: Source) -> Round:
    kinds = ("send", "write", "notify", "read")
    sides = [tuple([rng.choice(kinds) for _ in range(1 + rng.below(SIZE // PART_SIZE))]) for _ in range(2)]
    return Round((sides[0], sides[1]), rng.choice(("", "", *FORBIDDEN)))


def content(session: int, number: int, side: int, index: int, size: int = PART_SIZE) -> bytes:
    """Return the bytes of a transfer, which differ from all others'."""
    head = bytes((session, number, side, index))
    return (head + PATTERN[index * 97 :])[:size]


class Side:
    """One side of a session: its VI and memory, through all rounds."""

    def __init__(self, nic: ViaNic, node: SimNode, case: Case[Session], number: int, side: int) -> None:
        self.nic = nic
        self.node = node
        self.number = number
        self.side = side
        self.session = case.sessions[number]
        self.rng = source(case.seed, f"session {number}, side {side}")
        self.out = self._buffer()  # its sends and RDMA reads
        self.open = self._buffer()  # accessible to its peer
        self.secret = self._buffer()  # not accessible to its peer
        self.memories: list[Memory] = []
        self.vi: Vi
        self.peer: Side

    def _buffer(self) -> bytearray:
        return bytearray([UNTOUCHED]) * (SIZE + GUARD)

    async def run(self, _nic: object, _node: object) -> None:
        """Run all rounds. Raises Violation, also where a call fails."""
        try:
            await self._run()
        except ViaError as error:
            raise Violation(f"session {self.number}: a call failed: {error}") from error

    async def _run(self) -> None:
        nic = self.nic
        ptag, other_ptag = await nic.create_ptag(), await nic.create_ptag()
        registered = []
        for buffer, tag, is_open in ((self.out, ptag, False), (self.open, ptag, True), (self.secret, other_ptag, True)):
            view = memoryview(buffer)[:SIZE]
            registered.append(await nic.register(view, tag, rdma_write=is_open, rdma_read=is_open))
        self.memories = registered
        self.vi = await nic.create_vi(ptag, self.session.level, rdma_read=True)
        for number, round_ in enumerate(self.session.rounds):
            await self._run_round(number, round_)
        await self.vi.destroy()
        for memory in registered:
            await nic.deregister(memory)

    async def _run_round(self, number: int, round_: Round) -> None:
        peer_transfers = round_.transfers[1 - self.side]
        for buffer in (self.out, self.open):
            buffer[:] = self._buffer()
        for index in range(SIZE // PART_SIZE):  # read by the peer
            self.open[index * PART_SIZE : (index + 1) * PART_SIZE] = content(
                self.number, number, self.side, 100 + index
            )
        receives = [bytearray(PART_SIZE) for kind in peer_transfers if kind in ("send", "notify")] + [bytearray(8)]
        memories, receives_posted = [], []
        for buffer in receives:
            memories.append(await self.nic.register(memoryview(buffer), self.memories[0].ptag))
            receives_posted.append(Descriptor(data=(memories[-1].segment(),)))
            self.vi.post_receive(receives_posted[-1])
        await self.vi.connect_peer(self.peer.nic.number, b"%d.%d" % (self.number, number))
        if round_.hostile:
            await self._violate(round_)
        else:
            await self._transfer(number, round_, receives_posted, receives)
        await self.vi.disconnect()
        self._flushed()
        while self.vi.send_queue.done() is not None:
            pass
        for memory in memories:
            await self.nic.deregister(memory)
        self._check_guards()

    def _flushed(self) -> list[Descriptor]:
        """Return the receives that a reset has flushed."""
        flushed = []
        while (descriptor := self.vi.receive_queue.done()) is not None:
            flushed.append(descriptor)
        return flushed

    async def _transfer(self, number: int, round_: Round, posted: list[Descriptor], receives: list[bytearray]) -> None:
        own_transfers = round_.transfers[self.side]
        for index, kind in enumerate(own_transfers):
            self._post(number, index, kind)
            if self.rng.random() < 0.3:
                await self.node.sleep(self.rng.below(300 * MICROSECOND))
        fin = Descriptor(OP_SENDRECV | QFENCE, (self.memories[0].segment(0, 0),))
        self.vi.post_send(fin)
        for descriptor in posted:
            completed = await self.vi.receive_queue.wait()
            if completed is not descriptor:
                raise Violation(f"session {self.number}: a receive of another round, or out of order")
            if completed.has_failed:
                raise Violation(f"session {self.number}, round {number}: a receive failed: {completed.status:#x}")
        self._check_received(number, round_.transfers[1 - self.side], posted, receives)
        while fin.is_posted and self.vi.state is ViState.CONNECTED:
            await self.node.sleep(50 * MICROSECOND)
        for index, kind in enumerate(own_transfers):
            if kind == "read" and not fin.has_failed and not fin.is_posted:
                data = bytes(self.out[index * PART_SIZE : (index + 1) * PART_SIZE])
                if data != content(self.number, number, 1 - self.side, 100 + index):
                    raise Violation(f"session {self.number}, round {number}: read {index} has other bytes")
        await self.node.sleep(self.rng.below(MILLISECOND))

    def _post(self, number: int, index: int, kind: str) -> None:
        start = index * PART_SIZE
        segment = self.memories[0].segment(start, PART_SIZE)
        target = self.peer.memories[1]
        remote = Segment(target.address + start, target.handle)
        if kind == "read":
            self.vi.post_send(Descriptor(OP_RDMAREAD, (segment,), remote))
            return
        self.out[start : start + PART_SIZE] = content(self.number, number, self.side, index)
        if kind == "send":
            self.vi.post_send(Descriptor(OP_SENDRECV, (segment,)))
        else:
            control = OP_RDMAWRITE | (IMMEDIATE if kind == "notify" else 0)
            self.vi.post_send(Descriptor(control, (segment,), remote, index + 1))

    def _check_received(
        self, number: int, peer_transfers: tuple[str, ...], posted: list[Descriptor], receives: list[bytearray]
    ) -> None:
        """Check that everything that the peer sent before its last Send has arrived."""
        with_receive = [(index, kind) for index, kind in enumerate(peer_transfers) if kind in ("send", "notify")]
        for (index, kind), descriptor, buffer in zip(with_receive, posted[:-1], receives[:-1], strict=True):
            if kind == "send" and bytes(buffer) != content(self.number, number, 1 - self.side, index):
                raise Violation(f"session {self.number}, round {number}: send {index} has other bytes")
            if kind == "notify" and descriptor.immediate != index + 1:
                raise Violation(f"session {self.number}, round {number}: immediate data {descriptor.immediate}")
        for index, kind in enumerate(peer_transfers):
            if kind in ("write", "notify"):
                data = bytes(self.open[index * PART_SIZE : (index + 1) * PART_SIZE])
                if data != content(self.number, number, 1 - self.side, index):
                    raise Violation(f"session {self.number}, round {number}: write {index} is not there")

    async def _violate(self, round_: Round) -> None:
        """Let the first side make a forbidden access; both sides lose the connection."""
        if self.side == 0:
            self.vi.post_send(self._forbidden(round_.hostile))
            descriptor = await self.vi.send_queue.wait()
            if not descriptor.has_failed:
                raise Violation(f"session {self.number}: {round_.hostile}: a forbidden access succeeded")
        while self.vi.state is ViState.CONNECTED:
            await self.node.sleep(100 * MICROSECOND)

    def _forbidden(self, kind: str) -> Descriptor:
        peer = self.peer
        target, offset, handle = peer.memories[1], 0, peer.memories[1].handle
        if kind == "beyond":
            offset = SIZE - 8
        elif kind == "handle":
            handle += 1_000
        elif kind == "tag":
            target, handle = peer.memories[2], peer.memories[2].handle
        else:
            target, handle = peer.memories[0], peer.memories[0].handle
        control = OP_RDMAREAD if self.rng.random() < 0.3 else OP_RDMAWRITE
        self.out[:PART_SIZE] = b"\x00" * PART_SIZE
        return Descriptor(control, (self.memories[0].segment(0, PART_SIZE),), Segment(target.address + offset, handle))

    def _check_guards(self) -> None:
        for name, buffer in (("out", self.out), ("open", self.open), ("secret", self.secret)):
            if buffer.count(UNTOUCHED, SIZE) != GUARD:
                raise Violation(f"session {self.number}: bytes behind a memory ({name}) were written")
        if self.secret.count(UNTOUCHED) != SIZE + GUARD:
            raise Violation(f"session {self.number}: memory of another protection tag was written")


@unwrapped()
def run(case: Case[Session], timeout: int = TIMEOUT) -> Counter[str]:
    """Run a case; return its NICs' counters. Raises Violation, at the latest after `timeout` ns on a healed network."""

    def begin(simulation: Simulation) -> list[Task[None]]:
        nodes = list(simulation.nodes.values())
        programs = []
        for number, session in enumerate(case.sessions):
            sides = [
                Side(cast(ViaNic, nodes[node].endpoint), nodes[node], case, number, side)
                for side, node in enumerate(session.nodes)
            ]
            sides[0].peer, sides[1].peer = sides[1], sides[0]
            programs += [simulation.spawn(side.node.name, side.run) for side in sides]
        return programs

    return play(case, begin, timeout)


def play(
    case: Case[AnySession], begin: Callable[[Simulation], Sequence[Task[None]]], timeout: int = TIMEOUT
) -> Counter[str]:
    """Run a case's programs, which `begin` starts, under its faults; return its NICs' counters. Raises Violation, also if
    they leave something behind."""
    layout = layout_of(case.shape, case.nodes)
    layout = with_ranks(layout, case.per_node, {node.name: 1 for node in layout.nodes})
    names = [link.name for link in layout.links]
    with Simulation(layout, VIA.plug(dict(case.settings)), seed=case.seed) as simulation:
        for name, impairment in zip(names, case.links, strict=True):
            simulation.change(name, impairment)
        programs = begin(simulation)
        run_cuts(simulation, names, case.cuts)
        simulation.run_until(case.until)
        for name in names:
            simulation.restore(name)
            simulation.change(name, DELAY_ONLY)
        try:
            simulation.run(timeout=timeout)
            for program in programs:
                program.result()
        except StalledError as error:
            raise Violation(f"no progress on a healed network: {error}") from error
        simulation.run_until(simulation.now() + QUIET_PERIOD)
        rows: Counter[str] = Counter()
        for node in simulation.nodes.values():
            nic = cast(ViaNic, node.endpoint)
            if nic.registered or nic.settings.slots - nic.free_descriptors > 1:  # a command waits for errors
                raise Violation(
                    f"{node.name} leaks: {nic.registered} registered memories, {nic.free_descriptors} free descriptors"
                )
            if node.agent.firmware.deadline is not None:
                raise Violation(f"{node.name}: a timer is set without a transfer in progress")
            rows.update(node.agent.firmware.counter_values())
        return rows


def reduced_cases(case: Case[AnySession]) -> Iterator[Case[AnySession]]:
    """Yield reduced cases, the largest reductions first."""
    for sessions in without_one(case.sessions):
        yield replace(case, sessions=sessions)
    for cuts in without_one(case.cuts):
        yield replace(case, cuts=cuts)
    for links in without_impairment(case.links):
        yield replace(case, links=links)


SWARM: Final = Swarm("python -m tests.sim.via_verbs_swarm", draw, run, reduced_cases)


if __name__ == "__main__":
    sys.exit(SWARM.main(sys.argv[1:]))

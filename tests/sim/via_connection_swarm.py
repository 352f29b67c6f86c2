"""Swarm of VIA's connections: clients and servers, peers, rejections, requests that are withdrawn or expire.

A node has one or two ranks, and VIs of one NIC connect, too.

Whatever is lost, both sides terminate: a connected side either receives the peer's messages, or learns that the
peer has gone. Where no side gives up, both receive. Nobody receives from a peer that has not been connected.

    python -m tests.sim.via_connection_swarm 4711
    python -m tests.sim.via_connection_swarm 0 1000
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from typing import Final, cast

from protocols.via.host import ViaNic
from protocols.via.vip_descriptors import Memory
from protocols.via.vipl_names import OP_SENDRECV, Result, ViaError, ViState
from protocols.via.virtual_interface import Descriptor, Vi
from testbed.controller.conformance.network_faults import (
    MICROSECOND,
    MILLISECOND,
    draw_faults,
    draw_shape,
    layout_of,
)
from testbed.controller.conformance.trials import Swarm, Violation
from testbed.engine.sources import source
from testbed.engine.tasks import Task
from testbed.sim.sim_node import SimNode
from testbed.sim.simulation import Simulation
from tests.sim import via_verbs_swarm
from tests.sim.unwrapped_errors import unwrapped
from tests.sim.via_swarm import VIA
from tests.sim.via_verbs_swarm import TIMEOUT, Case, play

SIZE: Final = 32
"""Bytes of a message: session, round, side, and their repetition."""
KINDS: Final = ("peers", "served", "rejected", "withdrawn", "expired", "hasty")
"""Kinds of rounds: peers; a server and a client; a server that rejects; a peer that withdraws its request; a client whose
request expires; peers whose requests both
expire soon."""
CERTAIN: Final = ("peers", "served")
"""Kinds of rounds in which both sides receive."""


@dataclass(frozen=True, slots=True)
class Round:
    """delays: ns before each side begins. limits: ns after which each side's request expires, or is withdrawn."""

    kind: str
    delays: tuple[int, int]
    limits: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Session:
    """The rounds of a pair of VIs on two ranks, or one. The second serves in the rounds that have a server."""

    ranks: tuple[int, int]
    rounds: tuple[Round, ...]


def draw(seed: int) -> Case[Session]:
    """Draw the case of a seed."""
    rng = source(seed, "case of VIA's connections")
    shape, nodes = draw_shape(rng)
    per_node = rng.choice((1, 1, 2))
    cut_times = (0, 20 * MICROSECOND, 300 * MICROSECOND, 2 * MILLISECOND, 20 * MILLISECOND)
    sessions = []
    for _ in range(2 + rng.below(5)):
        ranks = (rng.below(nodes * per_node), rng.below(nodes * per_node))
        rounds = [
            Round(
                rng.choice(KINDS),
                (rng.choice(cut_times), rng.choice(cut_times)),
                (1 + rng.choice(cut_times), 1 + rng.choice(cut_times)),
            )
            for _ in range(2 + rng.below(4))
        ]
        sessions.append(Session(ranks, tuple(rounds)))
    links, cuts, faults_end = draw_faults(rng, layout_of(shape, nodes))
    settings = VIA.settings(rng, False)
    return Case(seed, shape, nodes, tuple(settings.items()), tuple(sessions), links, cuts, faults_end, per_node)


def content(session: int, number: int, end: int) -> bytes:
    return bytes((session, number, end, 0xA5)) * (SIZE // 4)


class Side:
    """One side of a session. connected: the rounds in which its VI was connected. finished: number of completed
    rounds. received: rounds in which it received."""

    def __init__(self, nic: ViaNic, node: SimNode, session: Session, number: int, side: int) -> None:
        self.nic = nic
        self.node = node
        self.session = session
        self.number = number
        self.side = side
        self.connected: set[int] = set()
        self.received: set[int] = set()
        self.finished = 0
        self.memory: Memory
        self.buffer = bytearray(2 * SIZE)
        self.vi: Vi
        self.peer: Side
        self._receive: Descriptor

    async def run(self, _nic: object, _node: object) -> None:
        """Run all rounds. Raises Violation, also where a call fails that must not."""
        try:
            ptag = await self.nic.create_ptag()
            self.memory = await self.nic.register(memoryview(self.buffer), ptag)
            self.vi = await self.nic.create_vi(ptag)
            for number, round_ in enumerate(self.session.rounds):
                await self._round(number, round_)
                self.finished = number + 1
            await self.vi.destroy()
            await self.nic.deregister(self.memory)
        except ViaError as error:
            raise Violation(f"{self}: a call failed: {error}") from error

    def __str__(self) -> str:
        return f"session {self.number}, side {self.side}, round {self.finished}"

    async def _round(self, number: int, round_: Round) -> None:
        kind, name = round_.kind, b"%d.%d" % (self.number, number)
        await self.node.sleep(round_.delays[self.side])
        self._post()
        if kind in ("peers", "withdrawn", "hasty"):
            await self._meet(number, round_, name)
        elif self.side:
            await self._serve(number, kind, name)
        else:
            await self._ask(number, round_, name)
        await self._reset()
        if kind in CERTAIN and number not in self.received:
            raise Violation(f"{self}: a receive was flushed")

    async def _meet(self, number: int, round_: Round, name: bytes) -> None:
        """Connect to a peer."""
        node, limit = self.peer.nic.number, round_.limits[self.side]
        if round_.kind == "withdrawn" and not self.side:
            self.vi.connect_peer_request(node, name)
            await self.node.sleep(limit)
            return
        try:
            await self.vi.connect_peer(node, name, 0 if round_.kind == "peers" else limit)
        except ViaError as error:
            if round_.kind == "peers":
                raise
            if error.result not in (Result.TIMEOUT, Result.REJECT):
                raise Violation(f"{self}: {error.result.name}") from error
        else:
            await self._exchange(number)

    async def _serve(self, number: int, kind: str, name: bytes) -> None:
        """Accept or reject, until a message has come, or the client has given up."""
        while number not in self.received and self.peer.finished <= number:
            try:
                request = await self.nic.connect_wait(name, timeout=2 * MILLISECOND)
                if kind == "rejected":
                    await self.nic.reject(request)
                    continue
                await self.vi.accept(request)
            except ViaError as error:
                if error.result not in (Result.TIMEOUT, Result.INVALID_PARAMETER):  # the second: it was withdrawn
                    raise
                continue
            await self._exchange(number)
            await self._reset()
            self._post()

    async def _ask(self, number: int, round_: Round, name: bytes) -> None:
        """Request a connection of a server until it answers or the limit expires."""
        limit = round_.limits[0] if round_.kind == "expired" else 0
        while True:
            try:
                await self.vi.connect_request(self.peer.nic.number, name, limit)
            except ViaError as error:
                if error.result is Result.NO_MATCH:  # the server does not wait yet
                    await self.node.sleep(200 * MICROSECOND)
                    continue
                expected = {"rejected": Result.REJECT, "expired": Result.TIMEOUT}.get(round_.kind)
                if error.result is not expected:
                    raise Violation(f"{self}: {error.result.name}") from error
                return
            if round_.kind == "rejected":
                raise Violation(f"{self}: connected to a server that rejects")
            await self._exchange(number)
            return

    def _post(self) -> None:
        self.buffer[:] = bytes(2 * SIZE)
        self._receive = Descriptor(data=(self.memory.segment(0, SIZE),))
        self.vi.post_receive(self._receive)

    async def _exchange(self, number: int) -> None:
        """Send, and receive unless the peer has ended."""
        self.connected.add(number)
        self.buffer[SIZE:] = content(self.number, number, self.side)
        send = Descriptor(OP_SENDRECV, (self.memory.segment(SIZE, SIZE),))
        self.vi.post_send(send)
        while (self._receive.is_posted or send.is_posted) and self.vi.state is ViState.CONNECTED:
            await self.node.sleep(50 * MICROSECOND)
        if self._receive.is_posted or self._receive.has_failed:
            return
        if bytes(self.buffer[:SIZE]) != content(self.number, number, 1 - self.side):
            raise Violation(f"{self}: other bytes were received")
        if number not in self.peer.connected:
            raise Violation(f"{self}: received from a peer that is not connected")
        self.received.add(number)

    async def _reset(self) -> None:
        """Disconnect, and take the flushed descriptors."""
        await self.vi.disconnect()
        for queue in (self.vi.send_queue, self.vi.receive_queue):
            while queue.done() is not None:
                pass


@unwrapped()
def run(case: Case[Session], timeout: int = TIMEOUT) -> Counter[str]:
    """Run a case; return its NICs' counters. Raises Violation, at the latest after `timeout` ns on a healed network."""

    def begin(simulation: Simulation) -> list[Task[None]]:
        nodes = list(simulation.nodes.values())
        programs = []
        for number, session in enumerate(case.sessions):
            programs_of_sides = [
                Side(cast(ViaNic, nodes[rank].endpoint), nodes[rank], session, number, side)
                for side, rank in enumerate(session.ranks)
            ]
            programs_of_sides[0].peer, programs_of_sides[1].peer = programs_of_sides[1], programs_of_sides[0]
            programs += [simulation.spawn(side.node.name, side.run) for side in programs_of_sides]
        return programs

    return play(case, begin, timeout)


SWARM: Final = Swarm("python -m tests.sim.via_connection_swarm", draw, run, via_verbs_swarm.reduced_cases)


if __name__ == "__main__":
    sys.exit(SWARM.main(sys.argv[1:]))

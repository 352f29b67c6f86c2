"""Random schedules of Open-MX on list wires: several endpoints a node, frames lost, duplicated, late and out of order,
reconnections, and restarts of nodes.

The messages must keep the invariants of `openmx_ledger`, and once the wires are healed, everything must complete.
"""

from __future__ import annotations

import random
from collections import deque
from itertools import permutations
from typing import NamedTuple, cast

from protocols.core.memory import HostMemory
from protocols.openmx.endpoint import Endpoint
from protocols.openmx.host import Library, plug
from protocols.openmx.settings import Settings
from tests.unit.protocols.list_wires import Wires
from tests.unit.protocols.openmx_ledger import Direction, Ledger

MAX_SIZE = 40_000
SIZES = (8, 8, 8, 33, 100, 129, 2_000, 5_000, 33_000, MAX_SIZE)
STEPS = 400
MAX_DEADLINES = 4_000
"""Deadlines within which everything completes once the wires are healed."""
MAX_AGE = 2
"""Connections since a frame was sent up to which it may be repeated: sequence numbers distinguish four sessions."""


class SentFrame(NamedTuple):
    """A frame that may be repeated. connections: number of connections when it was sent."""

    frame: bytes
    connections: int


class Schedule:
    """Schedule of a seed. is_calm: connections end only at the schedule's end, and no node restarts."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = random.Random(seed)
        self.is_calm = bool(seed % 2)
        self.restarts = not self.is_calm and seed % 4 == 0
        self.endpoints_per_node = rng.choice((1, 1, 2))
        settings = Settings(
            tick=1_000_000,
            resend=rng.choice((2, 8)),
            resends=0 if self.is_calm else 30,
            acknowledge=rng.choice((1, 4)),
            zombies=rng.choice((0, 2, 512)),
            unacked=rng.choice((2, 40, 8_191)),
            pull_timeout=5_000_000,
            entries=rng.choice((32, 1_024)),
        )
        self.wires = Wires(plug(settings), 2)
        self.ends: list[Endpoint] = [
            self.library(end // self.endpoints_per_node).open_endpoint(end % self.endpoints_per_node)
            for end in range(2 * self.endpoints_per_node)
        ]
        self.incarnations = [0] * len(self.ends)
        self.in_flight: deque[bytes] = deque()
        self.sent_frames: deque[SentFrame] = deque(maxlen=80)
        self.ledger = Ledger(MAX_SIZE)

    def library(self, node: int) -> Library:
        return cast(Library, self.wires.agents[node].host)

    def run(self) -> None:
        """Run the schedule. Raises AssertionError for a violation."""
        for _ in range(STEPS):
            self.step()
        self.heal()
        self.check()

    def step(self) -> None:
        chance = self.rng.random()
        if chance < 0.12:
            self.send(self.direction())
        elif chance < 0.24:
            self.receive(self.direction())
        elif chance < 0.28:
            self.wires.tick()
        elif chance < 0.285 and not self.is_calm:
            self.disconnect()
        elif chance < 0.287 and self.restarts:
            self.restart()
        else:
            self.deliver()
        self.take()

    def direction(self) -> Direction:
        return cast(Direction, tuple(self.rng.sample(range(len(self.ends)), 2)))

    def send(self, direction: Direction) -> None:
        source, sink = direction
        end = self.ends[source]
        partner = end.partner(sink // self.endpoints_per_node, sink % self.endpoints_per_node)
        size, synchronous = self.rng.choice(SIZES), self.rng.random() < 0.2
        self.ledger.send(end, partner, direction, size, synchronous=synchronous)

    def receive(self, direction: Direction) -> None:
        source, sink = direction
        self.ledger.receive(self.ends[sink], sink, source)

    def take(self) -> None:
        connections = self.connections()
        for node in range(2):
            for frame in self.wires.take(node):
                self.in_flight.append(frame)
                self.sent_frames.append(SentFrame(frame, connections))

    def connections(self) -> int:
        return sum(agent.firmware.counter_values()["connections"] for agent in self.wires.agents) + 9 * sum(
            self.incarnations
        )

    def deliver(self) -> None:
        rng = self.rng
        if rng.random() < 0.1 and self.sent_frames:
            late = rng.choice(self.sent_frames)
            if self.connections() - late.connections <= MAX_AGE:
                self.wires.deliver(late.frame)
        if not self.in_flight:
            return
        if rng.random() < 0.2:
            self.in_flight.rotate(rng.randrange(len(self.in_flight)))
        frame = self.in_flight.popleft()
        if rng.random() > 0.1:
            self.wires.deliver(frame)

    def disconnect(self) -> None:
        source, sink = self.direction()
        self.ends[source].disconnect(
            self.ends[source].partner(sink // self.endpoints_per_node, sink % self.endpoints_per_node)
        )

    def restart(self) -> None:
        node = self.rng.randrange(2)
        for end in range(node * self.endpoints_per_node, (node + 1) * self.endpoints_per_node):
            self.ends[end].close()
        self.wires.restart(node)
        for end in range(node * self.endpoints_per_node, (node + 1) * self.endpoints_per_node):
            self.ends[end] = self.library(node).open_endpoint(end % self.endpoints_per_node)
            self.incarnations[end] += 1

    def heal(self) -> None:
        """Lose nothing more, and receive everything. All endpoints send to all once more: a disconnect does not notify
        the peer, so that only the next connection ends its pending transfers."""
        for direction in permutations(range(len(self.ends)), 2):
            self.send(direction)
        sent = self.ledger.sent
        for direction, messages in sent.items():
            for _ in messages:
                self.receive(direction)
        for count in range(MAX_DEADLINES):
            if count % 500 == 499:  # a connection was lost: the programs connect again
                for direction in sent:
                    self.send(direction)
                    self.receive(direction)
            while self.in_flight:
                self.wires.deliver(self.in_flight.popleft())
                self.take()
            if not any(pending_work_except(agent.host.pending_work(), "a receive") for agent in self.wires.agents):
                break
            self.wires.tick()
            self.take()
        else:
            raise AssertionError(
                f"no progress without losses: {pending_work_except(self.wires.pending_work(), 'a receive')}"
            )
        for end in self.ends:
            end.close()
        for node in range(2):
            pinned = len(cast(HostMemory, self.library(node).memory))
            assert not pinned, f"node {node} leaks {pinned} regions of memory"
        assert not [end for end in self.ends if end._zombie_count], "zombies are left"

    def check(self) -> None:
        # After a restart an acknowledgement of the previous incarnation may arrive: frames do not distinguish incarnations,
        # sessions do as long as they differ.
        self.ledger.check(self.is_calm, lambda _: self.restarts)


def pending_work_except(sentences: list[str], exception: str) -> list[str]:
    """Return the sentences that do not contain `exception`."""
    return [sentence for sentence in sentences if exception not in sentence]


def trial(seed: int) -> None:
    """Run the schedule of a seed."""
    Schedule(seed).run()

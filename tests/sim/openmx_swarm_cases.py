"""Cases of Open-MX's swarm: endpoints of ranks that connect, send, disconnect, close and reopen, with settings so small
that they take effect, under faults on the links and restarts of nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from protocols.openmx.mx_names import SEQNUM_MASK
from testbed.controller.conformance.network_faults import (
    MICROSECOND,
    MILLISECOND,
    Cut,
    draw_faults,
    draw_shape,
    layout_of,
    without_impairment,
)
from testbed.controller.conformance.trials import fewer, without_one
from testbed.engine.sources import Source, source
from testbed.spec.layout import Impairment

SIZES: Final = (4, 8, 32, 33, 128, 129, 1_462, 1_463, 4_096, 4_097, 10_000, 33_000, 70_000, 150_000)
"""Bytes of each kind of message, of one and more fragments, and of pulls of one and more blocks."""
BULK: Final = SIZES[-3:]
SENDS: Final = ("send", "synchronous")
BREAKS: Final = ("disconnect", "reopen", "connect", "stranger")
"""Actions that end a connection, or connect explicitly; a stranger uses a wrong key."""
MIN_ACTIONS: Final = 50
MIN_BULK_ACTIONS: Final = 20
"""Minimum number of actions of a case with long messages."""


@dataclass(frozen=True, slots=True)
class Action:
    """Action of an endpoint. peer: the other endpoint. pause: ns before it."""

    end: int
    peer: int
    kind: str
    size: int
    pause: int


@dataclass(frozen=True, slots=True)
class Case:
    """Random case of Open-MX.

    per_node: ranks of a node. per_rank: endpoints of a rank. queues: receive queues of NICs whose driver runs on the host's
    cores; 0: hosts without costs. settings: the protocol's. wild: by endpoint, whether its receives match any message.
    late: ns before each endpoint is opened. restarts: time and node of each. links: impairment of each
    until the faults end.
    """

    seed: int
    shape: str
    nodes: int
    per_node: int
    per_rank: int
    queues: int
    settings: tuple[tuple[str, int], ...]
    actions: tuple[Action, ...]
    wild: tuple[bool, ...]
    late: tuple[int, ...]
    restarts: tuple[tuple[int, int], ...]
    links: tuple[Impairment, ...]
    cuts: tuple[Cut, ...]
    until: int

    @property
    def is_calm(self) -> bool:
        """Return whether all messages must arrive: no connection ends."""
        return not self.restarts and not any(action.kind in BREAKS for action in self.actions)

    @property
    def tick(self) -> int:
        return dict(self.settings)["tick"]

    def rank_of(self, end: int) -> int:
        return end // self.per_rank

    def node_of(self, end: int) -> int:
        return self.rank_of(end) // self.per_node

    def index_of(self, end: int) -> int:
        """An endpoint's index on its NIC, which its node's ranks share."""
        return self.rank_of(end) % self.per_node + self.per_node * (end % self.per_rank)


def draw(seed: int) -> Case:
    """Draw the case of a seed."""
    rng = source(seed, "case of Open-MX")
    shape, nodes = draw_shape(rng)
    per_node, per_rank = rng.choice((1, 1, 2)), rng.choice((1, 1, 2))
    if shape != "back-to-back" and per_node * per_rank > 1:
        shape, nodes = "star", 2 + rng.below(2)
    ends = nodes * per_node * per_rank
    is_calm = rng.random() < 0.4
    links, cuts, faults_end = draw_faults(rng, layout_of(shape, nodes))
    restarts = tuple([(rng.below(faults_end), rng.below(nodes)) for _ in range(rng.choice((0, 0, 1, 2)))])
    settings = _settings(rng, is_calm)
    sizes = rng.choice((SIZES[:6], SIZES[:9], SIZES[:12], BULK))
    pairs = 1 + rng.below(2 * ends)  # few pairs: more messages between the same endpoints
    peers = [(rng.below(ends), rng.below(ends)) for _ in range(pairs)]
    kinds = SENDS[:1] * rng.choice((2, 8)) + SENDS + (() if is_calm else BREAKS)
    pauses = (0, 0, 20 * MICROSECOND, faults_end // 20)
    actions = []
    for _ in range((MIN_BULK_ACTIONS if sizes is BULK else MIN_ACTIONS) + rng.below(20)):
        end, peer = rng.choice(peers)
        kind = rng.choice(kinds)
        actions.append(Action(end, peer, kind, rng.choice(sizes), rng.choice(pauses)))
    return Case(
        seed, shape, nodes, per_node, per_rank, rng.choice((0, 0, 0, 0, 0, 3)), tuple(settings.items()),
        tuple(actions), tuple([rng.random() < 0.3 for _ in range(ends)]),
        tuple([rng.choice((0, 0, MILLISECOND)) for _ in range(ends)]), () if is_calm else restarts, links, cuts, faults_end,
    )  # fmt: skip


def _settings(rng: Source, is_calm: bool) -> dict[str, int]:
    tick = rng.choice((100 * MICROSECOND, MILLISECOND))
    return {
        "tick": tick,
        "resend": rng.choice((2, 8)),
        "resends": 0 if is_calm else rng.choice((5, 30)),
        "acknowledge": rng.choice((1, 4)),
        "zombies": rng.choice((0, 2, 512)),
        "unacked": rng.choice((2, 40, 8_191)),
        "pulls": rng.choice((1, 2, 8)),
        "pull_timeout": tick * rng.choice((2, 8)),
        "entries": rng.choice((32, 1_024)),
        "rendezvous": rng.choice((128, 4_096, 32_768)),
        "first_seqnum": rng.choice((0, SEQNUM_MASK - 5)),
    }


def reduced_cases(case: Case) -> Iterator[Case]:
    """Yield reduced cases, the largest reductions first."""
    for actions in fewer(case.actions):
        yield replace(case, actions=actions)
    for restarts in without_one(case.restarts):
        yield replace(case, restarts=restarts)
    for cuts in without_one(case.cuts):
        yield replace(case, cuts=cuts)
    for links in without_impairment(case.links):
        yield replace(case, links=links)

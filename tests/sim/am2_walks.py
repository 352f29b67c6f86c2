"""Random walks through AM-II's state machines, for transitions that the swarm does not cause."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from protocols.am2 import page as layout
from protocols.am2.codec import KIND_ACK
from protocols.am2.nic_memory import NO_ENDPOINT
from protocols.am2.settings import MILLISECOND, Settings
from protocols.am2.states import TABLES
from protocols.am2.transport import PacketClass, ReceiveTable, SendRow, SendTable
from protocols.core.firmware import FIRST, Adapter
from protocols.core.peers import Peer, Peers
from tests.sim.am2_residency_watch import watch_residency
from tests.sim.am2_state_watch import watch_channels
from tests.sim.peer_state_watch import watch_peers
from tests.sim.state_watch import Watch, WatchStarter, label
from tests.unit.protocols.am2_shared_nic import SharedNic
from tests.unit.protocols.am2_single_nic import SentMessage

WATCHING: tuple[WatchStarter, ...] = (watch_channels, watch_residency, watch_peers)
HOSTS = 2
ENDPOINTS = 3
"""Number of endpoints of each host."""


def walk(count: int = 250) -> Watch:
    """Run `count` random walks of each kind and record their transitions."""
    watch, rng = Watch(), Random(1)
    with pytest.MonkeyPatch.context() as patch:
        for watching in WATCHING:
            watching(patch, watch)
        settings = Settings(channels=1)
        for _ in range(count):
            walk_sending(SendTable(settings), rng)
            walk_receiving(ReceiveTable(settings), rng)
            walk_residency(rng)
            walk_peers(rng)
    return watch


def rows(watch: Watch) -> Counter[str]:
    """Count the transitions by table row (see `label`)."""
    return Counter({label(table, row): watch.row_counts[row] for table in TABLES for row in table.rows})


def walk_sending(table: SendTable[int], rng: Random) -> None:
    """Make every call of the firmware in random order, also with late answers.

    A packet whose last transmission was refused gets no answer: a peer accepts no earlier transmission of it.
    """
    row: SendRow[int] = table.free_rows[0]
    for now in range(300):
        sequence, stamp = row.sequence ^ (rng.random() < 0.3), row.stamp - (rng.random() < 0.3)
        if rng.random() < 0.3:
            sequence ^= row.is_refused and sequence == row.sequence
            table.on_answer(now, 0, row.generation, sequence, stamp)
        elif rng.random() < 0.4:
            table.on_refusal(now, 0, row.generation, sequence, stamp)
        elif row.packet is None:
            table.begin(now, now)
        elif row.is_refused:
            if rng.random() < 0.5:
                table.mark_resent(now, row)
            else:
                table.withdraw(row)
        else:
            rng.choice((table.mark_resent, table.mark_first, table.mark_final, lambda _, row: table.give_up(row)))(
                now, row
            )


def walk_receiving(table: ReceiveTable, rng: Random) -> None:
    """Receive new, duplicate, old and next-generation packets of a channel; accept or refuse new ones."""
    generation = sequence = 0
    for stamp in range(1, 301):
        if rng.random() < 0.1:
            generation += 1
        sequence ^= rng.random() < 0.5
        is_late = rng.random() < 0.2
        is_former = generation > 0 and rng.random() < 0.1
        packet_class = table.classify(0, generation - is_former, sequence, stamp - 5 * is_late)
        if packet_class is PacketClass.NEW:
            if rng.random() < 0.7:
                table.advance(0)
            else:
                table.refuse(0, stamp)


class _Hosts:
    """Two host processes on a shared NIC, and its peer; each step is a random action of one of them."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.card = SharedNic(Settings(frames=2, stay=MILLISECOND, channels=8), HOSTS)
        self.created: set[int] = set()
        self._sequences: Counter[int] = Counter()
        self._unanswered: list[SentMessage] = []
        self._stamp = 0

    def step(self) -> None:
        number = self.card.endpoint_number(self.rng.randrange(HOSTS), self.rng.randrange(ENDPOINTS))
        if number not in self.created:
            self.created.add(number)
            self.card.create(number, load=False)
        else:
            actions = (self.load, self.unload, self.release, self.arrive, self.arrive, self.wait)
            self.rng.choice(actions)(number)
            self.send(number)
            if self.rng.random() < 0.05:
                self.destroy(number)
        if self.rng.random() < 0.3:
            self.answer()
        self.copy_out()

    def is_bound(self, number: int) -> bool:
        return number in self.card.windows[self.card.host_of(number)].bound_endpoints

    def load(self, number: int) -> None:
        if not self.is_bound(number) and NO_ENDPOINT in self.card.windows[self.card.host_of(number)].bound_endpoints:
            self.card.load(number)

    def unload(self, number: int) -> None:
        self.card.ring_doorbell(number, layout.UNLOAD)

    def release(self, number: int) -> None:
        self.card.ring_doorbell(number, layout.RELEASED)

    def send(self, number: int) -> None:
        slot = self.rng.randrange(layout.RING_SIZE)
        if self.is_bound(number) and self.card.owner(number, slot) == layout.FREE:
            self.card.request(number, slot)

    def arrive(self, number: int) -> None:
        channel = self.rng.randrange(8)
        self._stamp += 1
        answers = self.card.receive_message(
            number, channel=channel, sequence=self._sequences[channel] & 1, stamp=self._stamp
        )
        self._unanswered += [packet for packet in answers if isinstance(packet, SentMessage)]
        self._sequences[channel] += any(packet.kind == KIND_ACK for packet in answers)

    def wait(self, _number: int) -> None:
        self.card.elapse(self.rng.choice((0, 1, 1, 60)) * MILLISECOND)

    def destroy(self, number: int) -> None:
        self.created.discard(number)
        window = self.card.windows[self.card.host_of(number)]
        self.card.ring_doorbell(number, layout.DESTROY)
        if self.is_bound(number):
            window.bind(window.bound_endpoints.index(number), NO_ENDPOINT)

    def answer(self) -> None:
        self._unanswered += [packet for packet in self.card.take_packets() if isinstance(packet, SentMessage)]
        if self._unanswered:
            self.card.answer(self._unanswered.pop(self.rng.randrange(len(self._unanswered))))

    def copy_out(self) -> None:
        """Copy out endpoints whose unloading the NIC has announced, as hosts do."""
        for number, subject in self.card.notifications:
            if subject == layout.UNLOADED and self.is_bound(number):
                self.card.copy_out(number)
        self.card.notifications.clear()


def walk_residency(rng: Random) -> None:
    """Load and unload two hosts' endpoints over two frames."""
    hosts = _Hosts(rng)
    for _ in range(200):
        hosts.step()


class _NullPeers:
    """Ignores events of peers."""

    def on_peer_introduced(self, now: int, peer: Peer) -> None: ...
    def on_peer_restarting(self, peer: Peer) -> None: ...
    def on_peer_restarted(self, now: int, peer: Peer) -> None: ...


def walk_peers(rng: Random) -> None:
    """Receive frames of peers with random incarnations."""
    adapter = Adapter(0, [bytes([number] * 6) for number in range(8)], incarnation=rng.choice((FIRST, 2)))
    peers: Peers[Peer, None] = Peers(
        adapter,
        SharedNic(),
        lambda number, incarnation, send, send_later: Peer(
            number, adapter.addresses[number], incarnation, send, send_later
        ),
        presumes_first=True,
    )
    for now in range(60):
        peers.classify(
            now,
            peers.peer(rng.randrange(1, 8)),
            rng.randrange(5),
            rng.randrange(3),
            _NullPeers(),
        )

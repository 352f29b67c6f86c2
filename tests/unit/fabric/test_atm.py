"""Cells through ATM switches: when they arrive, and where they are lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.atm.cell import CELL, PAYLOAD, Circuit, cells_of, circuit, header
from protocols.atm.fields import ETHERTYPE
from testbed.errors import UnsupportedError
from testbed.fabric.atm.channel import Channel
from testbed.fabric.atm.network import BAD_HEADER, FULL, NO_CABLE, NO_CIRCUIT, Network, Settings
from testbed.fabric.interface import SwitchPort
from testbed.fates.rules import RuleSet
from testbed.fates.stage import FateOptions
from testbed.fields import known_fields
from testbed.spec.layout import DirectionName, Impairment

RATE = 53 * 8 * 1_000_000
"""A cell takes one microsecond."""
CELL_TIME = 1_000
HOP = 300
HARDWARE = Settings(rate=RATE, hop=HOP)
HEAD = bytes(12) + ETHERTYPE.to_bytes(2, "big")

Arrival = tuple[int, int]
"""Time, ns, and the number in the payload of the cell."""


class Star:
    """Nodes at one switch. arrivals: of each node."""

    def __init__(
        self,
        nodes: int,
        impairment: Impairment | None = None,
        hardware: Settings = HARDWARE,
        rules: RuleSet | None = None,
    ) -> None:
        self.nodes = nodes
        self.dropped: list[tuple[int, str, int, str]] = []
        self.network = Network(hardware, self._drop)
        self.arrivals: list[list[Arrival]] = [[] for _ in range(nodes)]
        self.up: list[Channel] = []
        self.down: list[Channel] = []
        options = FateOptions(7, rules=rules, fields=known_fields())
        for number in range(nodes):
            port, impaired = SwitchPort("s1", number + 1), impairment or Impairment()
            link, forward, backward = f"n{number}--s1", "forward", "backward"
            self.up.append(self._join(link, forward, impaired, options, None, port))
            self.down.append(self._join(link, backward, impaired, options, port, None))
            self.down[number].receive = self._receiver(number)
        self.network.set_switches({"s1": {str(number): number + 1 for number in range(nodes)}})

    def _join(
        self,
        link: str,
        direction: str,
        impairment: Impairment,
        options: FateOptions,
        start: SwitchPort | None,
        end: SwitchPort | None,
    ) -> Channel:
        names: dict[str, DirectionName] = {"forward": "forward", "backward": "backward"}
        return self.network.join(link, names[direction], impairment, options, start, end)

    def _receiver(self, number: int) -> Callable[[int, bytes], None]:
        def receive(now: int, frame: bytes) -> None:
            self.arrivals[number].append((now, int.from_bytes(frame[-2:], "big")))

        return receive

    def _drop(self, now: int, switch: str, port: int, action: str, reason: str, frame: bytes) -> None:  # noqa: ARG002
        self.dropped.append((now, switch, port, reason))

    def frame(self, source: int, destination: int, number: int = 0) -> bytes:
        return HEAD + header(circuit(source, destination, self.nodes)) + number.to_bytes(PAYLOAD, "big")

    def send(self, now: int, source: int, destination: int, number: int = 0) -> bool:
        self.network.poll(now)
        return self.up[source].offer(now, self.frame(source, destination, number))

    def run(self) -> None:
        while (deadline := self.network.deadline) is not None:
            self.network.poll(deadline)


def test_a_cell_is_stored_and_forwarded_and_each_link_adds_its_time_and_delay() -> None:
    star = Star(3, Impairment(delay=5_000))
    assert star.send(0, 0, 2, number=9)
    star.run()
    assert star.arrivals == [[], [], [(2 * (CELL_TIME + 5_000) + HOP, 9)]]


def test_an_overhead_adds_bytes_to_the_transmission_time_of_each_cell() -> None:
    """At 140 Mbit/s a cell of a TAXI fibre takes 55 byte times, 3.14 us (von Eicken, Basu and Buch, 1995)."""
    star = Star(2, Impairment(rate=140_000_000, overhead=2))
    star.send(0, 0, 1, 1)
    star.send(0, 0, 1, 2)
    star.run()
    (first, _), (second, _) = star.arrivals[1]
    assert (second - first) == pytest.approx(3_142, abs=1)


def test_back_to_back_cells_leave_at_the_rate_to_the_fraction_of_a_nanosecond() -> None:
    star = Star(2, Impairment(rate=150_000_000), replace(HARDWARE, fifo=100_000))
    count = 30_000
    for number in range(count):
        assert star.send(0, 0, 1, number)
    star.run()
    sent_at = count * CELL * 8 * 10**9 // 150_000_000
    last, _ = star.arrivals[1][-1]
    cell = CELL * 8 * 10**9 // 150_000_000
    assert last == pytest.approx(sent_at + HOP + cell, abs=2)
    assert [number for _, number in star.arrivals[1]] == list(range(count))


def test_a_nics_full_output_rejects_cells_and_announces_free_space() -> None:
    star = Star(2, hardware=replace(HARDWARE, fifo=4))
    notified: list[int] = []
    star.up[0].on_space = notified.append
    accepted = [star.send(0, 0, 1, number) for number in range(8)]
    assert accepted == [True] * 5 + [False] * 3, "one cell is being sent, and four wait"
    assert star.up[0].entrance.counters.blocked == 3
    star.network.poll(CELL_TIME)
    assert notified == [CELL_TIME], "notified once, at the first bit of the second cell"
    assert star.send(CELL_TIME, 0, 1, 99)
    star.run()
    assert [number for _, number in star.arrivals[1]] == [0, 1, 2, 3, 4, 99]


def test_on_a_fibre_between_two_nics_each_cell_has_a_fate_and_a_full_fifo_rejects_the_next_frame() -> None:
    rules = RuleSet(known_fields())
    rules.add(0, "drop atm.vci == 33 and nth(3)")
    network = Network(replace(HARDWARE, fifo=4))
    fibre = network.join("n1--n2", "forward", Impairment(), FateOptions(7, rules=rules, fields=known_fields()))
    arrivals: list[Arrival] = []
    fibre.receive = lambda now, frame: arrivals.append((now, frame[-1]))
    cells = [header(circuit(0, 1, 2)) + number.to_bytes(PAYLOAD, "big") for number in range(6)]
    assert fibre.offer(0, HEAD + b"".join(cells))
    assert not fibre.offer(0, HEAD + cells[0]), "one cell is being sent, and four wait"
    assert fibre.entrance.counters.blocked == 1
    while network.deadline is not None:
        network.poll(network.deadline)
    assert arrivals == [(CELL_TIME * (place + 1), number) for place, number in enumerate((0, 1, 3, 4, 5))]
    assert fibre.entrance.counters.dropped == 1


def test_a_switchs_full_output_buffer_drops_cells_and_counts_them() -> None:
    senders, cells, buffer = 8, 50, 10
    star = Star(senders + 1, hardware=replace(HARDWARE, buffer=buffer, fifo=cells))
    for source in range(senders):
        for number in range(cells):
            assert star.send(0, source, senders, number)
    star.run()
    arrived = len(star.arrivals[senders])
    lost_cells = star.network.switch_counters["s1"][FULL]
    assert arrived + lost_cells == senders * cells
    assert lost_cells == star.down[senders].entrance.counters.queue == len(star.dropped)
    assert arrived == cells + buffer, "one in each cell time, and those in the buffer when the last ones arrive"
    assert {reason for *_, reason in star.dropped} == {"the output buffer is full"}


def test_queue_frames_of_a_link_replaces_both_buffers() -> None:
    star = Star(2, Impairment(queue_frames=2), replace(HARDWARE, fifo=100))
    assert [star.send(0, 0, 1, number) for number in range(5)] == [True, True, True, False, False]


@pytest.mark.parametrize(
    ("cell", "cause"),
    [
        (header(Circuit(0, 5)) + bytes(PAYLOAD), NO_CIRCUIT),
        (header(Circuit(3, 40)) + bytes(PAYLOAD), NO_CIRCUIT),
        (header(circuit(0, 1, 2))[:4] + b"\0" + bytes(PAYLOAD), BAD_HEADER),
        (header(circuit(0, 1, 2)) + bytes(PAYLOAD - 1), BAD_HEADER),
        (b"", BAD_HEADER),
    ],
)
def test_a_switch_discards_frames_that_it_cannot_forward(cell: bytes, cause: str) -> None:
    star = Star(2)
    assert star.up[0].offer(0, HEAD + cell)
    star.run()
    assert star.arrivals == [[], []]
    assert {name: count for name, count in star.network.switch_counters["s1"].items() if count} == {cause: 1}


def test_a_circuit_to_a_port_without_a_cable_drops_its_cells() -> None:
    star = Star(3)
    star.down[2].leave()
    star.send(0, 0, 2)
    star.run()
    assert star.network.switch_counters["s1"][NO_CABLE] == 1


def test_the_cells_of_a_removed_switch_are_dropped() -> None:
    star = Star(2)
    star.send(0, 0, 1)
    star.network.set_switches({})
    star.run()
    assert star.arrivals == [[], []]
    assert star.network.switch_counters == {}


def test_each_cell_of_a_frame_has_its_own_fate() -> None:
    rules = RuleSet(known_fields())
    star = Star(2, rules=rules)
    rules.add(0, "drop atm.vci == 33 and nth(2)")
    multi_cell_frame = HEAD + b"".join(star.frame(0, 1, number)[len(HEAD) :] for number in range(5))
    assert star.up[0].offer(0, multi_cell_frame)
    star.run()
    assert [number for _, number in star.arrivals[1]] == [0, 3, 4], "the second cell of each direction"
    assert star.up[0].entrance.counters.offered == 5


def test_a_delayed_cell_is_overtaken_and_arrives() -> None:
    rules = RuleSet(known_fields())
    rules.add(0, "delay 20us atm.vci == 33 and nth(1)")
    star = Star(2, rules=rules)
    for number in range(3):
        star.send(0, 0, 1, number)
    star.run()
    assert [number for _, number in star.arrivals[1]][:2] != [0, 1]
    assert sorted(number for _, number in star.arrivals[1]) == [0, 1, 2]
    assert star.up[0].in_flight == star.down[1].in_flight == 0


def test_a_shorter_delay_lets_no_cell_overtake() -> None:
    star = Star(2, Impairment(delay=50_000))
    star.send(0, 0, 1, 1)
    star.up[0].change(2_000, Impairment(delay=0))
    star.send(2_000, 0, 1, 2)
    star.run()
    assert [number for _, number in star.arrivals[1]] == [1, 2]


def test_impairments_that_reorder_cells_are_rejected_with_the_reason() -> None:
    with pytest.raises(UnsupportedError, match=r"keeps the order of its cells.*it can have no jitter"):
        Star(2, Impairment(delay=10, jitter=5))


@settings(max_examples=60, deadline=None)
@given(
    rng=st.randoms(use_true_random=False),
    nodes=st.integers(2, 6),
    buffer=st.integers(1, 8),
    loss=st.sampled_from([0.0, 0.2]),
)
def test_no_cell_is_gained_or_lost_without_a_count(rng: Random, nodes: int, buffer: int, loss: float) -> None:
    star = Star(nodes, Impairment(loss=loss, duplicate=loss / 2), replace(HARDWARE, buffer=buffer, fifo=20))
    accepted = 0
    for now in sorted(rng.randrange(200_000) for _ in range(300)):
        source, destination = rng.randrange(nodes), rng.randrange(nodes)
        accepted += star.send(now, source, destination)
    star.run()
    for channel in (*star.up, *star.down):
        counters = channel.entrance.counters
        dropped = counters.loss + counters.queue
        assert channel.in_flight == 0
        assert counters.offered + counters.duplicated == counters.delivered + dropped
    assert sum(channel.entrance.counters.offered for channel in star.up) == accepted
    assert sum(map(len, star.arrivals)) == sum(channel.entrance.counters.delivered for channel in star.down)


def test_a_frame_of_one_cell_is_not_split() -> None:
    frame = Star(2).frame(0, 1)
    assert list(cells_of(frame)) == [frame]

"""AM-II's send and receive tables: every packet is accepted once, also if frames are lost, duplicated or (with many sequence
numbers) reordered."""

from __future__ import annotations

from collections import deque
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.am2.settings import Settings
from protocols.am2.transport import PacketClass, ReceiveTable, SendRow, SendTable

TWO_SEQUENCES = Settings(channels=2)
MANY_SEQUENCES = Settings(channels=2, sequences=1 << 16)
BAD_TAG = 4


class Frame(NamedTuple):
    """A packet, or with `verdict` the answer to one: "accepted", "undone" or "refused"."""

    channel: int
    generation: int
    sequence: int
    stamp: int
    packet: int
    verdict: str = ""


def frame_of(row: SendRow[int]) -> Frame:
    assert row.packet is not None
    return Frame(row.channel, row.generation, row.sequence, row.stamp, row.packet)


# Each table alone.


def test_a_channel_has_one_packet_until_it_is_answered() -> None:
    table: SendTable[str] = SendTable(TWO_SEQUENCES)
    first, second = table.begin(0, "a"), table.begin(0, "b")
    assert first is not None
    assert second is not None
    assert first.channel != second.channel
    assert table.is_full
    assert table.begin(0, "c") is None
    assert table.on_answer(0, first.channel, 0, 0, 0) == "a"
    assert table.unanswered_count == 1
    third = table.begin(0, "c")
    assert third is first
    assert third.sequence == 1


def test_an_answer_counts_once_and_only_for_the_packet_that_it_identifies() -> None:
    table: SendTable[str] = SendTable(TWO_SEQUENCES)
    row = table.begin(0, "a")
    assert row is not None
    assert table.on_answer(0, row.channel, 0, 1, 0) is None
    assert table.on_answer(0, row.channel, 1, 0, 0) is None
    assert table.on_answer(0, 99, 0, 0, 0) is None
    assert table.on_answer(0, row.channel, 0, 0, 0) == "a"
    assert table.on_answer(0, row.channel, 0, 0, 0) is None


def test_the_channel_that_has_been_free_for_longest_is_used_next() -> None:
    table: SendTable[int] = SendTable(Settings(channels=3))
    rows = [table.begin(0, number) for number in range(3)]
    for row in (rows[2], rows[0]):
        assert row is not None
        table.on_answer(0, row.channel, 0, 0, 0)
    assert table.begin(0, 3) is rows[2]


def test_an_unanswered_packet_is_due_after_doubled_timeouts() -> None:
    table: SendTable[str] = SendTable(Settings(timeout=100, longest_timeout=350, retries=3))
    row = table.begin(0, "a")
    assert row is not None
    resend_times, now = [], 0
    while not table.is_exhausted(row):
        assert list(table.due_rows(row.due_at - 1)) == []
        now = row.due_at
        assert list(table.due_rows(now)) == [row]
        resend_times.append(now)
        table.mark_resent(now, row)
    assert resend_times == [100, 300, 650]
    assert row.due_at == 1_000


def send_and_answer(table: SendTable[str], now: int, round_trip: int) -> None:
    """Send a packet at `now`, which is answered `round_trip` later."""
    row = table.begin(now, "a")
    assert row is not None
    table.on_answer(now + round_trip, row.channel, row.generation, row.sequence, row.stamp)


def test_the_timeout_grows_with_long_round_trips_and_returns_with_short_ones() -> None:
    table: SendTable[str] = SendTable(Settings(channels=1, timeout=100, longest_timeout=5_000))
    send_and_answer(table, 0, 30)
    assert table.timeout == 100
    send_and_answer(table, 100, 400)
    assert table.timeout == 400 + 4 * 200
    row = table.begin(1_000, "a")
    assert row is not None
    assert row.due_at == 1_000 + table.timeout
    table.on_answer(1_400, row.channel, 0, 0, row.stamp)
    assert 400 < table.timeout < 1_200
    for now in range(2_000, 4_000, 10):
        send_and_answer(table, now, 10)
    assert table.timeout == 100


def test_the_timeout_never_exceeds_the_longest() -> None:
    table: SendTable[str] = SendTable(Settings(channels=1, timeout=100, longest_timeout=350))
    send_and_answer(table, 0, 9_000)
    assert table.timeout == 350


def test_the_echoed_stamp_identifies_the_transmission_that_an_answer_is_for() -> None:
    def timeout_after_answer(transmission: int) -> int:
        table: SendTable[str] = SendTable(Settings(channels=1, timeout=100, longest_timeout=9_000))
        row = table.begin(0, "a")
        assert row is not None
        stamps = [row.stamp]
        for now in (100, 300):
            table.mark_resent(now, row)
            stamps.append(row.stamp)
        table.on_answer(400, row.channel, 0, 0, stamps[transmission])
        return table.timeout

    assert timeout_after_answer(0) == 3 * 400  # since the first transmission
    assert timeout_after_answer(1) == 100  # the time of the second transmission is not known
    assert timeout_after_answer(2) == 3 * 100  # since the last transmission


def test_a_packet_marked_as_a_first_transmission_has_a_new_timeout_and_round_trip() -> None:
    table: SendTable[str] = SendTable(Settings(channels=1, timeout=100, longest_timeout=9_000))
    row = table.begin(0, "a")
    assert row is not None
    table.mark_resent(100, row)
    table.mark_first(1_000, row)
    assert (row.retries, row.due_at) == (0, 1_100)
    first_stamp = row.stamp
    table.mark_resent(1_100, row)
    table.on_answer(1_400, row.channel, 0, 0, first_stamp)
    assert table.timeout == 3 * 400


def test_a_refusal_of_the_last_transmission_counts_and_one_of_an_earlier_does_not() -> None:
    table: SendTable[str] = SendTable(TWO_SEQUENCES)
    row = table.begin(0, "a")
    assert row is not None
    first_stamp = row.stamp
    table.mark_resent(10, row)
    assert table.on_refusal(20, row.channel, 0, 0, first_stamp) is None
    assert table.on_refusal(20, row.channel, 0, 0, row.stamp) is row
    assert row.retries == 0  # the peer is alive
    assert row.due_at == 20 + TWO_SEQUENCES.refused
    assert table.withdraw(row) == "a"
    second_row = table.begin(30, "b")
    assert second_row is not None


def test_a_packet_that_may_be_in_flight_is_not_withdrawn() -> None:
    table: SendTable[str] = SendTable(TWO_SEQUENCES)
    row = table.begin(0, "a")
    assert row is not None
    with pytest.raises(ValueError, match="cannot be withdrawn"):
        table.withdraw(row)
    table.on_refusal(5, row.channel, 0, 0, row.stamp)
    table.mark_resent(10, row)  # in flight again
    with pytest.raises(ValueError, match="cannot be withdrawn"):
        table.withdraw(row)


def test_a_refused_transmission_is_never_accepted_and_a_later_one_is() -> None:
    receiver = ReceiveTable(TWO_SEQUENCES)
    assert receiver.classify(0, 0, 0, stamp=7) is PacketClass.NEW
    receiver.refuse(0, 7)
    assert receiver.classify(0, 0, 0, stamp=7) is PacketClass.OLD  # a duplicate of the network
    assert receiver.classify(0, 0, 0, stamp=6) is PacketClass.OLD
    assert receiver.classify(0, 0, 0, stamp=8) is PacketClass.NEW
    receiver.refuse(0, (1 << 32) - 1)
    assert receiver.classify(0, 0, 0, stamp=0) is PacketClass.NEW  # stamps wrap around


def test_a_channel_that_was_given_up_begins_the_next_generation() -> None:
    sender: SendTable[str] = SendTable(Settings(channels=1))
    receiver = ReceiveTable(Settings(channels=1))
    row = sender.begin(0, "never seen")
    assert row is not None
    sender.give_up(row)
    row = sender.begin(1, "seen, its answer lost")
    assert row is not None
    assert receiver.classify(0, row.generation, row.sequence, row.stamp) is PacketClass.NEW
    receiver.advance(0)
    given_up = (row.generation, row.sequence)
    sender.give_up(row)
    row = sender.begin(2, "the next")
    assert row is not None
    assert receiver.classify(0, row.generation, row.sequence, row.stamp) is PacketClass.NEW
    receiver.advance(0)
    assert receiver.classify(0, *given_up, 1) is PacketClass.OLD


def test_the_answer_to_an_undone_packet_is_repeated() -> None:
    receiver = ReceiveTable(TWO_SEQUENCES)
    assert receiver.classify(0, 0, 0, 1) is PacketClass.NEW
    receiver.advance(0, BAD_TAG)
    assert receiver.classify(0, 0, 0, 1) is PacketClass.DUPLICATE
    assert receiver.last_answer(0) == BAD_TAG
    assert receiver.classify(0, 0, 1, 2) is PacketClass.NEW
    receiver.advance(0)
    assert receiver.classify(0, 0, 1, 2) is PacketClass.DUPLICATE
    assert receiver.last_answer(0) == 0


def test_stamps_wrap_around_after_a_refusal() -> None:
    receiver = ReceiveTable(TWO_SEQUENCES)
    assert receiver.classify(0, 0, 0, 1) is PacketClass.NEW
    receiver.refuse(0, 1)
    for number in range(8):
        stamp = (2 + (number << 30)) % (1 << 32)
        assert receiver.classify(0, 0, number % 2, stamp) is PacketClass.NEW
        receiver.advance(0)


def test_generations_wrap_around() -> None:
    receiver = ReceiveTable(TWO_SEQUENCES)
    for generation in (0, 100, 200, 255, 3):
        assert receiver.classify(0, generation, 0, 1) is PacketClass.NEW
        receiver.advance(0)
    assert receiver.classify(0, 255, 0, 1) is PacketClass.OLD


@pytest.mark.parametrize(
    "settings",
    [
        {"channels": 0}, {"channels": 257}, {"sequences": 1}, {"sequences": 3}, {"sequences": 1 << 17}, {"scan": 0},
        {"refused": 0}, {"timeout": 0}, {"timeout": 200, "longest_timeout": 100}, {"retries": 0},
    ],
)  # fmt: skip
def test_invalid_settings_are_rejected(settings: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"\d"):
        Settings(**settings)


# Both tables and a network between them.


class Pair:
    """A sender of packets 0, 1, 2 ..., a receiver, and the packets and answers in flight between them."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.sender: SendTable[int] = SendTable(settings)
        self.receiver = ReceiveTable(settings)
        self.packets: deque[Frame] = deque()
        self.answers: deque[Frame] = deque()
        self.waiting: deque[int] = deque()
        self.accepted: list[int] = []
        self.undone: list[int] = []
        self.returned: list[int] = []
        self.now = 0

    def send(self) -> None:
        if self.waiting and (row := self.sender.begin(self.now, self.waiting[0])) is not None:
            self.waiting.popleft()
            self.packets.append(frame_of(row))

    def scan(self) -> None:
        for row in list(self.sender.due_rows(self.now)):
            self.sender.mark_resent(self.now, row)
            self.packets.append(frame_of(row))

    def receive_packet(self, verdict: str) -> None:
        """Receive the next packet; if it is new, answer it with `verdict`."""
        frame = self.packets.popleft()
        packet_class = self.receiver.classify(frame.channel, frame.generation, frame.sequence, frame.stamp)
        if packet_class is PacketClass.OLD:
            return
        if packet_class is PacketClass.DUPLICATE:
            verdict = "undone" if self.receiver.last_answer(frame.channel) else "accepted"
        elif verdict == "accepted":
            self.accepted.append(frame.packet)
            self.receiver.advance(frame.channel)
        elif verdict == "undone":
            self.undone.append(frame.packet)
            self.receiver.advance(frame.channel, BAD_TAG)
        else:
            self.receiver.refuse(frame.channel, frame.stamp)
        self.answers.append(frame._replace(verdict=verdict))

    def receive_answer(self) -> None:
        """Handle the next answer as the sender."""
        frame = self.answers.popleft()
        if frame.verdict == "refused":
            row = self.sender.on_refusal(self.now, frame.channel, frame.generation, frame.sequence, frame.stamp)
            if row is not None and frame.packet % 3 == 0:
                self.waiting.append(self.sender.withdraw(row))  # as of an unloaded endpoint
        else:
            packet = self.sender.on_answer(self.now, frame.channel, frame.generation, frame.sequence, frame.stamp)
            if packet is not None and frame.verdict == "undone":
                self.returned.append(packet)

    def settle(self) -> None:
        """Deliver everything without loss until each packet is answered."""
        for _ in range(10_000):
            if not (self.waiting or self.packets or self.answers or self.sender.unanswered_count):
                return
            self.now += self.settings.longest_timeout
            self.scan()
            self.send()
            while self.packets:
                self.receive_packet("accepted")
            while self.answers:
                self.receive_answer()
        raise AssertionError("packets are unanswered after 10,000 rounds")


def run_disturbed(settings: Settings, steps: list[tuple[str, int]], reorders: bool) -> Pair:
    """Perform `steps` (event, choice) on a pair, and deliver all packets after them."""
    pair = Pair(settings)
    packets = 0
    for event, choice in steps:
        pair.now += settings.scan
        in_flight = pair.packets if choice % 2 else pair.answers
        if event == "new":
            pair.waiting.append(packets)
            packets += 1
            pair.send()
        elif event == "scan":
            pair.now += settings.timeout
            pair.scan()
            pair.send()
        elif event == "packet" and pair.packets:
            pair.receive_packet(("accepted", "accepted", "refused", "undone")[choice % 4])
        elif event == "answer" and pair.answers:
            pair.receive_answer()
        elif event == "lose" and in_flight:
            in_flight.popleft()
        elif event == "duplicate" and in_flight:
            in_flight.insert(choice % (len(in_flight) + 1) if reorders else 0, in_flight[0])
        elif event == "overtake" and reorders and in_flight:
            in_flight.rotate(-1)
    pair.settle()
    return pair


def violation(pair: Pair) -> str:
    """Return the violation of an idle pair; empty without one."""
    if len(set(pair.accepted)) != len(pair.accepted):
        return "accepted twice"
    if set(pair.accepted) & set(pair.undone):
        return "accepted and undone"
    if sorted(pair.undone) != sorted(pair.returned):
        return "undone, and not returned to the sender exactly once"
    count = max([*pair.accepted, *pair.undone], default=-1) + 1
    if sorted({*pair.accepted, *pair.undone}) != list(range(count)):
        return "lost"
    return ""


EVENTS = ("new", "scan", "packet", "packet", "answer", "answer", "lose", "duplicate", "overtake")
STEPS = st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 63)), max_size=120)


@given(STEPS)
def test_every_packet_is_accepted_or_undone_once_if_frames_keep_their_order(
    steps: list[tuple[str, int]],
) -> None:
    assert not violation(run_disturbed(TWO_SEQUENCES, steps, reorders=False))


@given(STEPS)
def test_every_packet_is_accepted_or_undone_once_with_many_sequence_numbers_if_frames_are_reordered(
    steps: list[tuple[str, int]],
) -> None:
    assert not violation(run_disturbed(MANY_SEQUENCES, steps, reorders=True))


def test_an_alternating_bit_fails_if_frames_are_reordered() -> None:
    """The fault of AMUDP before its version 3.12: one sequence bit on a network that reorders."""
    violations = 0
    for seed in range(300):
        random = Random(seed)
        steps = [(random.choice(EVENTS), random.randrange(64)) for _ in range(120)]
        violations += bool(violation(run_disturbed(TWO_SEQUENCES, steps, reorders=True)))
        assert not violation(run_disturbed(MANY_SEQUENCES, steps, reorders=True))
        assert not violation(run_disturbed(TWO_SEQUENCES, steps, reorders=False))
    assert violations > 0

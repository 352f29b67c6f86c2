"""AM-II's send and receive tables: every packet is accepted once, whatever an order-keeping network does to frames."""

from __future__ import annotations

from collections import deque
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.am2.settings import Settings
from protocols.am2.transport import Incoming, Outgoing, PacketClass, Sending

FEW = Settings(channels=2)
WIDE = Settings(channels=2, sequences=1 << 16)
BAD_TAG = 4


class Frame(NamedTuple):
    """A packet, or with `verdict` the answer to one: "taken", "undone" or "refused"."""

    channel: int
    generation: int
    sequence: int
    stamp: int
    packet: int
    verdict: str = ""


def frame_of(row: Sending[int]) -> Frame:
    assert row.packet is not None
    return Frame(row.channel, row.generation, row.sequence, row.stamp, row.packet)


# One table alone


def test_a_channel_has_one_packet_until_it_is_answered() -> None:
    table: Outgoing[str] = Outgoing(FEW)
    first, second = table.begin(0, "a"), table.begin(0, "b")
    assert first is not None
    assert second is not None
    assert first.channel != second.channel
    assert table.is_full
    assert table.begin(0, "c") is None
    assert table.answered(0, first.channel, 0, 0, 0) == "a"
    assert table.unanswered == 1
    third = table.begin(0, "c")
    assert third is first
    assert third.sequence == 1


def test_an_answer_counts_once_and_only_for_the_packet_that_it_names() -> None:
    table: Outgoing[str] = Outgoing(FEW)
    row = table.begin(0, "a")
    assert row is not None
    assert table.answered(0, row.channel, 0, 1, 0) is None
    assert table.answered(0, row.channel, 1, 0, 0) is None
    assert table.answered(0, 99, 0, 0, 0) is None
    assert table.answered(0, row.channel, 0, 0, 0) == "a"
    assert table.answered(0, row.channel, 0, 0, 0) is None


def test_the_channel_that_has_been_free_for_longest_is_the_next() -> None:
    table: Outgoing[int] = Outgoing(Settings(channels=3))
    rows = [table.begin(0, number) for number in range(3)]
    for row in (rows[2], rows[0]):
        assert row is not None
        table.answered(0, row.channel, 0, 0, 0)
    assert table.begin(0, 3) is rows[2]


def test_an_unanswered_packet_is_due_after_ever_longer_times() -> None:
    table: Outgoing[str] = Outgoing(Settings(timeout=100, longest_timeout=350, retries=3))
    row = table.begin(0, "a")
    assert row is not None
    times, now = [], 0
    while not table.is_hopeless(row):
        assert list(table.due(row.due - 1)) == []
        now = row.due
        assert list(table.due(now)) == [row]
        times.append(now)
        table.mark_resent(now, row)
    assert times == [100, 300, 650]
    assert row.due == 1_000


def exchanged(table: Outgoing[str], now: int, took: int) -> None:
    """A packet that is sent now is answered so much later."""
    row = table.begin(now, "a")
    assert row is not None
    table.answered(now + took, row.channel, row.generation, row.sequence, row.stamp)


def test_packets_wait_longer_where_round_trips_are_long_and_as_before_when_they_are_short_again() -> None:
    table: Outgoing[str] = Outgoing(Settings(channels=1, timeout=100, longest_timeout=5_000))
    exchanged(table, 0, 30)
    assert table.patience == 100
    exchanged(table, 100, 400)
    assert table.patience == 400 + 4 * 200
    row = table.begin(1_000, "a")
    assert row is not None
    assert row.due == 1_000 + table.patience
    table.answered(1_400, row.channel, 0, 0, row.stamp)
    assert 400 < table.patience < 1_200
    for now in range(2_000, 4_000, 10):
        exchanged(table, now, 10)
    assert table.patience == 100


def test_no_round_trip_makes_packets_wait_longer_than_the_longest_time() -> None:
    table: Outgoing[str] = Outgoing(Settings(channels=1, timeout=100, longest_timeout=350))
    exchanged(table, 0, 9_000)
    assert table.patience == 350


def test_the_echoed_stamp_tells_which_sending_an_answer_is_for() -> None:
    def patience(which: int) -> int:
        table: Outgoing[str] = Outgoing(Settings(channels=1, timeout=100, longest_timeout=9_000))
        row = table.begin(0, "a")
        assert row is not None
        stamps = [row.stamp]
        for now in (100, 300):
            table.mark_resent(now, row)
            stamps.append(row.stamp)
        table.answered(400, row.channel, 0, 0, stamps[which])
        return table.patience

    assert patience(0) == 3 * 400  # since the first
    assert patience(1) == 100  # it is not known when that was
    assert patience(2) == 3 * 100  # since the last


def test_what_is_sent_anew_waits_and_is_measured_as_if_it_had_not_been_sent_before() -> None:
    table: Outgoing[str] = Outgoing(Settings(channels=1, timeout=100, longest_timeout=9_000))
    row = table.begin(0, "a")
    assert row is not None
    table.mark_resent(100, row)
    table.mark_new(1_000, row)
    assert (row.retries, row.due) == (0, 1_100)
    sent = row.stamp
    table.mark_resent(1_100, row)
    table.answered(1_400, row.channel, 0, 0, sent)
    assert table.patience == 3 * 400


def test_a_refusal_of_the_last_sending_counts_and_of_an_earlier_one_does_not() -> None:
    table: Outgoing[str] = Outgoing(FEW)
    row = table.begin(0, "a")
    assert row is not None
    before = row.stamp
    table.mark_resent(10, row)
    assert table.refused(20, row.channel, 0, 0, before) is None
    assert table.refused(20, row.channel, 0, 0, row.stamp) is row
    assert row.retries == 0  # the peer has been heard
    assert row.due == 20 + FEW.refused
    assert table.take_back(row) == "a"
    again = table.begin(30, "b")
    assert again is not None


def test_what_may_still_be_under_way_is_not_taken_back() -> None:
    table: Outgoing[str] = Outgoing(FEW)
    row = table.begin(0, "a")
    assert row is not None
    with pytest.raises(ValueError, match="cannot be taken back"):
        table.take_back(row)
    table.refused(5, row.channel, 0, 0, row.stamp)
    table.mark_resent(10, row)  # now it is under way again
    with pytest.raises(ValueError, match="cannot be taken back"):
        table.take_back(row)


def test_a_sending_that_was_refused_once_is_never_taken_and_a_later_one_is() -> None:
    receiver = Incoming(FEW)
    assert receiver.classify(0, 0, 0, stamp=7) is PacketClass.NEW
    receiver.refuse(0, 7)
    assert receiver.classify(0, 0, 0, stamp=7) is PacketClass.OLD  # a copy that the network has made
    assert receiver.classify(0, 0, 0, stamp=6) is PacketClass.OLD
    assert receiver.classify(0, 0, 0, stamp=8) is PacketClass.NEW
    receiver.refuse(0, (1 << 32) - 1)
    assert receiver.classify(0, 0, 0, stamp=0) is PacketClass.NEW  # stamps go round


def test_a_channel_that_was_given_up_is_of_the_next_generation() -> None:
    sender: Outgoing[str] = Outgoing(Settings(channels=1))
    receiver = Incoming(Settings(channels=1))
    row = sender.begin(0, "never seen")
    assert row is not None
    sender.give_up(row)
    row = sender.begin(1, "seen, its answer lost")
    assert row is not None
    assert receiver.classify(0, row.generation, row.sequence, row.stamp) is PacketClass.NEW
    receiver.take(0)
    seen = (row.generation, row.sequence)
    sender.give_up(row)
    row = sender.begin(2, "the next")
    assert row is not None
    assert receiver.classify(0, row.generation, row.sequence, row.stamp) is PacketClass.NEW
    receiver.take(0)
    assert receiver.classify(0, *seen, 1) is PacketClass.OLD


def test_a_packet_that_was_undone_is_answered_so_again() -> None:
    receiver = Incoming(FEW)
    assert receiver.classify(0, 0, 0, 1) is PacketClass.NEW
    receiver.take(0, BAD_TAG)
    assert receiver.classify(0, 0, 0, 1) is PacketClass.AGAIN
    assert receiver.answer(0) == BAD_TAG
    assert receiver.classify(0, 0, 1, 2) is PacketClass.NEW
    receiver.take(0)
    assert receiver.classify(0, 0, 1, 2) is PacketClass.AGAIN
    assert receiver.answer(0) == 0


def test_generations_go_round() -> None:
    receiver = Incoming(FEW)
    for generation in (0, 100, 200, 255, 3):
        assert receiver.classify(0, generation, 0, 1) is PacketClass.NEW
        receiver.take(0)
    assert receiver.classify(0, 255, 0, 1) is PacketClass.OLD


@pytest.mark.parametrize(
    "wrong",
    [
        {"channels": 0}, {"channels": 257}, {"sequences": 1}, {"sequences": 3}, {"sequences": 1 << 17}, {"scan": 0},
        {"refused": 0}, {"timeout": 0}, {"timeout": 200, "longest_timeout": 100}, {"retries": 0},
    ],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"\d"):
        Settings(**wrong)


# Two tables and a network


class Pair:
    """A sender with packets 0, 1, 2 ..., a receiver, and the frames between them, there and back."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.sender: Outgoing[int] = Outgoing(settings)
        self.receiver = Incoming(settings)
        self.there: deque[Frame] = deque()
        self.back: deque[Frame] = deque()
        self.waiting: deque[int] = deque()
        self.taken: list[int] = []
        self.undone: list[int] = []
        self.returned: list[int] = []
        self.now = 0

    def send(self) -> None:
        if self.waiting and (row := self.sender.begin(self.now, self.waiting[0])) is not None:
            self.waiting.popleft()
            self.there.append(frame_of(row))

    def scan(self) -> None:
        for row in list(self.sender.due(self.now)):
            self.sender.mark_resent(self.now, row)
            self.there.append(frame_of(row))

    def arrive(self, verdict: str) -> None:
        """The next packet does, and is answered so if it is new."""
        frame = self.there.popleft()
        packet_class = self.receiver.classify(frame.channel, frame.generation, frame.sequence, frame.stamp)
        if packet_class is PacketClass.OLD:
            return
        if packet_class is PacketClass.AGAIN:
            verdict = "undone" if self.receiver.answer(frame.channel) else "taken"
        elif verdict == "taken":
            self.taken.append(frame.packet)
            self.receiver.take(frame.channel)
        elif verdict == "undone":
            self.undone.append(frame.packet)
            self.receiver.take(frame.channel, BAD_TAG)
        else:
            self.receiver.refuse(frame.channel, frame.stamp)
        self.back.append(frame._replace(verdict=verdict))

    def hear(self) -> None:
        """The next answer comes."""
        frame = self.back.popleft()
        if frame.verdict == "refused":
            row = self.sender.refused(self.now, frame.channel, frame.generation, frame.sequence, frame.stamp)
            if row is not None and frame.packet % 3 == 0:
                self.waiting.append(self.sender.take_back(row))  # as an endpoint that is unloaded does
        else:
            packet = self.sender.answered(self.now, frame.channel, frame.generation, frame.sequence, frame.stamp)
            if packet is not None and frame.verdict == "undone":
                self.returned.append(packet)

    def settle(self) -> None:
        """Deliver everything without loss until each packet is answered."""
        for _ in range(10_000):
            if not (self.waiting or self.there or self.back or self.sender.unanswered):
                return
            self.now += self.settings.longest_timeout
            self.scan()
            self.send()
            while self.there:
                self.arrive("taken")
            while self.back:
                self.hear()
        raise AssertionError("it does not settle")


def disturbed(settings: Settings, steps: list[tuple[str, int]], reorders: bool) -> Pair:
    """Perform `steps` (event, where) on a pair and let it come to rest."""
    pair = Pair(settings)
    packets = 0
    for step, choice in steps:
        pair.now += settings.scan
        queue = pair.there if choice % 2 else pair.back
        if step == "new":
            pair.waiting.append(packets)
            packets += 1
            pair.send()
        elif step == "scan":
            pair.now += settings.timeout
            pair.scan()
            pair.send()
        elif step == "arrive" and pair.there:
            pair.arrive(("taken", "taken", "refused", "undone")[choice % 4])
        elif step == "hear" and pair.back:
            pair.hear()
        elif step == "lose" and queue:
            queue.popleft()
        elif step == "double" and queue:
            queue.insert(choice % (len(queue) + 1) if reorders else 0, queue[0])
        elif step == "overtake" and reorders and queue:
            queue.rotate(-1)
    pair.settle()
    return pair


def wrong(pair: Pair) -> str:
    """Return what is wrong with a pair at rest; empty if nothing is."""
    if len(set(pair.taken)) != len(pair.taken):
        return "taken twice"
    if set(pair.taken) & set(pair.undone):
        return "taken and undone"
    if sorted(pair.undone) != sorted(pair.returned):
        return "undone, and its sender was not told so, or too often"
    count = max([*pair.taken, *pair.undone], default=-1) + 1
    if sorted({*pair.taken, *pair.undone}) != list(range(count)):
        return "lost"
    return ""


STEP = st.tuples(
    st.sampled_from(("new", "scan", "arrive", "arrive", "hear", "hear", "lose", "double", "overtake")),
    st.integers(0, 63),
)
STEPS = st.lists(STEP, max_size=120)


@given(STEPS)
def test_every_packet_is_taken_once_or_undone_and_told_so_where_frames_keep_their_order(
    steps: list[tuple[str, int]],
) -> None:
    assert not wrong(disturbed(FEW, steps, reorders=False))


@given(STEPS)
def test_so_it_is_with_many_sequence_numbers_where_they_overtake_each_other(steps: list[tuple[str, int]]) -> None:
    assert not wrong(disturbed(WIDE, steps, reorders=True))


def test_an_alternating_bit_fails_where_frames_overtake_each_other() -> None:
    """The fault of AMUDP before its version 3.12: one sequence bit on a network that reorders."""
    names = ("new", "scan", "arrive", "arrive", "hear", "hear", "lose", "double", "overtake")
    found = 0
    for seed in range(300):
        chance = Random(seed)
        steps = [(chance.choice(names), chance.randrange(64)) for _ in range(120)]
        found += bool(wrong(disturbed(FEW, steps, reorders=True)))
        assert not wrong(disturbed(WIDE, steps, reorders=True))
        assert not wrong(disturbed(FEW, steps, reorders=False))
    assert found > 0

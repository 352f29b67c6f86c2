"""Random programs of sends, receives, probes and cancels, against a simple model of MPI's matching.

The programs record their results. The model then decides, by the standard's rules alone (MPI 4.1, sections 3.5, 3.8.1
and 3.8.4), whether these are possible.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hypothesis import event, given
from hypothesis import strategies as st

from protocols.am2.settings import MAX_SEQUENCES
from protocols.am2.settings import Settings as Am2Settings
from protocols.emp.settings import Settings
from protocols.mpi import ANY_SOURCE, ANY_TAG, Comm, Message, Request, Status
from protocols.mpi.requests import Yield
from tests.unit.protocols.emp_ranks import Ranks
from tests.unit.protocols.mpi_devices import Am2Ranks
from tests.unit.protocols.nicless_endpoints import LibraryRanks

KINDS = ("send", "ssend", "receive", "iprobe", "improbe", "cancel", "yield")
Step = tuple[str, int, int]
"""Step of a program: (action, rank or any, tag or any); the rank of a cancel is the number of a receive begun before.
"""


@dataclass(eq=False)
class Received:
    """Receive: when it began, its source and tag, and its result: a message's sender and number; None: cancelled."""

    begun: int
    source: int
    tag: int
    request: Request | Message
    buffer: bytearray
    cancelled_at: int | None = None
    result: tuple[int, int] | None = None


@dataclass
class RankRecord:
    """Record of one rank.

    sent: (destination, tag) by number. probed: when, source and tag, and the result. has_ended: whether all steps are done.
    received_count: number of messages received.
    """

    sent: list[tuple[int, int]] = field(default_factory=list)
    received: list[Received] = field(default_factory=list)
    probed: list[tuple[int, int, int, tuple[int, int] | None]] = field(default_factory=list)
    has_ended: bool = False
    received_count: int = 0


@st.composite
def trials(draw: st.DrawFn) -> tuple[int, list[list[Step]], float, int, int]:
    """Draw the number of ranks, the steps of each, the probability of faults, a seed, and the number of descriptors."""
    count = draw(st.integers(2, 3))
    rank, tag = st.integers(0, count - 1), st.integers(0, 2)
    step = st.one_of(
        st.tuples(st.sampled_from(("send", "ssend")), rank, tag),
        st.tuples(
            st.sampled_from(("receive", "iprobe", "improbe")),
            st.one_of(st.just(ANY_SOURCE), rank),
            st.one_of(st.just(ANY_TAG), tag),
        ),
        st.tuples(st.just("cancel"), st.integers(0, 10), st.just(0)),
        st.tuples(st.just("yield"), st.integers(1, 4), st.just(0)),
    )
    steps = [draw(st.lists(step, max_size=14)) for _ in range(count)]
    return (
        count, steps, draw(st.sampled_from([0.0, 0.05, 0.2])), draw(st.integers(0, 1 << 32)),
        draw(st.sampled_from([8, 640])),
    )  # fmt: skip


def program(steps: Sequence[Step], records: Sequence[RankRecord]) -> Callable[[Comm], object]:
    """Perform the steps; then receive until no message is left, and cancel the receives that match none."""

    async def run_steps(comm: Comm) -> None:
        record, sends = records[comm.rank], list[Request]()
        for now, (action, peer, tag) in enumerate(steps):
            if action in ("send", "ssend"):
                data = bytes([comm.rank, len(record.sent)])
                record.sent.append((peer, tag))
                begin_send = comm.Isend if action == "send" else comm.Issend
                sends.append(await begin_send(data, peer, tag))
            elif action == "receive":
                buffer = bytearray(2)
                record.received.append(Received(now, peer, tag, await comm.Irecv(buffer, peer, tag), buffer))
            elif action == "iprobe":
                status = Status()
                probe_result = await comm.Iprobe(peer, tag, status)
                record.probed.append((now, peer, tag, (status.source, status.tag) if probe_result else None))
                if probe_result:
                    assert status.count == 2
            elif action == "improbe":
                status = Status()
                message = await comm.Improbe(peer, tag, status)
                if message is not None:
                    received = Received(now, peer, tag, message, bytearray(2))
                    record.received.append(received)
            elif action == "cancel":
                pending = [
                    entry for entry in record.received if isinstance(entry.request, Request) and entry.request.active
                ]
                if pending:
                    receive = pending[peer % len(pending)]
                    await receive.request.Cancel()  # type: ignore[union-attr]
                    receive.cancelled_at = now
            else:
                for _ in range(peer):
                    await Yield()
        for received in record.received:
            if isinstance(received.request, Message):
                received.request = await received.request.Irecv(received.buffer)
        await receive_remaining(comm, records, len(steps))
        await Request.Waitall(sends)
        for received in record.received:
            assert isinstance(received.request, Request)
            status = Status()
            await received.request.Wait(status)
            if not status.Is_cancelled():
                received.result = received.buffer[0], received.buffer[1]
                assert status.source == received.buffer[0]

    return run_steps


async def receive_remaining(comm: Comm, records: Sequence[RankRecord], now: int) -> None:
    """Receive until all ranks' messages have been received, each rank taking those that no receive matches."""
    record = records[comm.rank]
    record.has_ended = True
    while not all(other.has_ended for other in records) or sum(other.received_count for other in records) < sum(
        len(other.sent) for other in records
    ):
        message = await comm.Improbe()
        if message is not None:
            buffer = bytearray(2)
            request = await message.Irecv(buffer)
            record.received.append(Received(now, ANY_SOURCE, ANY_TAG, request, buffer))
        status, record.received_count = Status(), 0
        for received in record.received:
            if isinstance(received.request, Request) and received.request.is_complete:
                await received.request.Get_status(status)
                record.received_count += not status.Is_cancelled()
    for received in record.received:
        if isinstance(received.request, Request) and not received.request.is_complete:
            await received.request.Cancel()
            received.cancelled_at = now


def matches(received: Received, source: int, tag: int) -> bool:
    return received.source in (ANY_SOURCE, source) and received.tag in (ANY_TAG, tag)


def check(records: Sequence[RankRecord]) -> None:
    for rank, record in enumerate(records):
        messages = {
            (source, number): tag
            for source, other in enumerate(records)
            for number, (destination, tag) in enumerate(other.sent)
            if destination == rank
        }
        results = [received.result for received in record.received if received.result is not None]
        assert sorted(results) == sorted(messages), "each message is received once"
        for received in record.received:
            if received.result is None:
                assert received.cancelled_at is not None, "only a cancelled receive has no message"
                continue
            source, number = received.result
            assert matches(received, source, messages[received.result])
            for index, other in enumerate(record.received):
                # Of two messages of one sender that match, a receive gets the one sent first, unless one begun before it
                # has that. A claim is a receive that begins when it finds its message.
                if other.result is not None and other.result[0] == source and other.result[1] < number:
                    older = other.result
                    if matches(received, source, messages[older]):
                        assert index < record.received.index(received), f"{received.result} overtook {older}"
        for _, source, tag, envelope in record.probed:
            if envelope is not None:
                assert source in (ANY_SOURCE, envelope[0])
                assert tag in (ANY_TAG, envelope[1])
                assert any(
                    sender == envelope[0] and content == envelope[1] for (sender, _), content in messages.items()
                )


def ranks_on(device: str, count: int, descriptors: int) -> Ranks:
    if device == "by library":
        return LibraryRanks(count)
    if device == "am2":
        return Am2Ranks(count, Am2Settings(sequences=MAX_SEQUENCES))
    return Ranks(count, Settings(descriptors=descriptors))


@given(trials(), st.sampled_from(["emp", "am2", "by library"]))
def test_random_programs_match_as_in_the_standard(
    trial: tuple[int, list[list[Step]], float, int, int], device: str
) -> None:
    count, steps, faults, seed, descriptors = trial
    ranks = ranks_on(device, count, descriptors)
    rng, wires, late_frames = random.Random(seed), ranks.wires, []

    def deliver() -> None:
        """Deliver frames; with NICs that repair it, lose some, duplicate some and delay some."""
        for number in range(count):
            for frame in wires.take(number):
                fate = rng.random() / faults if faults and device != "by library" else 3.0
                if fate < 1:
                    late_frames.append(frame)
                elif fate >= 2:
                    wires.deliver(frame)
                    if fate < 2.5:
                        wires.deliver(frame)
        if late_frames and rng.random() < 0.5:
            wires.deliver(late_frames.pop(0))

    records = [RankRecord() for _ in range(count)]
    programs = [program(own_steps, records) for own_steps in steps]
    ranks.run(*programs, deliver=deliver)  # type: ignore[arg-type]
    check(records)
    assert ranks.is_idle()
    event(
        f"{device}, cancelled: {sum(received.result is None for record in records for received in record.received) > 0}"
    )

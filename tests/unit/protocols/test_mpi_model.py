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
from tests.unit.protocols.nicless_endpoints import by_library

KINDS = ("send", "ssend", "receive", "iprobe", "improbe", "cancel", "turns")
Step = tuple[str, int, int]
"""Step of a program: (action, rank or any, tag or any); the rank of a cancel is the number of a receive begun before.
"""


@dataclass(eq=False)
class Received:
    """Receive: when it was begun, for what, and its result: a message's sender and number; None: it was cancelled."""

    begun: int
    source: int
    tag: int
    request: Request | Message
    buffer: bytearray
    cancelled_at: int | None = None
    got: tuple[int, int] | None = None


@dataclass
class RankRecord:
    """Record of one rank.

    sent: (destination, tag) by number. probed: when, for what, and the result. ended: whether all steps are done. got:
    number of messages received.
    """

    sent: list[tuple[int, int]] = field(default_factory=list)
    received: list[Received] = field(default_factory=list)
    probed: list[tuple[int, int, int, tuple[int, int] | None]] = field(default_factory=list)
    ended: bool = False
    got: int = 0


@st.composite
def trials(draw: st.DrawFn) -> tuple[int, list[list[Step]], float, int, int]:
    """Ranks, what each does, faults, seed, descriptors."""
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
        st.tuples(st.just("turns"), st.integers(1, 4), st.just(0)),
    )
    steps = [draw(st.lists(step, max_size=14)) for _ in range(count)]
    return (
        count, steps, draw(st.sampled_from([0.0, 0.05, 0.2])), draw(st.integers(0, 1 << 32)),
        draw(st.sampled_from([8, 640])),
    )  # fmt: skip


def program(steps: Sequence[Step], all_seen: Sequence[RankRecord]) -> Callable[[Comm], object]:
    """Perform the steps; then receive until no message is left, and cancel the receives that match none."""

    async def go(comm: Comm) -> None:
        own_seen, sends = all_seen[comm.rank], list[Request]()
        for now, (action, peer, tag) in enumerate(steps):
            if action in ("send", "ssend"):
                data = bytes([comm.rank, len(own_seen.sent)])
                own_seen.sent.append((peer, tag))
                begin_send = comm.Isend if action == "send" else comm.Issend
                sends.append(await begin_send(data, peer, tag))
            elif action == "receive":
                buffer = bytearray(2)
                own_seen.received.append(Received(now, peer, tag, await comm.Irecv(buffer, peer, tag), buffer))
            elif action == "iprobe":
                status = Status()
                probe_result = await comm.Iprobe(peer, tag, status)
                own_seen.probed.append((now, peer, tag, (status.source, status.tag) if probe_result else None))
                if probe_result:
                    assert status.count == 2
            elif action == "improbe":
                status = Status()
                message = await comm.Improbe(peer, tag, status)
                if message is not None:
                    received = Received(now, peer, tag, message, bytearray(2))
                    own_seen.received.append(received)
            elif action == "cancel":
                pending = [
                    entry for entry in own_seen.received if isinstance(entry.request, Request) and entry.request.active
                ]
                if pending:
                    request_drawn = pending[peer % len(pending)]
                    await request_drawn.request.Cancel()  # type: ignore[union-attr]
                    request_drawn.cancelled_at = now
            else:
                for _ in range(peer):
                    await Yield()
        for received in own_seen.received:
            if isinstance(received.request, Message):
                received.request = await received.request.Irecv(received.buffer)
        await rest(comm, all_seen, len(steps))
        await Request.Waitall(sends)
        for received in own_seen.received:
            assert isinstance(received.request, Request)
            status = Status()
            await received.request.Wait(status)
            if not status.Is_cancelled():
                received.got = received.buffer[0], received.buffer[1]
                assert status.source == received.buffer[0]

    return go


async def rest(comm: Comm, all_seen: Sequence[RankRecord], now: int) -> None:
    """Receive until all ranks' messages have been received, each rank taking those that no receive matches."""
    own_seen = all_seen[comm.rank]
    own_seen.ended = True
    while not all(received.ended for received in all_seen) or sum(received.got for received in all_seen) < sum(
        len(received.sent) for received in all_seen
    ):
        message = await comm.Improbe()
        if message is not None:
            buffer = bytearray(2)
            request = await message.Irecv(buffer)
            own_seen.received.append(Received(now, ANY_SOURCE, ANY_TAG, request, buffer))
        status, own_seen.got = Status(), 0
        for received in own_seen.received:
            if isinstance(received.request, Request) and received.request.is_complete:
                await received.request.Get_status(status)
                own_seen.got += not status.Is_cancelled()
    for received in own_seen.received:
        if isinstance(received.request, Request) and not received.request.is_complete:
            await received.request.Cancel()
            received.cancelled_at = now


def fits(received: Received, source: int, tag: int) -> bool:
    return received.source in (ANY_SOURCE, source) and received.tag in (ANY_TAG, tag)


def check(seen: Sequence[RankRecord]) -> None:
    for rank, own_seen in enumerate(seen):
        messages = {
            (source, number): tag
            for source, second in enumerate(seen)
            for number, (destination, tag) in enumerate(second.sent)
            if destination == rank
        }
        contents_received = [received.got for received in own_seen.received if received.got is not None]
        assert sorted(contents_received) == sorted(messages), "each message once"
        for received in own_seen.received:
            if received.got is None:
                assert received.cancelled_at is not None, "only what was cancelled has nothing"
                continue
            source, number = received.got
            assert fits(received, source, messages[received.got])
            for index, second in enumerate(own_seen.received):
                # Of two messages of one sender that fit, a receive gets the one sent first, unless one begun before it has
                # that. A claim is a receive that begins when it finds its message.
                if second.got is not None and second.got[0] == source and second.got[1] < number:
                    older = second.got
                    if fits(received, source, messages[older]):
                        assert index < own_seen.received.index(received), f"{received.got} overtook {older}"
        for _, source, tag, envelope in own_seen.probed:
            if envelope is not None:
                assert source in (ANY_SOURCE, envelope[0])
                assert tag in (ANY_TAG, envelope[1])
                assert any(
                    sender == envelope[0] and content == envelope[1] for (sender, _), content in messages.items()
                )


def ranks_on(device: str, count: int, descriptors: int) -> Ranks:
    if device == "by library":
        return by_library(count)
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

    all_seen = [RankRecord() for _ in range(count)]
    programs = [program(own_steps, all_seen) for own_steps in steps]
    ranks.run(*programs, deliver=deliver)  # type: ignore[arg-type]
    check(all_seen)
    assert ranks.is_idle()
    event(
        f"{device}, cancelled: {sum(received.got is None for own_steps in all_seen for received in own_steps.received) > 0}"
    )

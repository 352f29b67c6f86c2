"""Random programs of two to four ranks, whose frames are lost, duplicated and late: every message arrives once, unchanged,
and none overtakes another."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

from hypothesis import event, given
from hypothesis import strategies as st

from protocols.am2.settings import MAX_SEQUENCES
from protocols.am2.settings import Settings as Am2Settings
from protocols.emp.settings import Settings
from protocols.mpi import ANY_SOURCE, ANY_TAG, Comm, Request, Status
from tests.unit.protocols.emp_ranks import Ranks
from tests.unit.protocols.mpi_devices import Am2Ranks

SIZES = [0, 1, 4, 1456, 1457, 4070, 4096, 4097, 10_000]
AM2_SIZES = [0, 1, 33, 35, 511, 1400, 4096, 10_000, 140_000]


@dataclass(frozen=True)
class Message:
    """Message of a random program. context: 0 for buffers, 1 for objects."""

    number: int
    source: int
    destination: int
    context: int
    tag: int
    size: int

    @property
    def data(self) -> bytes:
        return random.Random(self.number).randbytes(self.size)


@dataclass
class Trial:
    """Random program of sends and receives, ordered per rank.

    any_source, any_tag: wildcards of a receiving rank and context, for all of its receives alike, since a
    wildcard may match the message that another receive waits for.

    build: creates the ranks. actions: for each rank, its transfers: a message to send, or (context, source, tag) of a
    receive.
    """

    ranks: int
    build: Callable[[], Ranks]
    actions: list[list[Message | tuple[int, int, int]]]
    faults: float
    rng: random.Random
    messages: list[Message] = field(default_factory=list)


@st.composite
def trials(draw: st.DrawFn) -> Trial:
    count, on_am2 = draw(st.integers(2, 4)), draw(st.booleans())
    sizes = AM2_SIZES if on_am2 else SIZES
    rank = st.integers(0, count - 1)
    messages = [
        Message(number, *fields)
        for number, fields in enumerate(
            draw(
                st.lists(
                    st.tuples(rank, rank, st.integers(0, 1), st.integers(0, 2), st.sampled_from(sizes)),
                    min_size=1,
                    max_size=24,
                )
            )
        )
    ]
    actions: list[list[Message | tuple[int, int, int]]] = []
    for rank in range(count):
        receives = []
        for context in (0, 1):
            any_source, any_tag = draw(st.booleans()), draw(st.booleans())
            receives += [
                (context, ANY_SOURCE if any_source else message.source, ANY_TAG if any_tag else message.tag)
                for message in messages
                if message.destination == rank and message.context == context
            ]
        receives = draw(st.permutations(receives))
        sends = [message for message in messages if message.source == rank]
        order = draw(st.permutations([True] * len(sends) + [False] * len(receives)))
        upcoming = (iter(sends), iter(receives))
        actions.append([next(upcoming[0]) if send else next(upcoming[1]) for send in order])
    build = draw(am2_ranks(count) if on_am2 else emp_ranks(count))
    faults = draw(st.sampled_from([0, 0.02, 0.1, 0.3]))
    return Trial(count, build, actions, faults, random.Random(draw(st.integers(0, 1 << 32))), messages)


def emp_ranks(count: int) -> st.SearchStrategy[Callable[[], Ranks]]:
    """Draw constructors of ranks on EMP."""
    # Giving up ends a program that could not end otherwise; loss alone does not cause it.
    settings = st.builds(Settings, unit=st.integers(1, 4), window=st.integers(1, 16), give_up=st.just(20_000_000_000))
    return st.builds(partial(partial, Ranks), st.just(count), settings, st.sampled_from([200, 1500, 9000]))


def am2_ranks(count: int) -> st.SearchStrategy[Callable[[], Ranks]]:
    """Draw constructors of ranks on links that reorder frames."""
    settings = st.builds(
        Am2Settings,
        sequences=st.just(MAX_SEQUENCES),
        channels=st.sampled_from([1, 3, 32]),
        credits=st.sampled_from([1, 2, 4, 16]),
        medium=st.sampled_from([512, 8192]),
        translations=st.sampled_from([1, 2, 256]),
    )
    return st.builds(partial(partial, Am2Ranks), st.just(count), settings, st.sampled_from([1500, 9000]))


@dataclass
class Match:
    """Receive, in the order in which its rank began them, and its result."""

    posted: int
    destination: int
    context: int
    source: int
    tag: int
    message: Message

    def matches(self, message: Message) -> bool:
        return (
            (self.destination, self.context) == (message.destination, message.context)
            and self.source in (message.source, ANY_SOURCE)
            and self.tag in (message.tag, ANY_TAG)
        )


def program(
    actions: list[Message | tuple[int, int, int]], comms: tuple[Comm, Comm], by_number: dict[int, Message]
) -> Callable[[Comm], Awaitable[list[Match]]]:
    async def run_actions(_: Comm) -> list[Match]:
        buffers, objects = comms
        requests: list[Request] = []
        receives: list[tuple[tuple[int, int, int], Request, bytearray]] = []
        for action in actions:
            if isinstance(action, Message):
                if action.context == 0:
                    data = action.number.to_bytes(2, "big") + action.data
                    requests.append(await buffers.Isend(data, action.destination, action.tag))
                else:
                    requests.append(await objects.isend((action.number, action.data), action.destination, action.tag))
                continue
            context, source, tag = action
            buffer = bytearray(max(AM2_SIZES) + 2)
            if context == 0:
                receives.append((action, await buffers.Irecv(buffer, source, tag), buffer))
            else:
                receives.append((action, await objects.irecv(source=source, tag=tag), buffer))
        matches = []
        for index, ((context, source, tag), request, buffer) in enumerate(receives):
            status = Status()
            if context == 0:
                await request.Wait(status)
                number, data = int.from_bytes(buffer[:2], "big"), bytes(buffer[2 : status.count])
            else:
                number, data = await request.wait(status)
            message = by_number[number]
            assert data == message.data
            assert (status.source, status.tag) == (message.source, message.tag)
            matches.append(Match(index, buffers.rank, context, source, tag, message))
        await Request.Waitall(requests)
        return matches

    return run_actions


@given(trials())
def test_every_message_arrives_once_and_none_overtakes(trial: Trial) -> None:
    ranks = trial.build()
    comm_lists = (ranks.communicators(0), ranks.communicators(1))
    rng, wires = trial.rng, ranks.wires
    late_frames: list[bytes] = []

    def deliver() -> None:
        """Deliver frames; lose some, duplicate some, and delay some until after all others."""
        for number in range(trial.ranks):
            for frame in wires.take(number):
                fate = rng.random() / trial.faults if trial.faults else 4.0
                if 2 <= fate < 3:
                    late_frames.append(frame)
                elif fate >= 1:
                    wires.deliver(frame)
                    if fate < 2:
                        wires.deliver(frame)
        if late_frames and rng.random() < 0.5:
            for frame in late_frames:
                wires.deliver(frame)
            late_frames.clear()

    by_number = {message.number: message for message in trial.messages}
    programs = [
        program(actions, (comm_lists[0][rank], comm_lists[1][rank]), by_number)
        for rank, actions in enumerate(trial.actions)
    ]
    matches = [match for rank_matches in ranks.run(*programs, deliver=deliver) for match in rank_matches]
    event(f"{trial.ranks} {type(ranks).__name__}, faults {trial.faults}")

    assert sorted(match.message.number for match in matches) == list(range(len(trial.messages)))
    assert ranks.is_idle()
    # MPI 4.1, section 3.5: of two messages of one sender that match a receive, it gets the one sent first; of two receives
    # that match a message, the one begun first gets it.
    for first in matches:
        for second in matches:
            first_message, second_message = first.message, second.message
            if (
                first_message.source == second_message.source
                and first_message.number < second_message.number
                and second.matches(first_message)
            ):
                assert first.posted < second.posted, f"message {second_message.number} overtook {first_message.number}"

"""Random schedules: messages among a few NICs whose wires lose, duplicate, reorder and damage frames, all from one seed.

In two phases, after TigerBeetle's simulator: first the wires have faults and nothing wrong may happen; then they are
healed, and within a bounded time every transfer must complete and no resource stay in use. For protocols whose host library
matches messages by source and tag.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import NamedTuple, Protocol

from protocols.core.completion import Completion
from protocols.core.firmware import Plug
from tests.unit.protocols.list_wires import Wires

GUARD = 64
"""Bytes around each buffer that nothing may touch."""


class Delivered(Protocol):
    """Result of a receive."""

    @property
    def source(self) -> int: ...
    @property
    def tag(self) -> int: ...
    @property
    def length(self) -> int: ...


class Endpoint(Protocol):
    """Interface of a host library that a schedule drives."""

    @property
    def free_descriptors(self) -> int: ...
    @property
    def pinned(self) -> int: ...
    def post_send(self, destination: int, tag: int, data: bytearray) -> Completion[Delivered]: ...
    def post_receive(self, source: int, tag: int, buffer: memoryview) -> Completion[Delivered]: ...
    def pending_work(self) -> list[str]: ...


@dataclass(frozen=True)
class Library:
    """A protocol's values for any source and any tag, and its test for a truncated message."""

    any_source: int
    any_tag: int
    truncated: Callable[[Completion[Delivered]], Delivered | None]


@dataclass(frozen=True)
class Faults:
    """Probabilities for each frame. delay: that it arrives some rounds after those sent later."""

    loss: float = 0
    duplication: float = 0
    damage: float = 0
    delay: float = 0

    @staticmethod
    def draw(rng: Random) -> Faults:
        """Draw each kind of fault: absent, rare or frequent."""
        return Faults(*[rng.choice([0, 0.02, 0.2, 0.4]) for _ in range(4)])


@dataclass(eq=False)
class Message:
    source: int
    destination: int
    tag: int
    content: bytes


@dataclass(eq=False)
class Receive:
    """Receive for a message. capacity: bytes of its buffer. any_source, any_tag: wildcards."""

    message: Message
    capacity: int
    any_source: bool = False
    any_tag: bool = False
    memory: bytearray = field(default_factory=bytearray)
    completion: Completion[Delivered] | None = None


class FrameInFlight(NamedTuple):
    """Frame on a wire. arrival: the round in which it arrives. order: of its transmission."""

    arrival: int
    order: int
    frame: bytes


def _reuse(memory: bytearray, _: object) -> None:
    """Overwrite a sender's buffer, as a program may as soon as its send is done."""
    memory[:] = b"\xdd" * len(memory)


class Schedule:
    """Random case. After `run`, `digest` is a hash of every frame sent, with its time."""

    def __init__(self, seed: int, plug: Plug, library: Library, sizes: Sequence[int], count: int, mtu: int) -> None:
        rng = self.rng = Random(seed)
        self.library = library
        self.wires = Wires(plug, count, mtu)
        self.hosts: list[Endpoint] = [agent.host for agent in self.wires.agents]  # type: ignore[misc]
        self.descriptors = self.hosts[0].free_descriptors
        self.faults = Faults.draw(rng)
        self.digest = hashlib.sha256()
        tags = rng.choice([1, 3, 20])
        self.messages = [
            Message(
                rng.randrange(count), rng.randrange(count), rng.randrange(tags),
                rng.randbytes(rng.choice(sizes)),
            )
            for _ in range(rng.randrange(1, 40))
        ]  # fmt: skip
        self.receives = self._receives()
        self._max_posted = [rng.choice([1, 3, 1000]) for _ in range(count)]  # receives posted ahead, by node
        self._sends: list[tuple[Message, Completion[Delivered]]] = []
        self._to_send = list(self.messages)
        self._to_post = list(self.receives)
        self._posted: list[Receive] = []
        self._in_flight: list[FrameInFlight] = []
        self._round = 0
        self._order = 0

    def run(self, faulty_rounds: int = 200, healthy_rounds: int = 5000) -> None:
        """Run up to `faulty_rounds` rounds with faults, then up to `healthy_rounds` without. Raises AssertionError for a
        violation."""
        for _ in range(faulty_rounds):
            self._step()
            if not self._has_work():
                break
        self.faults = Faults()
        for _ in range(healthy_rounds):
            if not self._step() and not self._has_work():
                break
        else:
            raise AssertionError(f"not done after {healthy_rounds} rounds: {self.wires.pending_work()}")
        self._check()

    def _receives(self) -> list[Receive]:
        """Draw a receive for each message, in any order, some too short.

        A node either names source and tag in all its receives or uses wildcards in all: mixed, a wildcard could take
        the message of another receive.
        """
        rng = self.rng
        wildcards = [rng.choice([(False, False), (False, False), (True, True)]) for _ in self.hosts]
        longest = max((len(message.content) for message in self.messages), default=0)
        receives = []
        for message in self.messages:
            capacity = longest if rng.random() < 0.8 else rng.randrange(longest + 1)
            receives.append(Receive(message, capacity, *wildcards[message.destination]))
        rng.shuffle(receives)
        return receives

    def _step(self) -> bool:
        """Perform one round; return False if no further event is possible."""
        rng, wires = self.rng, self.wires
        self._round += 1
        is_posted = self._post()
        for number in range(len(self.hosts)):
            for frame in wires.take(number):
                self.digest.update(wires.now.to_bytes(8, "big") + frame)
                self._send(frame)
        due_frames = [entry for entry in self._in_flight if entry.arrival <= self._round]
        self._in_flight = [entry for entry in self._in_flight if entry.arrival > self._round]
        for due in sorted(due_frames):
            wires.deliver(due.frame)
        if due_frames or is_posted or self._in_flight:
            if rng.random() < 0.02:
                wires.tick()  # before the frames in flight arrive
            return True
        return wires.tick()

    def _post(self) -> bool:
        rng, is_posted = self.rng, False
        for _ in range(rng.randrange(4)):
            if self._to_send and rng.random() < 0.5:
                message = self._to_send.pop(0)
                host = self.hosts[message.source]
                memory = bytearray(message.content)
                send = host.post_send(message.destination, message.tag, memory)
                send.add_callback(partial(_reuse, memory))
                self._sends.append((message, send))
                is_posted = True
        waiting_receives = Counter(
            receive.message.destination
            for receive in self.receives
            if receive.completion is not None and not receive.completion.done
        )
        for receive in list(self._to_post):
            node = receive.message.destination
            if waiting_receives[node] < self._max_posted[node] and rng.random() < 0.3:
                waiting_receives[node] += 1
                self._to_post.remove(receive)
                self._posted.append(receive)
                receive.memory[:] = b"\xee" * (receive.capacity + 2 * GUARD)
                receive.completion = self.hosts[node].post_receive(
                    self.library.any_source if receive.any_source else receive.message.source,
                    self.library.any_tag if receive.any_tag else receive.message.tag,
                    memoryview(receive.memory)[GUARD : GUARD + receive.capacity],
                )
                is_posted = True
        return is_posted

    def _send(self, frame: bytes) -> None:
        rng, faults = self.rng, self.faults
        if rng.random() < faults.loss:
            return
        for _ in range(2 if rng.random() < faults.duplication else 1):
            transmitted = frame
            if rng.random() < faults.damage:
                bit_position = rng.randrange(8 * len(frame))
                transmitted = (
                    frame[: bit_position // 8]
                    + bytes([frame[bit_position // 8] ^ 1 << bit_position % 8])
                    + frame[bit_position // 8 + 1 :]
                )
            extra_delay = rng.randrange(1, 20) if rng.random() < faults.delay else 0
            self._order += 1
            self._in_flight.append(FrameInFlight(self._round + extra_delay, self._order, transmitted))

    def _has_work(self) -> bool:
        """Return whether a message or receive is not posted, or not done."""
        return (
            bool(self._to_send or self._to_post)
            or any(not send.done for _, send in self._sends)
            or any(receive.completion is not None and not receive.completion.done for receive in self.receives)
        )

    def _check(self) -> None:
        """Check that each message arrived once, complete and in order, without overrun, and that nothing is left."""
        for message, send in self._sends:
            assert send.done, ("a send is not done", self.wires.pending_work())
            assert send.result().length == len(message.content)
        arrived: dict[tuple[int, int, int], list[Receive]] = {}
        for node in range(len(self.hosts)):
            for receive in (posted for posted in self._posted if posted.message.destination == node):
                assert receive.completion is not None
                assert receive.completion.done, ("a receive is not done", self.wires.pending_work())
                envelope = self.library.truncated(receive.completion) or receive.completion.result()
                assert receive.any_source or envelope.source == receive.message.source
                assert receive.any_tag or envelope.tag == receive.message.tag
                arrived.setdefault((envelope.source, node, envelope.tag), []).append(receive)
                is_truncated = self.library.truncated(receive.completion) is not None
                assert is_truncated == (envelope.length > receive.capacity), (
                    "a receive fails if, and only if, its message is longer"
                )
        for flow, receives in arrived.items():
            contents = [m.content for m in self.messages if (m.source, m.destination, m.tag) == flow]
            assert len(receives) == len(contents), "each message is received once"
            for content, receive in zip(contents, receives, strict=True):
                filled = content[: receive.capacity]
                guard_bytes = b"\xee" * (receive.capacity - len(filled) + GUARD)
                assert receive.memory == b"\xee" * GUARD + filled + guard_bytes, (
                    "complete, in order, without an overrun"
                )
        for host, agent in zip(self.hosts, self.wires.agents, strict=True):
            assert host.free_descriptors == self.descriptors, "no descriptor is lost"
            assert host.pinned == 0, "no memory stays pinned"
            assert host.pending_work() == []
            assert agent.firmware.pending_work() == []
            assert agent.firmware.deadline is None

"""Random schedules: messages among a few NICs whose wires lose, repeat, reorder and damage frames, all from one seed.

In two phases, after TigerBeetle's simulator: first the wires have faults and nothing wrong may happen; then they are
healed, and within a bounded time every transfer must be done and nothing be left over. For protocols whose host library
matches messages by source and tag.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Protocol

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
    """Chances of each frame."""

    loss: float = 0
    repetition: float = 0
    damage: float = 0
    delay: float = 0
    """Probability that a frame comes some rounds later than those sent after it."""

    @staticmethod
    def drawn(random: Random) -> Faults:
        """Draw each kind of fault: absent, rare or frequent."""
        return Faults(*[random.choice([0, 0.02, 0.2, 0.4]) for _ in range(4)])


@dataclass(eq=False)
class Message:
    source: int
    destination: int
    tag: int
    content: bytes


@dataclass(eq=False)
class Receive:
    """room: bytes of its buffer. any_source, any_tag: wildcards."""

    of: Message
    room: int
    any_source: bool = False
    any_tag: bool = False
    memory: bytearray = field(default_factory=bytearray)
    completion: Completion[Delivered] | None = None


def _reuse(memory: bytearray, _: object) -> None:
    """A sender's memory serves something else as soon as its message is sent."""
    memory[:] = b"\xdd" * len(memory)


class Schedule:
    """Random case. After `run`, `digest` is a hash of every frame sent, with its time."""

    def __init__(self, seed: int, plug: Plug, library: Library, sizes: Sequence[int], count: int, mtu: int) -> None:
        random = self.random = Random(seed)
        self.library = library
        self.wires = Wires(plug, count, mtu)
        self.hosts: list[Endpoint] = [agent.host for agent in self.wires.agents]  # type: ignore[misc]  # as it must be
        self.descriptors = self.hosts[0].free_descriptors
        self.faults = Faults.drawn(random)
        self.digest = hashlib.sha256()
        tags = random.choice([1, 3, 20])
        self.messages = [
            Message(
                random.randrange(count), random.randrange(count), random.randrange(tags),
                random.randbytes(random.choice(sizes)),
            )
            for _ in range(random.randrange(1, 40))
        ]  # fmt: skip
        self.receives = self._receives()
        self._at_once = [random.choice([1, 3, 1000]) for _ in range(count)]  # receives posted ahead, by node
        self._sends: list[tuple[Message, Completion[Delivered]]] = []
        self._to_send = list(self.messages)
        self._to_post = list(self.receives)
        self._posted: list[Receive] = []
        self._flying: list[tuple[int, int, bytes]] = []  # round in which it comes, order, frame
        self._round = 0
        self._order = 0

    def run(self, faulty: int = 200, healthy: int = 5000) -> None:
        """Run `faulty` rounds with faults, then up to `healthy` rounds without. Raises AssertionError with what is
        wrong."""
        for _ in range(faulty):
            self._go_on()
            if not self._unfinished():
                break
        self.faults = Faults()
        for _ in range(healthy):
            if not self._go_on() and not self._unfinished():
                break
        else:
            raise AssertionError(f"no end after {healthy} rounds: {self.wires.pending_work()}")
        self._check()

    def _receives(self) -> list[Receive]:
        """Draw a receive for each message, in any order, some too short.

        A node either names source and tag in all its receives or uses wildcards in all: mixed, a wildcard could take
        the message of another receive.
        """
        random = self.random
        wildcards = [random.choice([(False, False), (False, False), (True, True)]) for _ in self.hosts]
        longest = max((len(message.content) for message in self.messages), default=0)
        receives = []
        for message in self.messages:
            room = longest if random.random() < 0.8 else random.randrange(longest + 1)
            receives.append(Receive(message, room, *wildcards[message.destination]))
        random.shuffle(receives)
        return receives

    def _go_on(self) -> bool:
        """Perform one round; return False if no further event is possible."""
        random, wires = self.random, self.wires
        self._round += 1
        is_posted = self._post()
        for number in range(len(self.hosts)):
            for frame in wires.take(number):
                self.digest.update(wires.now.to_bytes(8, "big") + frame)
                self._send(frame)
        due_frames = [flying for flying in self._flying if flying[0] <= self._round]
        self._flying = [flying for flying in self._flying if flying[0] > self._round]
        for _, _, frame in sorted(due_frames):
            wires.deliver(frame)
        if due_frames or is_posted or self._flying:
            if random.random() < 0.02:
                wires.tick()  # sooner than the frames that fly
            return True
        return wires.tick()

    def _post(self) -> bool:
        random, is_posted = self.random, False
        for _ in range(random.randrange(4)):
            if self._to_send and random.random() < 0.5:
                message = self._to_send.pop(0)
                host = self.hosts[message.source]
                memory = bytearray(message.content)
                send = host.post_send(message.destination, message.tag, memory)
                send.add_callback(partial(_reuse, memory))
                self._sends.append((message, send))
                is_posted = True
        waiting_receives = Counter(
            receive.of.destination
            for receive in self.receives
            if receive.completion is not None and not receive.completion.done
        )
        for receive in list(self._to_post):
            node = receive.of.destination
            if waiting_receives[node] < self._at_once[node] and random.random() < 0.3:
                waiting_receives[node] += 1
                self._to_post.remove(receive)
                self._posted.append(receive)
                receive.memory[:] = b"\xee" * (receive.room + 2 * GUARD)
                receive.completion = self.hosts[node].post_receive(
                    self.library.any_source if receive.any_source else receive.of.source,
                    self.library.any_tag if receive.any_tag else receive.of.tag,
                    memoryview(receive.memory)[GUARD : GUARD + receive.room],
                )
                is_posted = True
        return is_posted

    def _send(self, frame: bytes) -> None:
        random, faults = self.random, self.faults
        if random.random() < faults.loss:
            return
        for _ in range(2 if random.random() < faults.repetition else 1):
            frame_sent = frame
            if random.random() < faults.damage:
                bit_position = random.randrange(8 * len(frame))
                frame_sent = (
                    frame[: bit_position // 8]
                    + bytes([frame[bit_position // 8] ^ 1 << bit_position % 8])
                    + frame[bit_position // 8 + 1 :]
                )
            extra_delay = random.randrange(1, 20) if random.random() < faults.delay else 0
            self._order += 1
            self._flying.append((self._round + extra_delay, self._order, frame_sent))

    def _unfinished(self) -> bool:
        return (
            bool(self._to_send or self._to_post)
            or any(not send.done for _, send in self._sends)
            or any(receive.completion is not None and not receive.completion.done for receive in self.receives)
        )

    def _check(self) -> None:
        """Check that each message arrived once, complete and in order, without overrun, and that nothing is left."""
        for message, send in self._sends:
            assert send.done, ("a send is never done", self.wires.pending_work())
            assert send.result().length == len(message.content)
        arrived: dict[tuple[int, int, int], list[Receive]] = {}
        for node in range(len(self.hosts)):
            for receive in (posted for posted in self._posted if posted.of.destination == node):
                assert receive.completion is not None
                assert receive.completion.done, ("a receive is never done", self.wires.pending_work())
                envelope = self.library.truncated(receive.completion) or receive.completion.result()
                assert receive.any_source or envelope.source == receive.of.source
                assert receive.any_tag or envelope.tag == receive.of.tag
                arrived.setdefault((envelope.source, node, envelope.tag), []).append(receive)
                cut = self.library.truncated(receive.completion) is not None
                assert cut == (envelope.length > receive.room), "a receive fails if, and only if, its message is longer"
        for flow, receives in arrived.items():
            contents = [m.content for m in self.messages if (m.source, m.destination, m.tag) == flow]
            assert len(receives) == len(contents), "each message is received once"
            for content, receive in zip(contents, receives, strict=True):
                filled = content[: receive.room]
                guard_bytes = b"\xee" * (receive.room - len(filled) + GUARD)
                assert receive.memory == b"\xee" * GUARD + filled + guard_bytes, "whole, in order, nothing overrun"
        for host, agent in zip(self.hosts, self.wires.agents, strict=True):
            assert host.free_descriptors == self.descriptors, "no descriptor is lost"
            assert host.pinned == 0, "no memory stays pinned"
            assert host.pending_work() == []
            assert agent.firmware.pending_work() == []
            assert agent.firmware.deadline is None

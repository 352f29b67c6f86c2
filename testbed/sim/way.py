"""A direction of a link in the simulation: the wire model, and the event that takes frames out of it.

One entry in the engine's heap stands for all that a direction holds: the next time at which something is due. So what a
frame costs is one entry for every link that it crosses. A direction that leaves nothing to chance does nothing but
arithmetic for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from heapq import heappush
from typing import Final, Literal, Protocol

from testbed.engine.loop import Loop
from testbed.spec.layout import Impairment, Link
from testbed.wire.counters import Counters, Outcome
from testbed.wire.direction import Direction
from testbed.wire.fates import Record
from testbed.wire.fields import Fields
from testbed.wire.flows import MOST_AHEAD, Classifier, Flows, Known, look_ahead
from testbed.wire.rules import RuleSet

NEVER: Final = 1 << 63
"""Later than any time."""

DirectionName = Literal["forward", "backward"]
Receive = Callable[[int, bytes], object]
"""A frame has come, at a time in nanoseconds."""

_UnderWay = tuple[int, bytes, Known | None]
"""When a frame arrives, the frame, and its flow, if that is known."""

_BITS: Final = 40
_FRAME: Final = 1 << _BITS  # frames and bytes are added up in one number: each that changes is one more place in memory


class Outlet(Protocol):
    """Where a NIC's frames go."""

    def enter(self, now: int, frame: bytes) -> object:
        """A frame leaves the NIC at that time."""
        ...


class Onward(Protocol):
    """Where a switch takes frames in. out: the direction that leaves there. table: MAC -> where a frame for it leaves now,
    if that is known. learns: it wants to see every frame; else only those that the table does not lead elsewhere."""

    @property
    def out(self) -> Way: ...
    @property
    def table(self) -> Mapping[bytes, Way]: ...
    @property
    def learns(self) -> bool: ...

    def receive(self, now: int, frame: bytes, known: Known | None) -> object:
        """A frame has come; its flow, where somebody has asked for it already."""
        ...


def ignore(now: int, frame: bytes) -> None:
    """Where nobody listens."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What all directions of a simulation have in common; as for `Direction`."""

    loop: Loop
    seed: int
    fields: Fields
    classifier: Classifier
    rules: RuleSet | None = None
    files: Mapping[str, str] | None = None
    log: Callable[[Record], object] | None = None


class Way(Direction):
    """From one end of a link to the other. Times never go backwards.

    Where nothing comes into it but rate, delay, a queue and independent loss, there is a short way, which touches little
    memory: that, of thousands of directions, is what takes the time. What is under way then stands in `_first`, which is in
    the loop's heap, too, and in `_behind`; anywhere else in the base's own places; never in both. receive: who gets the
    frames. sequence: which entry of the loop's heap counts, as a timer's.
    """

    __slots__ = (
        "_arrive", "_back", "_behind", "_clears", "_first", "_heap", "_is_cut", "_losing", "_next", "_onward", "_quick",
        "_said", "_switch", "_table", "_taken", "_wake", "end", "link", "lost", "receive", "sequence", "source",
    )  # fmt: skip

    def __init__(self, link: Link, direction: DirectionName, shared: Shared) -> None:
        forward = direction == "forward"
        super().__init__(
            link.name,
            direction,
            link.forward if forward else link.backward,
            seed=shared.seed,
            rules=shared.rules,
            fields=shared.fields,
            classifier=shared.classifier,
            files=shared.files,
            log=shared.log,
        )
        self._heap = shared.loop.heap
        self._next = shared.loop.next_sequence
        self._arrive = self._first_arrives
        self._first: _UnderWay | None = None
        self._behind: deque[_UnderWay] = deque()
        self._taken = 0  # what went the short way since the counters were last asked for: frames * _FRAME + bytes
        self._said = 0  # how much of that had not arrived then
        self._wake = NEVER  # when the entry in the heap is due
        self.sequence = 0
        self.link: Final = link.name
        self.source: Final = link.a if forward else link.b
        self.end: Final = link.b if forward else link.a
        self.receive: Receive = ignore
        self._switch: Onward | None = None
        self._onward: Callable[[int, bytes, Known | None], object] | None = None  # what takes frames into it
        self._table: Mapping[bytes, Way] | None = None  # of frames that this need not be given
        self._back: Way | None = None
        self.lost = 0
        """Frames that entered a cable that was out."""
        self._is_cut = False
        self._quick = False  # there is nothing but rate and delay
        self._losing: Flows | None = None  # or nothing but that and independent loss
        self._clears = False  # it will be so when nothing is under way any more
        self._choose()

    @property
    def is_cut(self) -> bool:
        """The cable is out: what enters is lost; what is under way arrives."""
        return self._is_cut

    @is_cut.setter
    def is_cut(self, value: bool) -> None:
        self._is_cut = value
        self._choose()

    @property
    def counters(self) -> Counters:
        self._count()
        return self._counters

    @property
    def held(self) -> int:
        return super().held + len(self._under_way())

    def enter(self, now: int, frame: bytes, known: Known | None = None) -> None:
        """A frame does, and leaves in its time, or is lost. known: its flow, where somebody has asked for it already."""
        way: Way | None = self
        while way is not None:
            way = way.admit(now, frame, known)

    def admit(self, now: int, frame: bytes, known: Known | None) -> Way | None:
        """The same; but where a frame takes no time to the next switch, and that knows its way, it is there already: the
        direction that it enters next, at once. So cables and switches without delay cost no event, however many they are."""
        if not self._quick:
            losing = self._losing
            if losing is None:
                self._enter_slowly(now, frame)
                return None
            if known is None:
                known = losing.known(frame)
                if known.path is None:
                    look_ahead(known, self._path(known.destination))
            counted = losing.lost(known, self._loss)
            if counted is not None:
                self._n += 1
                self._counters.offered += 1
                self._counters.loss += 1
                self._lost(counted, Outcome.LOSS)
                return None
        # As `_put`.
        size = len(frame)
        if self._rate:
            start = self._busy
            if start > now:
                nanoseconds, carry = divmod(size * self._per_byte + self._carry, self._per_ns)
                due = start + nanoseconds
                if due - now > self._ample and not self._room(now, size):
                    self._full(now, size)
                    return None
                self._waiting.append((start, size))
                self._waiting_bytes += size
            else:
                nanoseconds, carry = divmod(size * self._per_byte, self._per_ns)
                due = now + nanoseconds
                if self._waiting_bytes:
                    self._waiting.clear()
                    self._waiting_bytes = 0
            self._busy = due
            self._carry = carry
            due += self._delay
        else:
            due = now + self._delay
            if due == now and (table := self._table) is not None and self._first is None:
                way = table.get(frame[:6] if known is None else known.destination)
                if way is not None and way is not self._back:
                    self._taken += _FRAME + size
                    return way
        self._taken += _FRAME + size
        if self._first is None:
            self._first = first = (due, frame, known)
            heappush(self._heap, (due, self._next(), self._arrive, first))
        else:
            self._behind.append((due, frame, known))
        return None

    def lead_to(self, receive: Receive) -> None:
        """From now on the frames come there."""
        self.receive = receive
        self._switch = self._onward = self._table = self._back = None

    def lead_on(self, switch: Onward) -> None:
        """From now on the frames come to a switch."""
        self._switch, self._onward, self._back = switch, switch.receive, switch.out
        self._table = None if switch.learns else switch.table

    def change(
        self,
        now: int,
        impairment: Impairment,
        files: Mapping[str, str] | None = None,
        restart: bool | None = None,
    ) -> None:
        self._take_back()
        super().change(now, impairment, files, restart)
        self._look_ahead()
        self._arm()
        self._choose()

    def _first_arrives(self, first: _UnderWay) -> None:
        """The first of what went the short way does, and those that are due with it."""
        if first is not self._first:
            return  # it goes on elsewhere
        behind, onward, table = self._behind, self._onward, self._table
        while True:
            now, frame, known = first
            following = self._first = behind.popleft() if behind else None
            if onward is None:
                self.receive(now, frame)
            elif (
                table is not None
                and (way := table.get(frame[:6] if known is None else known.destination)) is not None
                and way is not self._back
            ):
                while way is not None:  # as `enter`
                    way = way.admit(now, frame, known)
            else:
                onward(now, frame, known)
            if following is None or following is not self._first:
                return  # what has entered meanwhile has an entry of its own
            due = following[0]
            if due > now:
                heappush(self._heap, (due, self._next(), self._arrive, following))
                return
            first = following

    def _path(self, destination: bytes) -> list[Flows]:
        """The directions through which a frame for that MAC would go now, from here on, as far as nothing but loss can
        happen to it there."""
        path: list[Flows] = []
        way: Way | None = self
        while way is not None and len(path) < MOST_AHEAD:
            losing, switch = way._losing, way._switch
            if losing is None or losing in path:
                break
            path.append(losing)
            way = None if switch is None else switch.table.get(destination)
        return path

    # Everything else goes the base's ways.

    def _enter_slowly(self, now: int, frame: bytes) -> None:
        if self._is_cut:
            self.lost += 1
        else:
            self.offer(now, frame)
            self._arm()

    def call(self, now: int) -> None:
        """Something is due. For the loop only."""
        self._wake = NEVER
        onward = self._onward
        for _, frame in self.poll(now):
            if onward is None:
                self.receive(now, frame)
            else:
                onward(now, frame, None)
        self._arm()
        if self._clears and self.deadline is None:
            self._choose()

    def _arm(self) -> None:
        """Have an entry in the heap for the deadline, unless an earlier one is there."""
        deadline = self.deadline
        if deadline is not None and deadline < self._wake:
            self._wake = deadline
            self.sequence = sequence = self._next()
            heappush(self._heap, (deadline, sequence, None, self))

    def _choose(self) -> None:
        """Which way frames take from now on: the short one where it will do and nothing is under way elsewhere."""
        self._count()
        losing = self._flows if self._loss and self._injected is None else None
        short = (self._plain or losing is not None) and not (self._shaped or self._is_cut)
        self._clears = short and self.deadline is not None
        short = short and self.deadline is None
        self._quick = short and self._plain
        self._losing = losing if short else None

    def _take_back(self) -> None:
        """What went the short way goes on in the base's places; its entry in the heap will find nothing."""
        self._count()
        under_way = self._under_way()
        if under_way:
            self._fifo.extend([(due, frame) for due, frame, _ in under_way])
            self._last = under_way[-1][0]
            self._said = 0
            self._first = None
            self._behind.clear()

    def _under_way(self) -> list[_UnderWay]:
        """What went the short way and has not arrived."""
        return [] if self._first is None else [self._first, *self._behind]

    def _count(self) -> None:
        """What the short way has added up."""
        under_way = sum([_FRAME + len(frame) for _, frame, _ in self._under_way()])
        counters, frames = self._counters, self._taken >> _BITS
        arrived = self._said + self._taken - under_way
        counters.offered += frames
        counters.delivered += arrived >> _BITS
        counters.delivered_bytes += arrived & _FRAME - 1
        if self._losing is not None:
            self._n += frames
        self._said, self._taken = under_way, 0

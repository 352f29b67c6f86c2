"""One direction of a link in the simulation: the wire model, and the event that takes frames out of it.

One entry in the engine's heap stands for all frames in a direction: the next time at which something is due. So a frame
costs one entry per link that it crosses. A direction without random decisions only does arithmetic.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from heapq import heappush
from typing import Final, Protocol

from testbed.engine.loop import NEVER, Loop
from testbed.fabric.direction import LinkDirection
from testbed.fabric.interface import Receive, ignore
from testbed.fabric.line import FULL
from testbed.fates.fate_counters import Counters
from testbed.fates.flows import MAX_AHEAD, Counted, Flows, Known, look_ahead
from testbed.fates.stage import FateOptions
from testbed.spec.layout import DirectionName, Impairment, Link

_UnderWay = tuple[int, bytes, Known | None]
"""A frame under way: arrival time, frame, and its flow if known."""


class Onward(Protocol):
    """A switch's input port.

    out: the outgoing direction of this port. table: MAC -> outgoing direction, if known. learns: the port must see
    every frame; otherwise only those whose destination is not in the table.
    """

    @property
    def out(self) -> SimDirection: ...
    @property
    def table(self) -> Mapping[bytes, SimDirection]: ...
    @property
    def learns(self) -> bool: ...

    def receive(self, now: int, frame: bytes, known: Known | None) -> object:
        """Receive a frame. known: its flow, if already classified."""
        ...


class SimDirection:
    """One direction of a link. Times never go backwards.

    With only rate, delay, a queue and independent loss, frames take a fast path that touches little memory, since
    memory access dominates the cost of thousands of directions. Frames under way are then in `_first`, which is also in
    the loop's heap, and in `_behind`; otherwise they are on the direction's line; never in both. take: the entry
    function, which observers wrap. receive: the sink of frames. sequence: identifies the valid entry in the loop's
    heap, like a timer's.
    """

    __slots__ = (
        "_arrive", "_back", "_behind", "_clears", "_direction", "_fates", "_first", "_generation",
        "_heap", "_is_cut", "_line", "_losing", "_next", "_onward", "_quick", "_said_bytes", "_said_frames", "_switch",
        "_table", "_taken_bytes", "_taken_frames", "_wake", "end", "link", "lost", "receive", "sequence", "source", "take",
    )  # fmt: skip

    def __init__(self, link: Link, direction: DirectionName, loop: Loop, options: FateOptions) -> None:
        forward = direction == "forward"
        self._direction = LinkDirection(link.name, direction, link.forward if forward else link.backward, options)
        self._fates = self._direction.fates
        self._line = self._direction.line
        self._heap = loop.heap
        self._next = loop.next_sequence
        self._arrive = self._first_arrives
        self._first: _UnderWay | None = None
        self._generation = 0  # of entries in the heap: when frames move to the line, those of before are stale
        self._behind: deque[_UnderWay] = deque()
        self._taken_frames = 0  # frames on the fast path since the last _count
        self._taken_bytes = 0
        self._said_frames = 0  # frames under way at the last _count
        self._said_bytes = 0
        self._wake = NEVER  # when the entry in the heap is due
        self.sequence = 0
        self.link: Final = link.name
        self.source: Final = link.a if forward else link.b
        self.end: Final = link.b if forward else link.a
        self.take: Callable[[int, bytes, Known | None], SimDirection | None] = self.admit
        self.receive: Receive = ignore
        self._switch: Onward | None = None
        self._onward: Callable[[int, bytes, Known | None], object] | None = None  # the switch's receive
        self._table: Mapping[bytes, SimDirection] | None = None  # destinations that bypass _onward
        self._back: SimDirection | None = None
        self.lost = 0
        """Frames lost at a pulled cable."""
        self._is_cut = False
        self._quick = False  # only rate and delay
        self._losing: Flows | None = None  # set if there is only rate, delay and independent loss
        self._clears = False  # the fast path can be used once the line is empty
        self._choose()

    @property
    def is_cut(self) -> bool:
        """Whether the cable is pulled: frames that enter are lost, frames under way arrive."""
        return self._is_cut

    @is_cut.setter
    def is_cut(self, value: bool) -> None:
        self._is_cut = value
        self._choose()

    @property
    def impairment(self) -> Impairment:
        return self._direction.impairment

    @property
    def counters(self) -> Counters:
        """The up-to-date counters."""
        self._count()
        return self._direction.counters

    @property
    def overflowed(self) -> int:
        """Frames dropped because the queue was full."""
        return self._direction.counters.queue

    @property
    def held(self) -> int:
        """Frames in the queue, on the line and under way."""
        return self._direction.held + len(self._under_way())

    def idle_rules(self) -> list[str]:
        """A sentence for each of the impairment's own rules that has never decided a fate."""
        return self._direction.idle_rules()

    def enter(self, now: int, frame: bytes, known: Known | None = None) -> None:
        """Send a frame into the direction. known: its flow, if already classified."""
        link_direction: SimDirection | None = self
        while link_direction is not None:
            link_direction = link_direction.take(now, frame, known)

    def when_sent(self, now: int, then: Callable[[int], object]) -> None:
        """Call `then`: a line takes frames at once."""
        then(now)

    def admit(self, now: int, frame: bytes, known: Known | None) -> SimDirection | None:
        """Take a frame as `enter` does, but return the next direction if the frame reaches it at once.

        The caller enters it there. This is the case if the frame takes no time to the next switch, and the switch knows
        its destination. So links and switches without delay cost no event, however many there are.
        """
        if not self._quick:
            losing = self._losing
            if losing is None:
                self._enter_slowly(now, frame)
                return None
            if known is None:
                known = losing.known(frame)
                if known.path is None:
                    look_ahead(known, self._path(known.destination))
            counted = losing.lost(known, self._fates.loss)
            if counted is not None:
                self._lose(counted)
                return None
        line, size = self._line, len(frame)
        due = line.arrival(now, size)
        if due == FULL:
            counters = self._direction.counters
            counters.offered += 1
            counters.queue += 1
            return None
        due += line.delay
        if due == now and (table := self._table) is not None and self._first is None:
            link_direction = table.get(frame[:6] if known is None else known.destination)
            if link_direction is not None and link_direction is not self._back:
                self._taken_frames += 1
                self._taken_bytes += size
                return link_direction
        self._taken_frames += 1
        self._taken_bytes += size
        if self._first is None:
            self._first = (due, frame, known)
            heappush(self._heap, (due, self._next(), self._arrive, self._generation))
        else:
            self._behind.append((due, frame, known))
        return None

    def forget(self) -> None:
        """Do nothing: no frames of this direction wait in the NIC's memory."""

    def lead_to(self, receive: Receive) -> None:
        """Deliver frames to `receive` from now on."""
        self.receive = receive
        self._switch = self._onward = self._table = self._back = None

    def lead_on(self, switch: Onward) -> None:
        """Deliver frames to a switch from now on."""
        self._switch, self._onward, self._back = switch, switch.receive, switch.out
        self._table = None if switch.learns else switch.table

    def change(
        self,
        now: int,
        impairment: Impairment,
        files: Mapping[str, str] | None = None,
        restart: bool | None = None,
    ) -> None:
        """Change the impairment, as `Direction.change` does."""
        self._take_back()
        self._direction.change(now, impairment, files, restart)
        self._arm()
        self._choose()

    def _first_arrives(self, generation: int) -> None:
        """Deliver the first frame of the fast path, and those due at the same time. generation: of its
        entry in the heap."""
        first = self._first
        if first is None or generation != self._generation:
            return  # it was moved to the line
        behind, onward, table = self._behind, self._onward, self._table
        while True:
            now, frame, known = first
            following = self._first = behind.popleft() if behind else None
            if onward is None:
                self.receive(now, frame)
            elif (
                table is not None
                and (link_direction := table.get(frame[:6] if known is None else known.destination)) is not None
                and link_direction is not self._back
            ):
                while link_direction is not None:  # as `enter`
                    link_direction = link_direction.take(now, frame, known)
            else:
                onward(now, frame, known)
            if following is None or generation != self._generation:
                return  # a frame that entered meanwhile has its own heap entry
            due = following[0]
            if due > now:
                heappush(self._heap, (due, self._next(), self._arrive, generation))
                return
            first = following

    def _path(self, destination: bytes) -> list[Flows]:
        """The directions that a frame for that MAC would take from here on, as long as they only apply independent
        loss."""
        path: list[Flows] = []
        link_direction: SimDirection | None = self
        while link_direction is not None and len(path) < MAX_AHEAD:
            losing, switch = link_direction._losing, link_direction._switch
            if losing is None or losing in path:
                break
            path.append(losing)
            link_direction = None if switch is None else switch.table.get(destination)
        return path

    # Everything else the direction does.

    def _enter_slowly(self, now: int, frame: bytes) -> None:
        if self._is_cut:
            self.lost += 1
        else:
            self._direction.offer(now, frame)
            self._arm()

    def _lose(self, counted: Counted) -> None:
        """Lose a frame of that flow by independent loss."""
        self._fates.passed(1)
        self._fates.lose(counted)
        counters = self._direction.counters
        counters.offered += 1
        counters.loss += 1

    def call(self, now: int) -> None:
        """Handle the due time. For the loop only."""
        self._wake = NEVER
        onward = self._onward
        for _, frame in self._direction.poll(now):
            if onward is None:
                self.receive(now, frame)
            else:
                onward(now, frame, None)
        self._arm()
        if self._clears and self._line.deadline is None:
            self._choose()

    def _arm(self) -> None:
        """Put an entry for the deadline into the heap, unless an earlier one exists."""
        deadline = self._line.deadline
        if deadline is not None and deadline < self._wake:
            self._wake = deadline
            self.sequence = sequence = self._next()
            heappush(self._heap, (deadline, sequence, None, self))

    def _choose(self) -> None:
        """Choose the path of frames: the fast one if it suffices and no frame is on the line."""
        self._count()
        fates, line = self._fates, self._line
        losing = fates.flows if fates.loss and not fates.takes_rules else None
        short = (fates.is_idle or losing is not None) and line.is_plain and not self._is_cut
        self._clears = short and line.deadline is not None
        short = short and line.deadline is None
        self._quick = short and fates.is_idle
        self._losing = losing if short else None

    def _take_back(self) -> None:
        """Move the frames of the fast path to the line; their heap entry becomes void."""
        self._count()
        for due, frame, _ in self._under_way():
            self._line.schedule_arrival(due, frame)
        self._said_frames = self._said_bytes = 0
        self._first = None
        self._generation += 1
        self._behind.clear()

    def _under_way(self) -> list[_UnderWay]:
        """The frames of the fast path that have not arrived."""
        return [] if self._first is None else [self._first, *self._behind]

    def _count(self) -> None:
        """Add the fast path's counts to the counters."""
        counters, under_way = self._direction.counters, self._under_way()
        frames, octets = len(under_way), sum(len(frame) for _, frame, _ in under_way)
        counters.offered += self._taken_frames
        counters.delivered += self._said_frames + self._taken_frames - frames
        counters.delivered_bytes += self._said_bytes + self._taken_bytes - octets
        if self._losing is not None:
            self._fates.passed(self._taken_frames)
        self._said_frames, self._said_bytes = frames, octets
        self._taken_frames = self._taken_bytes = 0

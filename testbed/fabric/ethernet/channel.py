"""Channel: one direction of an Ethernet link, as events in a heap.

One entry in the heap stands for all frames in a direction: the next time at which something is due. So a frame costs one
entry per link that it crosses. A direction without random decisions only does arithmetic.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from heapq import heappush
from typing import Final, Protocol

from testbed.fabric.direction import LinkDirection
from testbed.fabric.interface import HeapEntry, Receive, discard
from testbed.fabric.line import FULL
from testbed.fates.fate_counters import Counters
from testbed.fates.flows import MAX_PATH, FlowCount, FlowEntry, Flows, draw_along_path
from testbed.fates.stage import FateOptions, FateStage
from testbed.spec.layout import DirectionName, Impairment

_NEVER: Final = 1 << 63  # later than any time

_InFlight = tuple[int, bytes, FlowEntry | None]
"""A frame in flight: arrival time, frame, and its flow if known."""


class Events:
    """Where channels put their events. next_sequence: returns a new sequence number, greater than those before."""

    __slots__ = ("heap", "next_sequence")

    def __init__(self, heap: list[HeapEntry], next_sequence: Callable[[], int]) -> None:
        self.heap = heap
        self.next_sequence = next_sequence


class SwitchInput(Protocol):
    """A switch's input port.

    out: the outgoing channel of this port. table: MAC -> outgoing channel, if known. learns: the port must get every
    frame; otherwise only frames whose destination is not in the table.
    """

    __slots__ = ()

    @property
    def out(self) -> Channel: ...
    @property
    def table(self) -> dict[bytes, Channel]: ...
    @property
    def learns(self) -> bool: ...

    def receive(self, now: int, frame: bytes, entry: FlowEntry | None) -> object:
        """Receive a frame. entry: its flow, if already classified."""
        ...


class Channel:
    """One direction of a link. Implements `fabric.interface.Channel`; it is its own entrance. Times never go backwards.

    With only rate, delay, a queue and independent loss, frames take a fast path that touches little memory, since memory
    access dominates the cost of thousands of directions. Frames in flight are then in `_first`, which is also in the
    heap, and in `_following`; otherwise they are on the direction's line; never in both. take: the entry function;
    it calls `admit`, and the observer if there is one. receive: the sink of frames, unless it ends at a switch. on_space:
    never called. sequence: sequence of the valid entry in the heap whose argument is the channel.
    """

    __slots__ = (
        "_arrive", "_direction", "_fates", "_first", "_following", "_generation", "_heap", "_is_cut",
        "_is_fast_when_empty", "_is_unimpaired", "_line", "_loss_flows", "_next", "_observer", "_on_leave",
        "_reported_in_flight", "_reported_in_flight_bytes", "_reverse", "_switch", "_switch_receive", "_table",
        "_taken_bytes", "_taken_frames", "_wake", "lost", "on_space", "receive", "sequence", "take",
    )  # fmt: skip

    def __init__(
        self,
        link: str,
        direction: DirectionName,
        impairment: Impairment,
        options: FateOptions,
        events: Events,
        on_leave: Callable[[Channel], object],
    ) -> None:
        """on_leave: called by `leave`. Raises the errors of `LinkDirection`."""
        self._direction = LinkDirection(link, direction, impairment, options)
        self._fates = self._direction.fates
        self._line = self._direction.line
        self._heap = events.heap
        self._next = events.next_sequence
        self._on_leave = on_leave
        self._arrive = self._first_arrives
        self._first: _InFlight | None = None
        self._generation = (
            0  # of entries in the heap: incremented when frames move to the line, so that old entries are stale
        )
        self._following: deque[_InFlight] = deque()
        self._taken_frames = 0  # frames on the fast path since the last _count
        self._taken_bytes = 0
        self._reported_in_flight = 0  # frames in flight at the last _count
        self._reported_in_flight_bytes = 0
        self._wake = _NEVER  # when the entry in the heap is due
        self.sequence = 0
        self.on_space: Callable[[int], object] | None = None
        self.take: Callable[[int, bytes, FlowEntry | None], Channel | None] = self.admit
        self._observer: Receive = discard
        self.receive: Receive = discard
        self._switch: SwitchInput | None = None
        self._switch_receive: Callable[[int, bytes, FlowEntry | None], object] | None = None  # the switch's receive
        self._table: Mapping[bytes, Channel] | None = None  # destinations that bypass the switch's receive
        self._reverse: Channel | None = None
        self.lost = 0
        """Number of frames lost on a pulled cable."""
        self._is_cut = False
        self._is_unimpaired = False  # only rate and delay
        self._loss_flows: Flows | None = None  # set if there is only rate, delay and independent loss
        self._is_fast_when_empty = False  # the fast path can be used once the line is empty
        self._choose_path()

    @property
    def is_cut(self) -> bool:
        """Whether the cable is pulled: frames that enter are lost, frames in flight arrive."""
        return self._is_cut

    @is_cut.setter
    def is_cut(self, value: bool) -> None:
        self._is_cut = value
        self._choose_path()

    @property
    def entrance(self) -> Channel:
        return self

    @property
    def fates(self) -> FateStage:
        return self._fates

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
    def in_flight(self) -> int:
        """Number of frames in the queue, on the line and in flight."""
        return self._direction.in_flight + len(self._in_flight())

    def offer(self, now: int, frame: bytes) -> bool:
        """Send a NIC's frame. Returns True: the queue drops frames that it has no room for."""
        self.enter(now, frame, None)
        return True

    def enter(self, now: int, frame: bytes, entry: FlowEntry | None) -> None:
        """Send a frame. entry: its flow, if already classified."""
        channel: Channel | None = self
        while channel is not None:
            channel = channel.take(now, frame, entry)

    def observe(self, observer: Receive | None) -> None:
        """Call `observer` after each frame that enters, also if it is lost; None: no longer."""
        self._observer = discard if observer is None else observer
        self.take = self.admit if observer is None else self._admit_observed

    def _admit_observed(self, now: int, frame: bytes, entry: FlowEntry | None) -> Channel | None:
        channel = self.admit(now, frame, entry)
        self._observer(now, frame)
        return channel

    def admit(self, now: int, frame: bytes, entry: FlowEntry | None) -> Channel | None:
        """Take a frame as `enter` does; return the next direction if the frame reaches it at once, and the caller must
        enter it.

        This is the case if the frame takes no time to the next switch, and the destination is in the switch's table. So
        links and switches without delay need no events.
        """
        if not self._is_unimpaired:
            loss_flows = self._loss_flows
            if loss_flows is None:
                self._enter_slowly(now, frame)
                return None
            if entry is None:
                entry = loss_flows.entry(frame)
                if entry.path is None:
                    draw_along_path(entry, self._path(entry.destination))
            flow_count = loss_flows.count_loss(entry, self._fates.loss)
            if flow_count is not None:
                self._record_loss(flow_count)
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
            channel = table.get(frame[:6] if entry is None else entry.destination)
            if channel is not None and channel is not self._reverse:
                self._taken_frames += 1
                self._taken_bytes += size
                return channel
        self._taken_frames += 1
        self._taken_bytes += size
        if self._first is None:
            self._first = (due, frame, entry)
            heappush(self._heap, (due, self._next(), self._arrive, self._generation))
        else:
            self._following.append((due, frame, entry))
        return None

    def connect_switch(self, switch: SwitchInput | None) -> None:
        """Deliver frames to a switch from now on; None: to `receive`."""
        if switch is None:
            self._switch = self._switch_receive = self._table = self._reverse = None
            return
        self._switch, self._switch_receive, self._reverse = switch, switch.receive, switch.out
        self._table = None if switch.learns else switch.table

    def leave(self) -> None:
        """Remove the direction; its frames in flight are lost."""
        self.connect_switch(None)
        self.receive = discard
        self._on_leave(self)

    def change(
        self,
        now: int,
        impairment: Impairment,
        files: Mapping[str, str] | None = None,
        restart: bool | None = None,
    ) -> None:
        """Set another impairment, as `LinkDirection.change`."""
        self._move_to_line()
        self._direction.change(now, impairment, files, restart)
        self._arm()
        self._choose_path()

    def _first_arrives(self, generation: int) -> None:
        """Deliver the first frame of the fast path, and those due at the same time. generation: generation of its
        entry in the heap."""
        first = self._first
        if first is None or generation != self._generation:
            return  # it was moved to the line
        waiting, switch_receive, table = self._following, self._switch_receive, self._table
        while True:
            now, frame, entry = first
            following = self._first = waiting.popleft() if waiting else None
            if switch_receive is None:
                self.receive(now, frame)
            elif (
                table is not None
                and (channel := table.get(frame[:6] if entry is None else entry.destination)) is not None
                and channel is not self._reverse
            ):
                while channel is not None:  # as `enter`
                    channel = channel.take(now, frame, entry)
            else:
                switch_receive(now, frame, entry)
            if following is None or generation != self._generation:
                return  # a frame that entered meanwhile has its own heap entry
            due = following[0]
            if due > now:
                heappush(self._heap, (due, self._next(), self._arrive, generation))
                return
            first = following

    def _path(self, destination: bytes) -> list[Flows]:
        """The directions that a frame for that MAC takes from this one on, as long as they only have independent loss."""
        path: list[Flows] = []
        channel: Channel | None = self
        while channel is not None and len(path) < MAX_PATH:
            loss_flows, switch = channel._loss_flows, channel._switch
            if loss_flows is None or loss_flows in path:
                break
            path.append(loss_flows)
            channel = None if switch is None else switch.table.get(destination)
        return path

    def _enter_slowly(self, now: int, frame: bytes) -> None:
        if self._is_cut:
            self.lost += 1
        else:
            self._direction.offer(now, frame)
            self._arm()

    def _record_loss(self, flow_count: FlowCount) -> None:
        """Lose a frame of that flow by independent loss."""
        self._fates.count_passed(1)
        self._fates.log_loss(flow_count)
        counters = self._direction.counters
        counters.offered += 1
        counters.loss += 1

    def call(self, now: int) -> None:
        """Handle the due time. For the owner of the heap only."""
        self._wake = _NEVER
        switch_receive = self._switch_receive
        for _, frame in self._direction.poll(now):
            if switch_receive is None:
                self.receive(now, frame)
            else:
                switch_receive(now, frame, None)
        self._arm()
        if self._is_fast_when_empty and self._line.deadline is None:
            self._choose_path()

    def _arm(self) -> None:
        """Put an entry for the deadline into the heap, unless an earlier one exists."""
        deadline = self._line.deadline
        if deadline is not None and deadline < self._wake:
            self._wake = deadline
            self.sequence = sequence = self._next()
            heappush(self._heap, (deadline, sequence, None, self))

    def _choose_path(self) -> None:
        """Choose the path of frames: the fast path if it suffices and no frame is on the line."""
        self._count()
        fates, line = self._fates, self._line
        loss_flows = fates.flows if fates.loss and not fates.takes_rules else None
        is_simple = (fates.is_idle or loss_flows is not None) and line.is_plain and not self._is_cut
        self._is_fast_when_empty = is_simple and line.deadline is not None
        is_simple = is_simple and line.deadline is None
        self._is_unimpaired = is_simple and fates.is_idle
        self._loss_flows = loss_flows if is_simple else None

    def _move_to_line(self) -> None:
        """Move the frames of the fast path to the line; their heap entry becomes stale."""
        self._count()
        for due, frame, _ in self._in_flight():
            self._line.schedule_arrival(due, frame)
        self._reported_in_flight = self._reported_in_flight_bytes = 0
        self._first = None
        self._generation += 1
        self._following.clear()

    def _in_flight(self) -> list[_InFlight]:
        """The frames of the fast path that have not arrived."""
        return [] if self._first is None else [self._first, *self._following]

    def _count(self) -> None:
        """Add the fast path's counts to the counters."""
        counters, frames_in_flight = self._direction.counters, self._in_flight()
        frames, size = len(frames_in_flight), sum(len(frame) for _, frame, _ in frames_in_flight)
        counters.offered += self._taken_frames
        counters.delivered += self._reported_in_flight + self._taken_frames - frames
        counters.delivered_bytes += self._reported_in_flight_bytes + self._taken_bytes - size
        if self._loss_flows is not None:
            self._fates.count_passed(self._taken_frames)
        self._reported_in_flight, self._reported_in_flight_bytes = frames, size
        self._taken_frames = self._taken_bytes = 0

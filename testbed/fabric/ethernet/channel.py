"""Channel: one direction of an Ethernet link, as events in a queue.

One entry in the queue stands for all frames in a direction; its time is that of the next arrival. So a frame costs at most
one entry per link that it crosses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from testbed.fabric.direction import LinkDirection
from testbed.fabric.direction_counters import Counters
from testbed.fabric.event_queue import NEVER, EventQueue, ScheduledEvent
from testbed.fabric.interface import Receive, discard
from testbed.fabric.line import FrameInFlight
from testbed.fates.stage import FateOptions, FateStage
from testbed.spec.layout import DirectionName, Impairment


class SwitchInput(Protocol):
    """A switch's input port.

    out: the outgoing channel of this port. table: MAC -> outgoing channel, if known. learns: whether the port must get every
    frame; otherwise it need only get frames whose destination is not in the table.
    """

    __slots__ = ()

    @property
    def out(self) -> Channel: ...
    @property
    def table(self) -> dict[bytes, Channel]: ...
    @property
    def learns(self) -> bool: ...

    def receive(self, now: int, frame: FrameInFlight) -> None:
        """Receive a frame."""
        ...


class Channel(ScheduledEvent):
    """One direction of a link. Implements `fabric.interface.Channel`; it is its own entrance. Times never go backwards.

    receive: called with frames, unless the channel ends at a switch. on_space: never called. sequence: sequence number
    of the valid entry in the queue, whose event is the channel.
    """

    __slots__ = (
        "_counters", "_direction", "_events", "_fates", "_is_instant", "_line", "_observer", "_on_leave", "_reverse",
        "_switch", "_table", "_wake", "is_cut", "lost", "on_space", "receive", "sequence",
    )  # fmt: skip

    def __init__(
        self,
        link: str,
        direction: DirectionName,
        impairment: Impairment,
        options: FateOptions,
        events: EventQueue,
        on_leave: Callable[[Channel], object],
    ) -> None:
        """on_leave: called by `leave`. Raises the errors of `LinkDirection`."""
        self._direction: Final = LinkDirection(link, direction, impairment, options)
        self._fates: Final = self._direction.fates
        self._line: Final = self._direction.line
        self._counters: Final = self._direction.counters
        self._events: Final = events
        self._on_leave = on_leave
        self._wake = NEVER  # time of the valid entry in the queue
        self.sequence: int = 0
        self.on_space: Callable[[int], object] | None = None
        self._observer: Receive | None = None
        self.receive: Receive = discard
        self._switch: SwitchInput | None = None
        self._table: Mapping[bytes, Channel] | None = None  # the switch's table, unless the switch must get every frame
        self._reverse: Channel | None = None
        self.lost = 0
        """Number of frames lost on a pulled cable."""
        self.is_cut = False
        """Whether the cable is pulled: frames that enter are lost, frames in flight arrive."""
        self._is_instant = self._takes_no_time()

    @property
    def entrance(self) -> Channel:
        return self

    @property
    def fates(self) -> FateStage:
        return self._fates

    @property
    def counters(self) -> Counters:
        return self._counters

    @property
    def overflowed(self) -> int:
        """Number of frames dropped because the queue was full."""
        return self._counters.queue

    @property
    def in_flight(self) -> int:
        """Number of frames in the queue, on the line and in flight."""
        return self._direction.in_flight

    def offer(self, now: int, frame: bytes) -> bool:
        """Send a NIC's frame. Return True: the queue drops frames for which it has no room."""
        self.enter(now, FrameInFlight(frame))
        return True

    def enter(self, now: int, frame: FrameInFlight) -> None:
        """Send a frame of a NIC or a switch.

        A frame that takes no time to the next switch, and whose destination is in the switch's table, goes on at once: links
        and switches without delay need no events.
        """
        fates, line, counters = self._fates, self._line, self._counters
        following = verdict = None
        if self.is_cut:
            self.lost += 1
        else:
            counters.offered += 1
            if not fates.is_idle:
                verdict = fates.decide(now, frame.data)
            if verdict is not None:
                self._direction.apply(now, verdict)
            elif self._is_instant and (following := self._next_at_once(frame)) is not None:
                counters.delivered += 1
                counters.delivered_bytes += len(frame.data)
            elif not line.put(now, frame):
                counters.queue += 1
            if line.due < self._wake:
                self._arm()
        if self._observer is not None:
            self._observer(now, frame.data)
        if following is not None:
            following.enter(now, frame)

    def observe(self, observer: Receive | None) -> None:
        """Call `observer` after each frame that enters, even if the frame is lost; None: call none."""
        self._observer = observer

    def connect_switch(self, switch: SwitchInput | None) -> None:
        """Deliver frames to a switch from now on; None: to `receive`."""
        self._switch = switch
        self._reverse = None if switch is None else switch.out
        self._table = None if switch is None or switch.learns else switch.table
        self._is_instant = self._takes_no_time()

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
        self._direction.change(now, impairment, files, restart)
        self._is_instant = self._takes_no_time()

    def call(self, now: int) -> None:
        """Deliver the frames that are due. For the owner of the queue only."""
        counters, line, switch = self._counters, self._line, self._switch
        while line.due <= now:
            frame = line.take()
            counters.delivered += 1
            counters.delivered_bytes += len(frame.data)
            if switch is None:
                self.receive(now, frame.data)
            else:
                switch.receive(now, frame)
        self._wake = NEVER
        if line.due != NEVER:
            self._arm()

    def _arm(self) -> None:
        """Schedule the next arrival, in place of a later one."""
        self._wake = due = self._line.due
        self.sequence = self._events.schedule(due, self)

    def _next_at_once(self, frame: FrameInFlight) -> Channel | None:
        """Return the channel to which a frame passes without delay, or None: the frame's destination must be in the switch's
        table, and no frame may be in flight."""
        if self._table is None or self._line.due != NEVER:
            return None
        channel = self._table.get(frame.destination)
        return None if channel is self._reverse else channel

    def _takes_no_time(self) -> bool:
        """Whether frames take no time to a switch that need not learn, and each can only pass or be lost."""
        if self._table is None:
            return False
        fates, line = self._fates, self._line
        is_simple = fates.only_loses and not fates.takes_rules
        return is_simple and line.is_instant and not line.delay

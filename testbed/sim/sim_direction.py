"""Networks in the simulation: the driver that polls a network, and the directions of links, which are ports of NICs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from testbed.engine.loop import Loop
from testbed.fabric.direction_counters import Counters
from testbed.fabric.interface import Channel, Network, Receive, UsesEventQueue
from testbed.nic.immediate import Port
from testbed.spec.layout import DirectionName, Impairment, Link

_SentCallback = tuple[int, Callable[[int], object]]
"""Value of `SimDirection._accepted_count` at which to call, and the callback."""

_NO_FRAMES: Final[deque[bytes]] = deque()
_NO_CALLBACKS: Final[deque[_SentCallback]] = deque()
"""Shared empty deques, which stay empty: most directions never have waiting frames, and an empty deque takes 600 bytes."""


class Driver:
    """Polls a network at its deadlines, unless it has its events in the loop's queue."""

    __slots__ = ("_is_busy", "_is_polled", "_network", "_timer")

    def __init__(self, loop: Loop, network: Network) -> None:
        self._network = network
        self._timer = loop.timer(self._on_timer)
        self._is_busy = False
        self._is_polled = not isinstance(network, UsesEventQueue)
        if isinstance(network, UsesEventQueue):
            network.use_event_queue(loop.events)

    def offer_to(self, channel: Channel) -> Callable[[int, bytes], bool]:
        """Return a function that offers a NIC's frame to a channel of the network; it returns False if the frame must
        wait."""
        return partial(self._offer, channel) if self._is_polled else channel.offer

    def _offer(self, channel: Channel, now: int, frame: bytes) -> bool:
        is_accepted = channel.offer(now, frame)
        if not self._is_busy:
            self._timer.set(self._network.deadline)
        return is_accepted

    def _on_timer(self, now: int) -> None:
        self._is_busy = True
        self._network.poll(now)
        self._is_busy = False
        self._timer.set(self._network.deadline)


class SimDirection(Port):
    """One direction of a link, on a channel of a network. Frames that the network does not accept yet wait in the NIC's
    memory. source, end: the ends of the link where frames enter and leave. link: name of the link."""

    __slots__ = (
        "_accepted_count",
        "_entrance",
        "_offer",
        "_sent_callbacks",
        "_waiting_frames",
        "channel",
        "end",
        "link",
        "source",
    )

    def __init__(self, link: Link, direction: DirectionName, channel: Channel, driver: Driver) -> None:
        forward = direction == "forward"
        self._offer = driver.offer_to(channel)
        self._entrance = channel.entrance
        self._waiting_frames: deque[bytes] = _NO_FRAMES
        self._accepted_count = 0  # number of accepted frames that had to wait
        self._sent_callbacks: deque[_SentCallback] = _NO_CALLBACKS
        self.channel: Final = channel
        self.link: Final = link.name
        self.source: Final = link.a if forward else link.b
        self.end: Final = link.b if forward else link.a
        channel.on_space = self._send_waiting

    @property
    def waiting_count(self) -> int:
        """Number of frames that wait in the NIC."""
        return len(self._waiting_frames)

    @property
    def is_cut(self) -> bool:
        """Whether the cable is pulled: frames that enter are lost, frames in flight arrive."""
        return self._entrance.is_cut

    @is_cut.setter
    def is_cut(self, value: bool) -> None:
        self._entrance.is_cut = value

    @property
    def lost(self) -> int:
        """Number of frames lost on a pulled cable."""
        return self._entrance.lost

    @property
    def impairment(self) -> Impairment:
        return self._entrance.fates.impairment

    @property
    def counters(self) -> Counters:
        return self._entrance.counters

    @property
    def overflowed(self) -> int:
        """Number of frames dropped because a queue was full."""
        return self._entrance.overflowed

    @property
    def in_flight(self) -> int:
        """Number of frames inside the network."""
        return self.channel.in_flight

    def idle_rules(self) -> list[str]:
        """Return a sentence for each of the impairment's rules that has never decided a fate."""
        return self._entrance.fates.idle_rules()

    def enter(self, now: int, frame: bytes) -> bool:
        """Send a NIC's frame; return whether it waits."""
        if self._waiting_frames or not self._offer(now, frame):
            if self._waiting_frames is _NO_FRAMES:
                self._waiting_frames = deque()
            self._waiting_frames.append(frame)
            return True
        return False

    def when_sent(self, now: int, callback: Callable[[int], object]) -> None:
        """Call `callback` with the time at which the network has accepted all frames that wait now."""
        if self._waiting_frames:
            if self._sent_callbacks is _NO_CALLBACKS:
                self._sent_callbacks = deque()
            self._sent_callbacks.append((self._accepted_count + len(self._waiting_frames), callback))
        else:
            callback(now)

    def drop_unsent(self) -> None:
        """Drop the frames that wait in the NIC, which has lost its memory (`Simulation.restart`)."""
        self._waiting_frames.clear()
        self._sent_callbacks.clear()

    @property
    def receive(self) -> Receive:
        """The function that receives the frames at the end."""
        return self.channel.receive

    def set_receiver(self, receive: Receive) -> None:
        """Deliver frames to `receive` from now on."""
        self.channel.receive = receive

    def change(
        self, now: int, impairment: Impairment, files: Mapping[str, str] | None = None, restart: bool | None = None
    ) -> None:
        """Change the impairment, as `LinkDirection.change` does."""
        self.channel.change(now, impairment, files, restart)

    def _send_waiting(self, now: int) -> None:
        """Send waiting frames until the network stops accepting them, and call the callbacks of `when_sent`."""
        waiting_frames = self._waiting_frames
        while waiting_frames and self._offer(now, waiting_frames[0]):
            waiting_frames.popleft()
            self._accepted_count += 1
            while self._sent_callbacks and self._sent_callbacks[0][0] <= self._accepted_count:
                self._sent_callbacks.popleft()[1](now)

"""Networks of modelled switches in the relay: on the wall clock, between packet sockets on NICs' interfaces.

The switches and the cables between them exist only here; only a NIC's end of a link is an interface. A frame enters
with the kernel's receive timestamp, or with the network's time if that is later.

A few frames of a NIC that its link does not accept yet wait here. Beyond that, a NIC that has asked for flow control is
told STOP, and its socket is not read until they have left; frames under way wait in the socket's buffer, which holds
the complete window that the NIC may use (`testbed.fabric.stop_go`). So nothing is lost, however late either process is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

from testbed.engine.loop import Loop
from testbed.fabric.direction import Delivery
from testbed.fabric.interface import Channel, Network
from testbed.fabric.stop_go import ADDRESS, ASK, GO, STOP, ControlFrame, decode, encode
from testbed.fates.fate_counters import Counters
from testbed.kernel.gso import GsoFrame
from testbed.kernel.packet_socket import PacketSocket
from testbed.runtime.relay.direction_orders import CarriedLink, InjectedRules, LinkOptions, texts_of
from testbed.runtime.relay.lateness import Lateness
from testbed.runtime.relay.orders import DIRECTIONS, RelayedDirection, RelayedLink
from testbed.spec.layout import DirectionName

BUFFER: Final = 32 << 20
"""Maximum bytes in the buffer of each packet socket, if the machine permits it."""

LARGEST_WINDOW: Final = 1024
"""Limit on a NIC's window, in frames."""

_MANY: Final = 16  # waiting frames above which a NIC is told STOP
_FEW: Final = 4  # waiting frames at which it is told GO
_TOGETHER: Final = 8  # frames sent in one call; more would make the first ones late


class Driver:
    """Polls a network at its deadlines, and sends the frames that leave it."""

    def __init__(self, loop: Loop, network: Network) -> None:
        self.network: Final = network
        self.now: Final = loop.now
        self._timer = loop.timer(self._due)
        self.reached = 0
        """The network's time."""
        self._is_busy = False
        self._left: dict[ChannelForwarder, None] = {}  # directions with frames that have left the network

    def offer(self, when: int, channel: Channel, frame: bytes) -> bool:
        """Offer a NIC's frame to the network; False if it must wait."""
        if self._is_busy:
            return channel.offer(when, frame)
        deadline = self.network.deadline
        if deadline is not None and deadline <= when:
            self._poll(when)
        elif when > self.reached:
            self.reached = when
        return channel.offer(self.reached, frame)

    def advance(self, when: int) -> None:
        """Let the network come to the time at which a frame came, so that none enters before it."""
        deadline = self.network.deadline
        if not self._is_busy and deadline is not None and deadline <= when:
            self._poll(when)

    def settle(self) -> None:
        """Send frames that are due, and set the timer; called after frames have been offered."""
        if not self._is_busy:
            deadline = self.network.deadline
            if deadline is not None and deadline <= (now := self.now()):
                self._poll(now)
                deadline = self.network.deadline
            self._send()
            self._timer.set(deadline)

    def left(self, way: ChannelForwarder) -> None:
        """Note that a frame has arrived at a NIC."""
        self._left[way] = None

    def _due(self, _now: int) -> None:
        self.settle()

    def _poll(self, now: int) -> None:
        self._is_busy = True
        self.network.poll(now)
        self.reached = max(self.reached, now)
        self._is_busy = False

    def _send(self) -> None:
        for way in self._left:
            way.send()
        self._left.clear()


class ChannelForwarder:
    """One direction of a link. Its attributes in common with `relay.Forwarder` are for reports and watches.

    lateness: of frames that leave the network here, behind the network's time; at a NIC's own direction, of frames that
    enter, because the network had come further when they were read."""

    __slots__ = ("_driver", "_due", "_out", "channel", "finished", "gso_frames", "injected", "lateness")

    def __init__(self, driver: Driver, channel: Channel, injected: InjectedRules, out: PacketSocket | None) -> None:
        """out: the socket of the NIC at its end, if any."""
        self.channel: Final = channel
        self.injected: Final = injected
        self.lateness = Lateness()
        self.gso_frames = 0
        self.finished = 0
        self._driver = driver
        self._out = out
        self._due: list[Delivery] = []
        if out is not None:
            channel.receive = self._receive

    @property
    def counters(self) -> Counters:
        return self.channel.entrance.counters

    @property
    def in_flight(self) -> int:
        """Frames inside the network."""
        return self.channel.in_flight

    def _receive(self, now: int, frame: bytes) -> None:
        self._due.append((now, frame))
        if len(self._due) == _TOGETHER:
            self.send()
        else:
            self._driver.left(self)

    def send(self) -> None:
        """Send the frames that have reached its end."""
        assert self._out is not None
        due, self._due = self._due, []
        if not due:
            return
        self.lateness.count(max(self._driver.now(), due[-1][0]), due)
        self._out.send([frame for _, frame in due])


class Uplink:
    """The entry of a NIC's frames. stops: how often the NIC was told STOP. waited: number of frames that had to wait.
    stamp: when the frame that was offered last came, monotonic nanoseconds."""

    __slots__ = (
        "_answered", "_driver", "_head", "_kept", "_last", "_loop", "_socket", "_stopped", "_way", "_window", "stamp",
        "stops", "waited",
    )  # fmt: skip

    def __init__(self, loop: Loop, driver: Driver, way: ChannelForwarder, socket: PacketSocket) -> None:
        self.stamp = 0
        self.stops = 0
        self.waited = 0
        self._loop = loop
        self._driver = driver
        self._way = way
        self._socket = socket
        # Frames and control frames of the NIC, in order, with the times at which they arrived.
        self._kept: deque[tuple[int, bytes | ControlFrame]] = deque()
        self._stopped = False
        self._answered = 0
        self._window = max(1, min(LARGEST_WINDOW, socket.capacity))
        self._head = b""  # header of the NIC's words; empty until the first one
        self._last = loop.now()
        way.channel.on_space = self._go_on
        loop.watch(socket.fileno(), self.read)

    @property
    def waiting(self) -> tuple[int, int]:
        """Bytes and frames that wait here."""
        frames = [len(frame) for _, frame in self._kept if not isinstance(frame, ControlFrame)]
        return sum(frames), len(frames)

    def read(self, _now: int) -> bool:
        """Offer one batch of received frames; return whether more may be waiting."""
        if self._stopped:
            return False
        frames = self._socket.receive(self._last)
        if self._socket.has_offloaded:
            frames = self._finished(frames)
        kept, driver, channel, lateness = self._kept, self._driver, self._way.channel, self._way.lateness
        for when, frame in frames:
            late = driver.reached - when
            lateness.add(max(0, late))
            if kept:
                driver.advance(when)
            if frame[:6] == ADDRESS and (control := decode(frame)) is not None:
                self._head = frame[6:14]  # its sender and its EtherType
                if kept:
                    kept.append((when, control))
                else:
                    self._answer(control)
                continue
            if not kept:
                self.stamp = when
            if kept or not driver.offer(when, channel, frame):
                self.waited += 1
                kept.append((when, frame))
        if frames:
            self._last = frames[-1][0]
        driver.settle()
        if len(kept) > _MANY:
            self._stop()
        return self._socket.is_full and not self._stopped

    def catch_up(self, now: int) -> None:
        """Offer all frames received until now."""
        while self.read(now) and self._last < now:
            pass

    def close(self) -> None:
        """Stop reading."""
        self._way.channel.on_space = None
        self._kept.clear()
        if not self._stopped:
            self._loop.unwatch(self._socket.fileno())

    def _go_on(self, now: int) -> None:
        """Send waiting frames: the link accepts frames again."""
        kept = self._kept
        while kept:
            self.stamp, first = kept[0]
            if isinstance(first, ControlFrame):
                self._answer(first)
            elif not self._driver.offer(now, self._way.channel, first):
                break
            kept.popleft()
        if self._stopped and len(kept) <= _FEW:
            self._stopped = False
            self._loop.watch(self._socket.fileno(), self.read)
            self._say(GO)

    def _stop(self) -> None:
        self._stopped = True
        self._loop.unwatch(self._socket.fileno())
        self.stops += self._say(STOP)

    def _answer(self, control: ControlFrame) -> None:
        if control.kind == ASK:
            self._answered = control.count
            self._say(STOP if self._stopped else GO)

    def _say(self, kind: int) -> bool:
        """Send a control frame to the NIC if it has asked before; return whether it has."""
        if self._head:
            self._socket.send([encode(ControlFrame(kind, self._answered, self._window), self._head)])
        return bool(self._head)

    def _finished(self, frames: list[Delivery]) -> list[Delivery]:
        """Segment the GSO frames among these."""
        found: list[Delivery] = []
        for when, frame in frames:
            if isinstance(frame, GsoFrame):
                self._way.finished += 1
                found += [(when, segment) for segment in frame.segment()]
            else:
                found.append((when, frame))
        return found


class ModelledLink(CarriedLink):
    """A link with a modelled switch at one end or both."""

    def __init__(self, carried: RelayedLink, driver: Driver, options: LinkOptions) -> None:
        """Open the sockets and join the network. OSError if a free end does not exist."""
        super().__init__(carried, options)
        self.directions: Final[dict[str, ChannelForwarder]] = {}
        self.uplinks: Final[dict[str, Uplink]] = {}
        """Uplinks, by the direction in which the NIC sends."""
        self._driver = driver
        try:
            for name, device in zip(DIRECTIONS, (carried.a, carried.b), strict=True):
                if device:
                    self._sockets[name] = PacketSocket(device, options.arena, BUFFER)
        except BaseException:
            self.close()
            raise
        for name, other in (DIRECTIONS, DIRECTIONS[::-1]):
            self.directions[name] = self._direct(name, self._sockets.get(other), options)
        for sending, socket in self._sockets.items():
            self.uplinks[sending] = Uplink(self._loop, driver, self.directions[sending], socket)

    def _direct(self, name: DirectionName, out: PacketSocket | None, options: LinkOptions) -> ChannelForwarder:
        relayed: RelayedDirection = getattr(self.carried, name)
        fates, rules = options.fates()
        a, b = self.carried.plugs
        start, end = (a, b) if name == "forward" else (b, a)
        channel = self._driver.network.join(self.carried.name, name, relayed.impairment, fates, start, end)
        channel.entrance.is_cut = self.carried.is_cut
        injected = InjectedRules(fates.now, channel.entrance.fates, rules, relayed, (self.carried.name, name))
        return ChannelForwarder(self._driver, channel, injected, out)

    def change(self, carried: RelayedLink, files: Mapping[str, str]) -> None:
        """Impair frames that come from now on as `carried` says; raises as `LinkCarriage.change`."""
        texts = texts_of(carried, files)
        if (carried, texts) == (self.carried, self._texts):
            return
        self.catch_up()
        now = self._loop.now()
        for name, way in self.directions.items():
            before: RelayedDirection = getattr(self.carried, name)
            after: RelayedDirection = getattr(carried, name)
            if (after.impairment, texts[name]) != (before.impairment, self._texts[name]):
                way.channel.change(now, after.impairment, files)
            way.injected.set(now, after.rules)
            way.channel.entrance.is_cut = carried.is_cut
        self._driver.settle()
        self.carried, self._texts = carried, texts

    def catch_up(self) -> None:
        """Offer all frames received until now."""
        for uplink in self.uplinks.values():
            uplink.catch_up(self._loop.now())

    def release(self) -> int:
        """Stop carrying the link; no frame is delivered early. The caller closes the sockets."""
        for uplink in self.uplinks.values():
            uplink.close()
        for way in self.directions.values():
            way.channel.leave()
        return 0

    def pass_through(self) -> None:
        """Do nothing: there is no path around modelled switches."""

    def more(self, direction: str, now: int) -> dict[str, object]:  # noqa: ARG002  as of other links
        """The fields of a direction's report that depend on the type of link."""
        uplink = self.uplinks.get(direction)
        if uplink is None:
            return {"queued": [0, 0]}
        return {"queued": list(uplink.waiting), "stops": uplink.stops, "waited": uplink.waited}

"""Modelled networks in the relay: on the wall clock, between packet sockets on NICs' interfaces.

The switches and the cables between them exist only in the model; only a NIC's end of a link is an interface. A frame enters
the network at the kernel's receive timestamp, or at the network's time if that is later.

Frames that a NIC's link does not accept yet wait in the relay. Once there are more than 16, the NIC's socket is not read
until most of them have entered the network, and a NIC that has sent an ASK gets STOP. Frames in flight then wait in the
socket's buffer, which has room for the complete window that such a NIC may use (`testbed.fabric.stop_go`). So no frame of a
NIC with flow control is lost, however late the relay or the node process is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

from testbed.engine.loop import Loop
from testbed.fabric.direction import Delivery
from testbed.fabric.direction_counters import Counters
from testbed.fabric.interface import Channel, Network
from testbed.fabric.stop_go import ADDRESS, ASK, GO, STOP, ControlFrame, decode, encode
from testbed.kernel.gso import GsoFrame
from testbed.kernel.packet_socket import PacketSocket
from testbed.runtime.relay.forwarded_link import ForwardedDirection, ForwardedLink, InjectedRules, LinkOptions
from testbed.runtime.relay.orders import DIRECTIONS, RelayedDirection, RelayedLink
from testbed.spec.layout import DirectionName, Impairment

SOCKET_BUFFER_SIZE: Final = 32 << 20
"""Maximum bytes in the buffer of each packet socket, if the machine permits it."""

MAX_WINDOW: Final = 1024
"""Maximum window of a NIC, in frames."""

_STOP_THRESHOLD: Final = 16  # number of waiting frames above which a NIC gets STOP
_GO_THRESHOLD: Final = 4  # number of waiting frames at which a stopped NIC gets GO
_MAX_BATCH: Final = 8  # frames sent in one call; in a larger batch the first ones would be late


class NetworkDriver:
    """Polls a modelled network at its deadlines, and sends the frames that leave it."""

    def __init__(self, loop: Loop, network: Network) -> None:
        self.network: Final = network
        self.now: Final = loop.now
        self._timer = loop.timer(self._on_timer)
        self.time = 0
        """The network's time, monotonic nanoseconds."""
        self._is_busy = False  # whether the network is being polled
        self._arrived: dict[ChannelForwarder, None] = {}  # an ordered set of directions with frames to send

    def offer(self, when: int, channel: Channel, frame: bytes) -> bool:
        """Offer a NIC's frame to the network; return False if the frame must wait."""
        if self._is_busy:
            return channel.offer(when, frame)
        deadline = self.network.deadline
        if deadline is not None and deadline <= when:
            self._poll(when)
        elif when > self.time:
            self.time = when
        return channel.offer(self.time, frame)

    def advance(self, when: int) -> None:
        """Advance the network to the time at which a frame was received."""
        deadline = self.network.deadline
        if not self._is_busy and deadline is not None and deadline <= when:
            self._poll(when)

    def settle(self) -> None:
        """Send the frames that are due, and set the timer. Call it after frames have been offered."""
        if not self._is_busy:
            deadline = self.network.deadline
            if deadline is not None and deadline <= (now := self.now()):
                self._poll(now)
                deadline = self.network.deadline
            self._send()
            self._timer.set(deadline)

    def note_arrival(self, forwarder: ChannelForwarder) -> None:
        """Note that a direction has frames that have left the network, and that `settle` must send to their NIC."""
        self._arrived[forwarder] = None

    def _on_timer(self, _now: int) -> None:
        self.settle()

    def _poll(self, now: int) -> None:
        self._is_busy = True
        self.network.poll(now)
        self.time = max(self.time, now)
        self._is_busy = False

    def _send(self) -> None:
        for forwarder in self._arrived:
            forwarder.send()
        self._arrived.clear()


class ChannelForwarder(ForwardedDirection):
    """One direction of a link of a modelled network.

    lateness: in a direction to a NIC, the time from a frame's departure from the network to its sending; in a direction from
    a NIC, the time by which the network had passed a frame's receive timestamp when the frame was read.
    """

    __slots__ = ("_driver", "_due", "_sink", "channel")

    def __init__(
        self, driver: NetworkDriver, channel: Channel, injected: InjectedRules, sink: PacketSocket | None
    ) -> None:
        """sink: socket on the interface of the NIC at the direction's end; None: the direction ends at a switch."""
        super().__init__(injected)
        self.channel: Final = channel
        self._driver = driver
        self._sink = sink
        self._due: list[Delivery] = []
        if sink is not None:
            channel.receive = self._receive

    @property
    def counters(self) -> Counters:
        return self.channel.entrance.counters

    @property
    def in_flight(self) -> int:
        """Number of frames inside the network."""
        return self.channel.in_flight

    def change(self, now: int, impairment: Impairment, files: Mapping[str, str]) -> None:
        """Set another impairment, as `Channel.change`."""
        self.channel.change(now, impairment, files)

    def _receive(self, now: int, frame: bytes) -> None:
        self._due.append((now, frame))
        if len(self._due) == _MAX_BATCH:
            self.send()
        else:
            self._driver.note_arrival(self)

    def send(self) -> None:
        """Send the frames that have left the network."""
        assert self._sink is not None
        due, self._due = self._due, []
        if not due:
            return
        self.lateness.count(max(self._driver.now(), due[-1][0]), due)
        self._sink.send([frame for _, frame in due])


class Uplink:
    """Entry of a NIC's frames into the network, with flow control.

    stops: number of STOPs sent to the NIC, without those in answer to an ASK. waited: number of frames that had to wait
    in the relay. stamp: receive timestamp of the frame that was offered last, monotonic nanoseconds.
    """

    __slots__ = (
        "_ask_count", "_control_header", "_driver", "_forwarder", "_is_stopped", "_last_received", "_loop", "_socket",
        "_waiting", "_window", "stamp", "stops", "waited",
    )  # fmt: skip

    def __init__(self, loop: Loop, driver: NetworkDriver, forwarder: ChannelForwarder, socket: PacketSocket) -> None:
        self.stamp = 0
        self.stops = 0
        self.waited = 0
        self._loop = loop
        self._driver = driver
        self._forwarder = forwarder
        self._socket = socket
        # Frames and control frames of the NIC, in order, with their receive timestamps.
        self._waiting: deque[tuple[int, bytes | ControlFrame]] = deque()
        self._is_stopped = False
        self._ask_count = 0  # of the last ASK
        self._window = max(1, min(MAX_WINDOW, socket.capacity))
        self._control_header = b""  # source address and EtherType of the NIC's ASK; empty until the first one
        self._last_received = loop.now()
        forwarder.channel.on_space = self._on_space
        loop.watch(socket.fileno(), self.read)

    @property
    def queued(self) -> tuple[int, int]:
        """Numbers of bytes and of frames that wait in the relay."""
        frames = [len(frame) for _, frame in self._waiting if not isinstance(frame, ControlFrame)]
        return sum(frames), len(frames)

    def read(self, _now: int) -> bool:
        """Offer one batch of received frames; return whether more may be in the socket."""
        if self._is_stopped:
            return False
        frames = self._socket.receive(self._last_received)
        if self._socket.has_offloaded:
            frames = self._segment(frames)
        waiting, driver = self._waiting, self._driver
        channel, lateness = self._forwarder.channel, self._forwarder.lateness
        for when, frame in frames:
            lateness.add(max(0, driver.time - when))
            if waiting:
                driver.advance(when)
            if frame[:6] == ADDRESS and (control := decode(frame)) is not None:
                self._control_header = frame[6:14]
                if waiting:
                    waiting.append((when, control))
                else:
                    self._answer(control)
                continue
            if not waiting:
                self.stamp = when
            if waiting or not driver.offer(when, channel, frame):
                self.waited += 1
                waiting.append((when, frame))
        if frames:
            self._last_received = frames[-1][0]
        driver.settle()
        if len(waiting) > _STOP_THRESHOLD:
            self._stop()
        return self._socket.is_full and not self._is_stopped

    def catch_up(self, now: int) -> None:
        """Offer all frames received until `now`."""
        while self.read(now) and self._last_received < now:
            pass

    def close(self) -> None:
        """Stop reading."""
        self._forwarder.channel.on_space = None
        self._waiting.clear()
        if not self._is_stopped:
            self._loop.unwatch(self._socket.fileno())

    def _on_space(self, now: int) -> None:
        """Offer waiting frames, since the link accepts frames again."""
        waiting = self._waiting
        while waiting:
            self.stamp, first = waiting[0]
            if isinstance(first, ControlFrame):
                self._answer(first)
            elif not self._driver.offer(now, self._forwarder.channel, first):
                break
            waiting.popleft()
        if self._is_stopped and len(waiting) <= _GO_THRESHOLD:
            self._is_stopped = False
            self._loop.watch(self._socket.fileno(), self.read)
            self._send_control(GO)

    def _stop(self) -> None:
        self._is_stopped = True
        self._loop.unwatch(self._socket.fileno())
        self.stops += self._send_control(STOP)

    def _answer(self, control: ControlFrame) -> None:
        if control.kind == ASK:
            self._ask_count = control.count
            self._send_control(STOP if self._is_stopped else GO)

    def _send_control(self, kind: int) -> bool:
        """Send a control frame to the NIC if it uses flow control, that is, has sent an ASK; return whether it does."""
        if self._control_header:
            self._socket.send([encode(ControlFrame(kind, self._ask_count, self._window), self._control_header)])
        return bool(self._control_header)

    def _segment(self, frames: list[Delivery]) -> list[Delivery]:
        """Return the frames with GSO frames replaced by their segments."""
        deliveries: list[Delivery] = []
        for when, frame in frames:
            if isinstance(frame, GsoFrame):
                self._forwarder.segmented += 1
                deliveries += [(when, segment) for segment in frame.segment()]
            else:
                deliveries.append((when, frame))
        return deliveries


class ModelledLink(ForwardedLink[ChannelForwarder]):
    """A link of a modelled network."""

    def __init__(self, link: RelayedLink, driver: NetworkDriver, options: LinkOptions) -> None:
        """Open the sockets and join the network. Raises OSError if an interface does not exist."""
        super().__init__(link, options)
        self.uplinks: Final[dict[str, Uplink]] = {}
        """Uplinks, by the direction in which the NIC sends."""
        self._driver = driver
        try:
            for name, device in zip(DIRECTIONS, (link.a, link.b), strict=True):
                if device:
                    self._sockets[name] = PacketSocket(device, options.arena, SOCKET_BUFFER_SIZE)
        except BaseException:
            self.close()
            raise
        for name, opposite in (DIRECTIONS, DIRECTIONS[::-1]):
            self.directions[name] = self._make_forwarder(name, self._sockets.get(opposite), options)
        for direction, socket in self._sockets.items():
            self.uplinks[direction] = Uplink(self._loop, driver, self.directions[direction], socket)

    def _make_forwarder(self, name: DirectionName, sink: PacketSocket | None, options: LinkOptions) -> ChannelForwarder:
        relayed: RelayedDirection = getattr(self.link, name)
        fates, rules = options.fates()
        a, b = self.link.switch_ports
        start, end = (a, b) if name == "forward" else (b, a)
        channel = self._driver.network.join(self.link.name, name, relayed.impairment, fates, start, end)
        channel.entrance.is_cut = self.link.is_cut
        injected = InjectedRules(fates.now, channel.entrance.fates, rules, relayed, (self.link.name, name))
        return ChannelForwarder(self._driver, channel, injected, sink)

    def change(self, link: RelayedLink, files: Mapping[str, str]) -> None:
        """Apply new orders, as `ForwardedLink.change`."""
        super().change(link, files)
        for forwarder in self.directions.values():
            forwarder.channel.entrance.is_cut = link.is_cut
        self._driver.settle()

    def catch_up(self) -> None:
        """Offer all frames that the sockets have received."""
        for uplink in self.uplinks.values():
            uplink.catch_up(self._loop.now())

    def release(self) -> int:
        """Stop forwarding; return 0, since no frame is delivered early. The caller closes the sockets."""
        for uplink in self.uplinks.values():
            uplink.close()
        for forwarder in self.directions.values():
            forwarder.channel.leave()
        return 0

    def pass_through(self) -> None:
        """Do nothing: there is no path around modelled switches."""

    def report_fields(self, direction: str, now: int) -> dict[str, object]:  # noqa: ARG002  as `LinkForwarder`
        """Return the fields of a direction's report that depend on the type of link."""
        uplink = self.uplinks.get(direction)
        if uplink is None:
            return {"queued": [0, 0]}
        return {"queued": list(uplink.queued), "stops": uplink.stops, "waited": uplink.waited}

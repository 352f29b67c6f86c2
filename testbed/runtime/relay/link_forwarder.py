"""Links between two interfaces: the models of a link's directions on the wall clock, between two packet sockets.

A frame is offered to its direction's model with the kernel's receive timestamp. So the relay's own latency does not prolong
a frame's delay, unless the latency exceeds the delay. How late frames leave is counted, and events are recorded if the relay
does not keep up.

GSO frames are forwarded unsegmented on directions that treat all frames equally (no random decisions, no rate): the receiver
accepts them, as on a veth, and TCP sends frames of 64 KiB. On other directions the relay segments them, and each segment has
its own fate. The sender's offloads (`kernel.offloads`) determine whether there are GSO frames.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from testbed.engine.loop import Loop
from testbed.fabric.direction import Delivery, LinkDirection, Outcome
from testbed.fabric.direction_counters import Counters
from testbed.kernel.gso import GsoFrame
from testbed.kernel.packet_socket import PacketSocket
from testbed.runtime.relay.forwarded_link import ForwardedDirection, ForwardedLink, InjectedRules, LinkOptions
from testbed.runtime.relay.orders import DIRECTIONS, RelayedDirection, RelayedLink
from testbed.spec.layout import DirectionName, Impairment

SOCKET_BUFFER_SIZE: Final = 32 << 20
"""Maximum bytes in the buffer of each packet socket; the kernel allocates only what it needs."""


class Forwarder(ForwardedDirection):
    """One direction of a link, between two sockets."""

    __slots__ = ("_gso_in_flight", "_last_received", "_now", "_sink", "_source", "_timer", "model", "on_offered")

    def __init__(
        self, loop: Loop, model: LinkDirection, injected: InjectedRules, source: PacketSocket, sink: PacketSocket
    ) -> None:
        super().__init__(injected)
        self.model: Final = model
        self.on_offered: Callable[[int, bytes, Outcome], object] | None = None
        """Called with receive timestamp, frame and outcome of each frame offered to the model; None without watches."""
        self._gso_in_flight = 0  # GSO frames in the model
        self._source = source
        self._sink = sink
        self._now = loop.now
        self._timer = loop.timer(self.deliver)
        self._last_received = loop.now()  # lower bound of the next receive timestamp, so that they do not decrease

    @property
    def counters(self) -> Counters:
        return self.model.counters

    @property
    def in_flight(self) -> int:
        """Number of frames in the queue, on the line and in the delay."""
        return self.model.in_flight

    def change(self, now: int, impairment: Impairment, files: Mapping[str, str]) -> None:
        """Set another impairment, as `LinkDirection.change`."""
        self.model.change(now, impairment, files)

    def read(self, now: int) -> bool:
        """Offer one batch of received frames; return whether more may be in the socket.

        One batch per call, so that no link delays the frames of others.
        """
        frames = self._source.receive(self._last_received)
        if self._source.has_offloaded:
            self._offer_batch_with_gso(frames)
        else:
            model, on_offered = self.model, self.on_offered
            for when, frame in frames:
                outcome = model.offer(when, frame)
                if on_offered is not None:
                    on_offered(when, frame, outcome)
        if frames:
            # Not `now`: frames that did not fit into the batch have earlier timestamps.
            self._last_received = frames[-1][0]
        deadline = self.model.deadline
        if deadline is not None and deadline <= now:
            self.deliver(now)
        else:
            self._timer.set(deadline)
        return self._source.is_full

    def _offer_batch_with_gso(self, frames: Iterable[Delivery]) -> None:
        """Offer a batch that contains GSO frames."""
        model = self.model
        keeps_gso = model.carries_gso
        for when, frame in frames:
            if not isinstance(frame, GsoFrame):
                self._offer(when, frame)
            elif not keeps_gso:
                self.segmented += 1
                for segment in frame.segment():
                    self._offer(when, segment)
            else:
                self._gso_in_flight += 1
                if frame.segments == 1:
                    self._offer(when, frame)
                else:
                    self.gso_frames += 1
                    model.offer_gso(when, frame, frame.segments)

    def _offer(self, when: int, frame: bytes) -> None:
        """Offer a frame to the model."""
        outcome = self.model.offer(when, frame)
        if self.on_offered is not None:
            self.on_offered(when, frame, outcome)

    def catch_up(self, now: int) -> None:
        """Offer at least all frames received until `now`."""
        while self.read(now) and self._last_received < now:
            pass

    def deliver(self, now: int) -> None:
        """Send the frames that are due."""
        due = self.model.poll(now)
        if due:
            # Not `now`: reading frames before this call may have taken time.
            self.lateness.count(self._now(), due)
            self._send(due)
        self._timer.set(self.model.deadline)

    def _send(self, due: Sequence[Delivery]) -> None:
        frames = [frame for _, frame in due]
        if not self._gso_in_flight:
            self._sink.send(frames)
            return
        for frame in frames:
            if isinstance(frame, GsoFrame):
                self._gso_in_flight -= 1
                if frame.segments > 1:
                    self.model.count_gso(frame.segments, frame.extra_bytes)
        self._sink.send_offloaded(frames)

    def pass_through(self, now: int) -> bool:  # noqa: ARG002  a loop's callback
        """Send one batch of received frames without impairment; return whether more may be in the socket."""
        frames = self._source.receive(self._last_received)
        if frames:
            self._last_received = frames[-1][0]
            send = self._sink.send_offloaded if self._source.has_offloaded else self._sink.send
            send([frame for _, frame in frames])
        return self._source.is_full

    def flush(self, now: int) -> int:
        """Offer all received frames, then send all frames in flight at once; return their number."""
        while self.read(now):
            pass
        self._timer.set(None)
        count, deliveries = self.model.in_flight, []
        while self.model.deadline is not None:
            deliveries += self.model.poll(self.model.deadline)
        self._send(deliveries)
        return count


class LinkForwarder(ForwardedLink[Forwarder]):
    """Forwarder of a link: two sockets and two directions."""

    def __init__(self, link: RelayedLink, options: LinkOptions) -> None:
        """Open the sockets. Raises OSError if an interface does not exist."""
        super().__init__(link, options)
        self._is_impairing = True
        mark = socket.if_nametoindex(link.mark) if link.mark else 0
        try:
            for name, end, tap in zip(DIRECTIONS, (link.a, link.b), link.receive_interfaces, strict=True):
                self._sockets[name] = PacketSocket(tap, options.arena, SOCKET_BUFFER_SIZE, out=end, mark=mark)
            a, b = self._sockets.values()
            self.directions["forward"] = self._make_forwarder("forward", a, b, options)
            self.directions["backward"] = self._make_forwarder("backward", b, a, options)
        except BaseException:
            self.close()
            raise
        self._watch()

    def _make_forwarder(
        self, name: DirectionName, source: PacketSocket, sink: PacketSocket, options: LinkOptions
    ) -> Forwarder:
        relayed: RelayedDirection = getattr(self.link, name)
        fates, rules = options.fates()
        model = LinkDirection(self.link.name, name, relayed.impairment, fates)
        injected = InjectedRules(fates.now, model.fates, rules, relayed, (self.link.name, name))
        return Forwarder(self._loop, model, injected, source, sink)

    def change(self, link: RelayedLink, files: Mapping[str, str]) -> None:
        """Apply new orders, as `ForwardedLink.change`; end `pass_through`."""
        if not self._is_impairing:
            self._stop_reading()
            self._watch()
        super().change(link, files)
        now = self._loop.now()
        for forwarder in self.directions.values():
            forwarder.deliver(now)  # also sets the timer: the change may have moved the deadline

    def catch_up(self) -> None:
        """Offer all frames that the sockets have received."""
        now = self._loop.now()
        for forwarder in self.directions.values():
            forwarder.catch_up(now)

    def _stop_reading(self) -> None:
        for packet_socket in self._sockets.values():
            self._loop.unwatch(packet_socket.fileno())

    def _watch(self) -> None:
        """Watch the sockets, and impair frames from now on."""
        for name, packet_socket in self._sockets.items():
            self._loop.watch(packet_socket.fileno(), self.directions[name].read)
        self._is_impairing = True

    def pass_through(self) -> int:
        """Stop impairing until the next `change`; return how many frames in flight were delivered early."""
        now = self._loop.now()
        early = sum(forwarder.flush(now) for forwarder in self.directions.values())
        self._stop_reading()
        for name, packet_socket in self._sockets.items():
            self._loop.watch(packet_socket.fileno(), self.directions[name].pass_through)
        self._is_impairing = False
        return early

    def release(self) -> int:
        """Stop forwarding, after sending all frames that the sockets have received; return how many frames in flight were
        delivered early. The caller closes the sockets."""
        early = self.pass_through() if self._is_impairing else 0
        self._stop_reading()
        now = self._loop.now()
        for forwarder in self.directions.values():
            while forwarder.pass_through(now):
                pass
        return early

    def report_fields(self, direction: str, now: int) -> dict[str, object]:
        """Return the fields of a direction's report that depend on the type of link."""
        return {"queued": list(self.directions[direction].model.queued(now))}

"""The relay: the model of a link's directions on the wall clock, between packet sockets.

One process forwards the frames of many links. A frame is offered to its direction's model with the kernel's receive
timestamp, so that the relay's own latency does not add to a longer delay. Lateness beyond the due time is counted, and
persistent lateness is recorded as an event.

GSO frames are forwarded unsegmented on directions that treat all frames equally (no random decisions, no rate): the receiver
accepts them, as on a veth, and TCP sends frames of 64 KiB. On other directions they are segmented here, and each segment
has its own fate. A device's offloads (`kernel.offloads`) decide how many GSO frames there are.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from testbed import fabrics
from testbed.engine.loop import Loop
from testbed.fabric.direction import Delivery, LinkDirection, Outcome
from testbed.fabric.direction_counters import Counters
from testbed.fates.fate_counters import Tallies
from testbed.fates.flows import Classifier
from testbed.fates.header_fields import Fields
from testbed.fates.records import Record
from testbed.fates.rules import RuleSet
from testbed.fates.stage import FateOptions
from testbed.kernel.gso import GsoFrame
from testbed.kernel.packet_socket import Arena, PacketSocket
from testbed.runtime.background_calls import BackgroundCalls
from testbed.runtime.relay.direction_orders import ForwardedLink, InjectedRules, LinkOptions, texts_of
from testbed.runtime.relay.lateness import Lateness
from testbed.runtime.relay.orders import DIRECTIONS, Orders, RelayedDirection, RelayedLink
from testbed.runtime.relay.relay_network import Driver, ModelledLink
from testbed.spec.layout import DirectionName

SOCKET_BUFFER_SIZE: Final = 32 << 20
"""Maximum bytes in the buffer of each packet socket; the kernel allocates only what it needs."""


class Forwarder:
    """One direction of a link, between two sockets."""

    __slots__ = (
        "_gso_in_flight", "_last_received", "_now", "_sink", "_source", "_timer", "gso_frames", "injected", "lateness",
        "model", "on_offered", "segmented",
    )  # fmt: skip

    def __init__(
        self, loop: Loop, model: LinkDirection, injected: InjectedRules, source: PacketSocket, sink: PacketSocket
    ) -> None:
        self.model = model
        self.injected: Final = injected
        self.on_offered: Callable[[int, bytes, Outcome], object] | None = None
        """Called with each frame that was offered to the model, and its outcome, while a capture watches."""
        self.lateness = Lateness()
        self.gso_frames = 0
        """Number of GSO frames of several segments that were forwarded unsegmented."""
        self.segmented = 0
        """Number of GSO frames segmented here because their segments have fates of their own."""
        self._gso_in_flight = 0  # GSO frames in the model
        self._source = source
        self._sink = sink
        self._now = loop.now
        self._timer = loop.timer(self.deliver)
        self._last_received = loop.now()  # receive timestamp of the last frame; those of later frames are not smaller

    @property
    def counters(self) -> Counters:
        return self.model.counters

    @property
    def in_flight(self) -> int:
        """Number of frames in the queue, on the line and in the delay."""
        return self.model.in_flight

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
            # Not `now`: frames that did not fit into the batch were received before.
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
        """Offer all frames received until `now`, and possibly later ones."""
        while self.read(now) and self._last_received < now:
            pass

    def deliver(self, now: int) -> None:
        """Send the frames that are due."""
        due = self.model.poll(now)
        if due:
            # Not `now`: time has passed if frames have been read since.
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
        count, early = self.model.in_flight, []
        while self.model.deadline is not None:
            early += self.model.poll(self.model.deadline)
        self._send(early)
        return count


class LinkForwarder(ForwardedLink):
    """Forwarder of a link: two sockets and two directions."""

    def __init__(self, link: RelayedLink, options: LinkOptions) -> None:
        """Open the sockets. OSError if an interface does not exist."""
        super().__init__(link, options)
        self._is_impairing = True
        mark = socket.if_nametoindex(link.mark) if link.mark else 0
        try:
            for name, end, tap in zip(DIRECTIONS, (link.a, link.b), link.receive_interfaces, strict=True):
                self._sockets[name] = PacketSocket(tap, options.arena, SOCKET_BUFFER_SIZE, out=end, mark=mark)
            a, b = self._sockets.values()
            self.directions = {
                "forward": self._make_forwarder("forward", a, b, options),
                "backward": self._make_forwarder("backward", b, a, options),
            }
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
        injected = InjectedRules(fates.now, model, rules, relayed, (self.link.name, name))
        return Forwarder(self._loop, model, injected, source, sink)

    def change(self, link: RelayedLink, files: Mapping[str, str]) -> None:
        """Apply new orders to frames received from now on. Raises the errors of `LinkDirection.change` and
        `InjectedRules.set`."""
        if not self._is_impairing:
            self._stop_reading()
            self._watch()
        texts = texts_of(link, files)
        if (link, texts) == (self.link, self._texts):
            return
        now = self._loop.now()
        for name, forwarder in self.directions.items():
            before: RelayedDirection = getattr(self.link, name)
            after: RelayedDirection = getattr(link, name)
            forwarder.catch_up(now)  # frames received before the change have the former impairment
            if (after.impairment, texts[name]) != (before.impairment, self._texts[name]):
                forwarder.model.change(now, after.impairment, files)
            forwarder.injected.set(now, after.rules)
            forwarder.deliver(now)
        self.link, self._texts = link, texts

    def catch_up(self) -> None:
        """Offer all frames that have been received."""
        now = self._loop.now()
        for forwarder in self.directions.values():
            forwarder.catch_up(now)

    def _stop_reading(self) -> None:
        for packet_socket in self._sockets.values():
            self._loop.unwatch(packet_socket.fileno())

    def _watch(self) -> None:
        """Impair frames from now on."""
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
        """Stop impairing, and send all frames that the sockets have received; return how many frames in flight were
        delivered early.

        The caller closes the sockets.
        """
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


AnyLink = LinkForwarder | ModelledLink


class Relay:
    """All links that one process forwards."""

    def __init__(self, loop: Loop, fields: Fields, tallies: Tallies | None = None) -> None:
        """tallies: store of the rules' counts; None: in memory."""
        self.links: dict[str, AnyLink] = {}
        self._drivers: dict[str, Driver] = {}  # of networks of modelled switches, by their fabrics
        self._loop = loop
        self._fields = fields
        self._classifier = Classifier(fields)
        self._tallies = tallies
        self._arena = Arena()
        self._idle_rules: dict[str, None] = {}  # an ordered set of sentences about rules of released links
        self._background = BackgroundCalls(loop)

    def load(self, orders: Orders, log: Callable[[Record], object] | None = None) -> dict[str, int]:
        """Apply the orders: add links, change some, and release those that are not in the orders.

        Returns released link -> number of frames delivered early. Invalid orders raise DescriptionError,
        BrokenFileError or RuleError before anything changes. OSError names a missing interface; some links may then have
        been changed.
        """
        links_by_name = {link.name: link for link in orders.links}
        for link in orders.links:
            if (known := self.links.get(link.name)) is None or not known.follows(link, orders.seed, orders.files):
                self._check(link, orders)
        removed = [name for name in self.links if name not in links_by_name]
        early = {name: self._close_link(self.links.pop(name)) for name in removed}
        for name, link in links_by_name.items():
            present = self.links.get(name)
            is_kept = present is not None and present.seed == orders.seed and _keeps_sockets(present.link, link)
            if present is not None and is_kept and present.is_current():
                present.change(link, orders.files)
                continue
            if present is not None:
                early[name] = self._close_link(self.links.pop(name))
            self.links[name] = self._add_link(link, orders, log)
        for fabric, driver in self._drivers.items():
            links = [link for link in orders.links if link.fabric == fabric]
            plugs = [plug for link in links for plug in link.plugs if plug is not None]
            driver.network.keep({plug.switch: orders.tables.get(plug.switch, {}) for plug in plugs})
        return early

    def _check(self, link: RelayedLink, orders: Orders) -> None:
        """Raise the errors that the link's directions would raise when they are made."""
        for name in DIRECTIONS:
            relayed: RelayedDirection = getattr(link, name)
            rules = RuleSet(self._fields)
            options = FateOptions(orders.seed, rules=rules, classifier=self._classifier, files=orders.files)
            if link.fabric:
                fabrics.fabric(link.fabric).network().join(link.name, name, relayed.impairment, options)
            else:
                LinkDirection(link.name, name, relayed.impairment, options)
            for text in relayed.rules.values():
                rules.add(0, text)

    def _add_link(self, link: RelayedLink, orders: Orders, log: Callable[[Record], object] | None) -> AnyLink:
        """Start to forward a link."""
        options = LinkOptions(
            self._loop, self._arena, self._fields, orders.seed, orders.files, log, self._tallies, self._classifier
        )
        if not link.fabric:
            return LinkForwarder(link, options)
        driver = self._drivers.get(link.fabric)
        if driver is None:
            driver = self._drivers[link.fabric] = Driver(self._loop, fabrics.fabric(link.fabric).network(orders.slowed))
        return ModelledLink(link, driver, options)

    def pass_through(self, names: Sequence[str]) -> dict[str, int]:
        """Stop impairing these links until orders are loaded; return link -> number of frames delivered early.

        Unknown links are ignored; links at modelled switches do not change.
        """
        early = {name: self.links[name].pass_through() for name in names if name in self.links}
        return {name: count for name, count in early.items() if count is not None}

    def release(self, names: Sequence[str], on_released: Callable[[dict[str, int]], object]) -> None:
        """Stop forwarding these links, whose frames already take another path. Unknown links are ignored.

        Once all frames that their sockets have received are sent, the loop calls `on_released` with link -> number of
        frames delivered early.
        """
        released = {name: link for name in names if (link := self.links.pop(name, None)) is not None}
        sockets = [packet_socket for link in released.values() for packet_socket in link.sockets().values()]

        def close_links() -> None:
            on_released({name: self._close_link(link) for name, link in released.items()})

        self._background.run([packet_socket.stop_receiving for packet_socket in sockets], close_links)

    def _close_link(self, link: AnyLink) -> int:
        """Stop forwarding a link; frames that arrive later are lost. Return how many frames were delivered early."""
        for direction in link.directions.values():
            self._idle_rules.update(dict.fromkeys(direction.injected.idle()))
        early = link.release()
        self._background.run([packet_socket.close for packet_socket in link.sockets().values()], lambda: None)
        return early

    def switches(self) -> dict[str, dict[str, int]]:
        """Return the counters of each modelled switch, by cause."""
        networks = [driver.network for driver in self._drivers.values()]
        return {name: dict(counters) for network in networks for name, counters in network.switches.items()}

    def idle_rules(self) -> list[str]:
        """Return a sentence for each rule that has never decided a fate, including lifted rules and those of released
        links."""
        present = [link.directions[name].injected.idle() for link in self.links.values() for name in DIRECTIONS]
        return [*self._idle_rules, *(sentence for sentences in present for sentence in sentences)]


def _keeps_sockets(before: RelayedLink, after: RelayedLink) -> bool:
    """Whether the link keeps its sockets and counts. A new replay starts with the first frame, so it needs new ones."""
    old, new = (
        (link.a, link.b, link.taps, link.fabric, link.plugs, link.forward.replay, link.backward.replay)
        for link in (before, after)
    )
    return old == new

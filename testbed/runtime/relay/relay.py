"""The relay: the wire model on the wall clock, between packet sockets.

One process carries the frames of many links. A frame is offered to its direction's model with the kernel's receive
timestamp, so that the relay's own latency does not add to a longer delay. Lateness beyond the due time is counted, and
persistent lateness is recorded as an event.

GSO frames are passed on unsegmented on directions without random decisions or a rate that treat all frames alike: the
receiver accepts them, as on a veth, and TCP comes in frames of 64 KiB. On other directions they are segmented here, and
each segment meets its own fate. A device's offloads (`kernel.offloads`) only decide which of the two is common.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from testbed import fabrics
from testbed.engine.loop import Loop
from testbed.fabric.direction import Delivery, LinkDirection, Outcome
from testbed.fates.fate_counters import Counters, Tallies
from testbed.fates.header_fields import Fields
from testbed.fates.records import Record
from testbed.fates.rules import RuleSet
from testbed.fates.stage import FateOptions
from testbed.kernel.gso import GsoFrame
from testbed.kernel.packet_socket import Arena, PacketSocket
from testbed.runtime.background_calls import BackgroundCalls
from testbed.runtime.relay.direction_orders import CarriedLink, InjectedRules, LinkOptions, texts_of
from testbed.runtime.relay.lateness import Lateness
from testbed.runtime.relay.orders import DIRECTIONS, Orders, RelayedDirection, RelayedLink
from testbed.runtime.relay.relay_network import Driver, ModelledLink
from testbed.spec.layout import DirectionName

BUFFER: Final = 32 << 20
"""Maximum bytes in the buffer of each packet socket; the kernel allocates only what it needs."""


class Forwarder:
    """One direction of a link, between two sockets."""

    __slots__ = (
        "_last", "_now", "_out", "_source", "_timer", "_unfinished", "finished", "gso_frames", "injected", "lateness",
        "model", "offer",
    )  # fmt: skip

    def __init__(
        self, loop: Loop, model: LinkDirection, injected: InjectedRules, source: PacketSocket, out: PacketSocket
    ) -> None:
        self.model = model
        self.injected: Final = injected
        self.offer: Callable[[int, bytes], Outcome] = model.offer
        """Offers a frame to the model; watchers wrap it."""
        self.lateness = Lateness()
        self.gso_frames = 0
        """Number of GSO frames of several segments that were carried unsegmented."""
        self.finished = 0
        """Number of GSO frames segmented here because their segments meet fates of their own."""
        self._unfinished = 0  # under way
        self._source = source
        self._out = out
        self._now = loop.now
        self._timer = loop.timer(self.deliver)
        self._last = loop.now()  # when the last frame came; later ones are not older

    @property
    def counters(self) -> Counters:
        return self.model.counters

    @property
    def in_flight(self) -> int:
        """Frames in the queue, on the line and under way."""
        return self.model.in_flight

    def read(self, now: int) -> bool:
        """Offer one batch of received frames; return whether more may be waiting.

        One batch per call, so that no link delays the frames of others.
        """
        frames = self._source.receive(self._last)
        if self._source.has_offloaded:
            self._offer_unfinished(frames)
        else:
            offer = self.offer
            for when, frame in frames:
                offer(when, frame)
        if frames:
            # Not `now`: frames that did not fit into the batch came before.
            self._last = frames[-1][0]
        deadline = self.model.deadline
        if deadline is not None and deadline <= now:
            self.deliver(now)
        else:
            self._timer.set(deadline)
        return self._source.is_full

    def _offer_unfinished(self, frames: Iterable[Delivery]) -> None:
        """Offer a batch that contains GSO frames."""
        model, offer = self.model, self.offer
        stay = model.carries_gso
        for when, frame in frames:
            if not isinstance(frame, GsoFrame):
                offer(when, frame)
            elif not stay:
                self.finished += 1
                for segment in frame.segment():
                    offer(when, segment)
            else:
                self._unfinished += 1
                if frame.segments == 1:
                    offer(when, frame)
                else:
                    self.gso_frames += 1
                    model.offer_gso(when, frame, frame.segments)

    def catch_up(self, now: int) -> None:
        """Offer all frames received until now, and possibly later ones."""
        while self.read(now) and self._last < now:
            pass

    def deliver(self, now: int) -> None:
        """Send the frames that are due."""
        due = self.model.poll(now)
        if due:
            # Not `now`: frames may have been read since.
            self.lateness.count(self._now(), due)
            self._send(due)
        self._timer.set(self.model.deadline)

    def _send(self, due: Sequence[Delivery]) -> None:
        frames = [frame for _, frame in due]
        if not self._unfinished:
            self._out.send(frames)
            return
        for frame in frames:
            if isinstance(frame, GsoFrame):
                self._unfinished -= 1
                if frame.segments > 1:
                    self.model.count_gso(frame.segments, frame.extra_bytes)
        self._out.send_offloaded(frames)

    def pass_through(self, now: int) -> bool:  # noqa: ARG002  a loop's callback
        """Forward one batch of received frames without impairment; return whether more may be waiting."""
        frames = self._source.receive(self._last)
        if frames:
            self._last = frames[-1][0]
            send = self._out.send_offloaded if self._source.has_offloaded else self._out.send
            send([frame for _, frame in frames])
        return self._source.is_full

    def flush(self, now: int) -> int:
        """Offer all received frames, then send those under way at once; return their number."""
        while self.read(now):
            pass
        self._timer.set(None)
        count, left = self.model.in_flight, []
        while self.model.deadline is not None:
            left += self.model.poll(self.model.deadline)
        self._send(left)
        return count


class LinkForwarder(CarriedLink):
    """A link: two sockets and two directions."""

    def __init__(self, carried: RelayedLink, options: LinkOptions) -> None:
        """Open the sockets. OSError if a free end does not exist."""
        super().__init__(carried, options)
        self._impairs = True
        mark = socket.if_nametoindex(carried.mark) if carried.mark else 0
        try:
            for name, end, tap in zip(DIRECTIONS, (carried.a, carried.b), carried.heard, strict=True):
                self._sockets[name] = PacketSocket(tap, options.arena, BUFFER, out=end, mark=mark)
            a, b = self._sockets.values()
            self.directions = {
                "forward": self._direct("forward", a, b, options),
                "backward": self._direct("backward", b, a, options),
            }
        except BaseException:
            self.close()
            raise
        self._watch()

    def _direct(self, name: DirectionName, source: PacketSocket, out: PacketSocket, options: LinkOptions) -> Forwarder:
        relayed: RelayedDirection = getattr(self.carried, name)
        fates, rules = options.fates()
        model = LinkDirection(self.carried.name, name, relayed.impairment, fates)
        return Forwarder(
            self._loop, model, InjectedRules(fates.now, model, rules, relayed, (self.carried.name, name)), source, out
        )

    def change(self, carried: RelayedLink, files: Mapping[str, str]) -> None:
        """Change how frames are treated from now on. Errors are raised before anything changes."""
        if not self._impairs:
            self._stop_reading()
            self._watch()
        texts = texts_of(carried, files)
        if (carried, texts) == (self.carried, self._texts):
            return
        now = self._loop.now()
        for name, forwarder in self.directions.items():
            before: RelayedDirection = getattr(self.carried, name)
            after: RelayedDirection = getattr(carried, name)
            forwarder.catch_up(now)  # frames received before the change are treated as before
            if (after.impairment, texts[name]) != (before.impairment, self._texts[name]):
                forwarder.model.change(now, after.impairment, files)
            forwarder.injected.set(now, after.rules)
            forwarder.deliver(now)
        self.carried, self._texts = carried, texts

    def catch_up(self) -> None:
        """Offer all frames received until now."""
        now = self._loop.now()
        for forwarder in self.directions.values():
            forwarder.catch_up(now)

    def _stop_reading(self) -> None:
        for heard in self._sockets.values():
            self._loop.unwatch(heard.fileno())

    def _watch(self) -> None:
        """Impair frames from now on."""
        for name, heard in self._sockets.items():
            self._loop.watch(heard.fileno(), self.directions[name].read)
        self._impairs = True

    def pass_through(self) -> int:
        """Stop impairing until the next `change`; return how many frames under way were delivered early."""
        now = self._loop.now()
        early = sum(forwarder.flush(now) for forwarder in self.directions.values())
        self._stop_reading()
        for name, heard in self._sockets.items():
            self._loop.watch(heard.fileno(), self.directions[name].pass_through)
        self._impairs = False
        return early

    def release(self) -> int:
        """Stop carrying the link and forward what its sockets have received; return how many frames were delivered
        early.

        The caller closes the sockets.
        """
        early = self.pass_through() if self._impairs else 0
        self._stop_reading()
        now = self._loop.now()
        for forwarder in self.directions.values():
            while forwarder.pass_through(now):
                pass
        return early

    def more(self, direction: str, now: int) -> dict[str, object]:
        """The fields of a direction's report that depend on the type of link."""
        return {"queued": list(self.directions[direction].model.queued(now))}


AnyLink = LinkForwarder | ModelledLink


class Relay:
    """All links that one process carries."""

    def __init__(self, loop: Loop, fields: Fields, tallies: Tallies | None = None) -> None:
        """tallies: store of the rules' counts; None: in memory."""
        self.links: dict[str, AnyLink] = {}
        self._drivers: dict[str, Driver] = {}  # of networks, by their fabrics
        self._loop = loop
        self._fields = fields
        self._tallies = tallies
        self._arena = Arena()
        self._idle: dict[str, None] = {}  # sentences, each once
        self._aside = BackgroundCalls(loop)

    def load(self, orders: Orders, log: Callable[[Record], object] | None = None) -> dict[str, int]:
        """Apply the orders: add links, change some, and release those that are not in the orders.

        Returns released link -> number of frames delivered early. Invalid orders raise DescriptionError,
        BrokenFileError or RuleError before anything changes. OSError names a missing free end; the other links have
        then been changed.
        """
        wanted = {link.name: link for link in orders.links}
        for link in orders.links:
            _check(link, orders, self._fields)
        early = {name: self._let_go(self.links.pop(name)) for name in list(self.links) if name not in wanted}
        for name, link in wanted.items():
            known = self.links.get(name)
            same = known is not None and known.seed == orders.seed and _continues(known.carried, link)
            if known is not None and same and known.still_there():
                known.change(link, orders.files)
                continue
            if known is not None:
                early[name] = self._let_go(self.links.pop(name))
            self.links[name] = self._carry(link, orders, log)
        for fabric, driver in self._drivers.items():
            links = [link for link in orders.links if link.fabric == fabric]
            plugs = [plug for link in links for plug in link.plugs if plug is not None]
            driver.network.keep({plug.switch: orders.tables.get(plug.switch, {}) for plug in plugs})
        return early

    def _carry(self, link: RelayedLink, orders: Orders, log: Callable[[Record], object] | None) -> AnyLink:
        """Start to carry a link."""
        options = LinkOptions(self._loop, self._arena, self._fields, orders.seed, orders.files, log, self._tallies)
        if not link.fabric:
            return LinkForwarder(link, options)
        driver = self._drivers.get(link.fabric)
        if driver is None:
            driver = self._drivers[link.fabric] = Driver(self._loop, fabrics.fabric(link.fabric).network(orders.slowed))
        return ModelledLink(link, driver, options)

    def pass_through(self, names: Sequence[str]) -> dict[str, int]:
        """Stop impairing these links until orders are loaded; return how many frames each delivered early.

        Unknown links are ignored; links at modelled switches do not change.
        """
        early = {name: self.links[name].pass_through() for name in names if name in self.links}
        return {name: count for name, count in early.items() if count is not None}

    def release(self, names: Sequence[str], then: Callable[[dict[str, int]], object]) -> None:
        """Stop carrying these links, whose frames already take another path. Unknown links are ignored.

        Once all frames that were on their way here have been forwarded, the loop calls `then` with link -> number of
        frames delivered early.
        """
        leaving = {name: link for name in names if (link := self.links.pop(name, None)) is not None}
        sockets = [heard for link in leaving.values() for heard in link.sockets().values()]

        def left() -> None:
            then({name: self._let_go(link) for name, link in leaving.items()})

        self._aside.make([heard.stop_receiving for heard in sockets], left)

    def _let_go(self, link: AnyLink) -> int:
        """Stop carrying a link; frames that arrive later are lost. Return how many were delivered early."""
        for direction in link.directions.values():
            self._idle.update(dict.fromkeys(direction.injected.idle()))
        early = link.release()
        self._aside.make([heard.close for heard in link.sockets().values()], lambda: None)
        return early

    def switches(self) -> dict[str, dict[str, int]]:
        """The counters of each modelled switch, by cause."""
        networks = [driver.network for driver in self._drivers.values()]
        return {name: dict(counted) for network in networks for name, counted in network.switches.items()}

    def idle_rules(self) -> list[str]:
        """A sentence for each rule that has never decided a fate, including lifted ones and those of released links."""
        carried = [link.directions[name].injected.idle() for link in self.links.values() for name in DIRECTIONS]
        return [*self._idle, *(sentence for sentences in carried for sentence in sentences)]


def _continues(before: RelayedLink, after: RelayedLink) -> bool:
    """Whether the link keeps its sockets and counts. A replay always starts with the first frame."""
    old, new = (
        (link.a, link.b, link.taps, link.fabric, link.plugs, link.forward.replay, link.backward.replay)
        for link in (before, after)
    )
    return old == new


def _check(link: RelayedLink, orders: Orders, fields: Fields) -> None:
    """Raise the errors that the link's directions would raise."""
    for name in DIRECTIONS:
        relayed: RelayedDirection = getattr(link, name)
        options = FateOptions(orders.seed, rules=(rules := RuleSet(fields)), files=orders.files)
        if link.fabric:
            fabrics.fabric(link.fabric).network().join(link.name, name, relayed.impairment, options)
        else:
            LinkDirection(link.name, name, relayed.impairment, options)
        for text in relayed.rules.values():
            rules.add(0, text)

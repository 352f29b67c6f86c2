"""The relay: the wire model on the wall clock, between packet sockets.

One process carries the frames of many links. A frame is offered to its direction's model with the time at which the
kernel got it, not when we came to read it, so that our own slowness takes nothing from the delay as long as it is
shorter; how late a frame left beyond its due time is counted, and being late for long is told.

What a sender's kernel left unfinished is passed on so where a direction leaves nothing to chance, has no rate and treats
every frame alike: whoever gets it does not mind, as on a veth, and TCP comes in pieces of 64 KiB. Elsewhere the frames that
it stands for are made here, and each meets its own fate. What a device is given to send (`kernel.offloads`) decides only
which of the two is the rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Literal

from testbed.engine.loop import Loop
from testbed.kernel.packets import Arena, PacketSocket
from testbed.kernel.unfinished import Unfinished
from testbed.runtime.aside import Aside
from testbed.runtime.crossbars import CrossbarLink, Crossbars
from testbed.runtime.lateness import Lateness
from testbed.runtime.orders import DIRECTIONS, Carried, Orders, Treated
from testbed.runtime.treating import InjectedRules, texts_of
from testbed.wire.direction import Delivery, Direction, Outcome
from testbed.wire.fates import Record
from testbed.wire.fields import Fields
from testbed.wire.myrinet.channel import Channel
from testbed.wire.myrinet.settings import USUAL
from testbed.wire.rules import RuleSet

BUFFER: Final = 32 << 20
"""Bytes that may wait in each packet socket; the kernel uses what it needs of it."""


class Carriage:
    """One direction of a link, between two sockets."""

    __slots__ = (
        "_last", "_now", "_out", "_source", "_timer", "_unfinished", "finished", "injected", "lateness", "model", "offer",
        "pieces",
    )  # fmt: skip

    def __init__(
        self, loop: Loop, model: Direction, injected: InjectedRules, source: PacketSocket, out: PacketSocket
    ) -> None:
        self.model = model
        self.injected: Final = injected
        self.offer: Callable[[int, bytes], Outcome] = model.offer
        """How a frame enters the model; whoever watches steps in between."""
        self.lateness = Lateness()
        self.pieces = 0
        """What came as one piece of several frames, and was carried so."""
        self.finished = 0
        """What came unfinished and was finished here, since its frames meet fates of their own."""
        self._unfinished = 0  # under way
        self._source = source
        self._out = out
        self._now = loop.now
        self._timer = loop.timer(self.deliver)
        self._last = loop.now()  # when the last frame came: nothing that is still to come is older

    def read(self, now: int) -> bool:
        """Offer what has come; whether more may be waiting. One batch a turn, so that no link keeps the others' frames
        waiting."""
        frames = self._source.receive(self._last)
        if self._source.unfinished:
            self._offer_unfinished(frames)
        else:
            offer = self.offer
            for when, frame in frames:
                offer(when, frame)
        if frames:
            # Not `now`: what did not fit into the batch came before.
            self._last = frames[-1][0]
        deadline = self.model.deadline
        if deadline is not None and deadline <= now:
            self.deliver(now)
        else:
            self._timer.set(deadline)
        return self._source.filled

    def _offer_unfinished(self, frames: Iterable[Delivery]) -> None:
        """Some of these are unfinished."""
        model, offer = self.model, self.offer
        stay = model.carries_pieces
        for when, frame in frames:
            if not isinstance(frame, Unfinished):
                offer(when, frame)
            elif not stay:
                self.finished += 1
                for one in frame.finish():
                    offer(when, one)
            else:
                self._unfinished += 1
                if frame.segments == 1:
                    offer(when, frame)
                else:
                    self.pieces += 1
                    model.offer_piece(when, frame, frame.segments)

    def catch_up(self, now: int) -> None:
        """Offer all that has come until now; what comes meanwhile may be among it."""
        while self.read(now) and self._last < now:
            pass

    def deliver(self, now: int) -> None:
        """Send what is due."""
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
            if isinstance(frame, Unfinished):
                self._unfinished -= 1
                if frame.segments > 1:
                    self.model.count_piece(frame.segments, frame.beyond)
        self._out.send_unfinished(frames)

    def flush(self, now: int) -> int:
        """The link is carried by others from now on, and its sockets hear no more: what has come is treated, and what is
        under way leaves at once. How many frames that were."""
        while self.read(now):
            pass
        self._timer.set(None)
        count, left = self.model.held, []
        while self.model.deadline is not None:
            left += self.model.poll(self.model.deadline)
        self._send(left)
        return count


class LinkCarriage:
    """A link: two sockets, two directions."""

    def __init__(
        self,
        loop: Loop,
        carried: Carried,
        *,
        seed: int,
        arena: Arena,
        fields: Fields,
        files: Mapping[str, str],
        log: Callable[[Record], object] | None = None,
    ) -> None:
        self.carried = carried
        self.seed = seed
        self._texts = texts_of(carried, files)
        self._loop = loop
        self._sockets: list[PacketSocket] = []
        try:
            for device in (carried.a, carried.b):
                self._sockets.append(PacketSocket(device, arena, BUFFER))
            a, b = self._sockets
            self.directions = {
                "forward": self._direct(loop, "forward", a, b, seed, fields, files, log),
                "backward": self._direct(loop, "backward", b, a, seed, fields, files, log),
            }
        except BaseException:
            self.close()
            raise
        for socket, name in zip(self._sockets, DIRECTIONS, strict=True):
            loop.watch(socket.fileno(), self.directions[name].read)

    def _direct(
        self,
        loop: Loop,
        name: Literal["forward", "backward"],
        source: PacketSocket,
        out: PacketSocket,
        seed: int,
        fields: Fields,
        files: Mapping[str, str],
        log: Callable[[Record], object] | None,
    ) -> Carriage:
        treated: Treated = getattr(self.carried, name)
        rules = RuleSet(fields)
        model = Direction(
            self.carried.name, name, treated.impairment, seed=seed, now=loop.now(), rules=rules, files=files, log=log
        )
        return Carriage(loop, model, InjectedRules(loop.now(), model, rules, treated), source, out)

    def change(self, carried: Carried, files: Mapping[str, str]) -> None:
        """Treat frames that come from now on as is asked for. What can fail does so before anything has changed."""
        texts = texts_of(carried, files)
        if (carried, texts) == (self.carried, self._texts):
            return
        now = self._loop.now()
        for name, carriage in self.directions.items():
            before: Treated = getattr(self.carried, name)
            after: Treated = getattr(carried, name)
            carriage.catch_up(now)  # what came before the change is treated as before
            if (after.impairment, texts[name]) != (before.impairment, self._texts[name]):
                carriage.model.change(now, after.impairment, files)
            carriage.injected.set(now, after.rules)
            carriage.deliver(now)
        self.carried, self._texts = carried, texts

    def catch_up(self) -> None:
        """Treat all that has come until now."""
        now = self._loop.now()
        for carriage in self.directions.values():
            carriage.catch_up(now)

    def release(self) -> int:
        """Carry the link no more, whose sockets hear no more; how many frames that were under way were delivered early. The
        sockets are left to be closed."""
        for socket in self._sockets:
            self._loop.unwatch(socket.fileno())
        now = self._loop.now()
        return sum(carriage.flush(now) for carriage in self.directions.values())

    def close(self) -> None:
        for socket in self._sockets:
            socket.close()

    def still_there(self) -> bool:
        """Whether its free ends are the interfaces that it was opened on."""
        return sum(socket.still_there() for socket in self._sockets) == len(self._sockets)  # each takes note of its MTU

    def sockets(self) -> dict[str, PacketSocket]:
        """By the direction whose frames come in on them."""
        return dict(zip(DIRECTIONS, self._sockets, strict=True))


AnyLink = LinkCarriage | CrossbarLink


class Relay:
    """All the links that one process carries. crossbars: Myrinet's switches among them, once there are any."""

    def __init__(self, loop: Loop, fields: Fields, unclaimed: Callable[[int], int] = lambda _: 0) -> None:
        """unclaimed(index): how many frames have come in on an interface that nobody took."""
        self.links: dict[str, AnyLink] = {}
        self.crossbars: Crossbars | None = None
        self._unclaimed = unclaimed
        self._loop = loop
        self._fields = fields
        self._arena = Arena()
        self._idle: dict[str, None] = {}  # sentences, each once
        self._aside = Aside(loop)
        self._heard: dict[str, int] = {}

    def load(self, orders: Orders, log: Callable[[Record], object] | None = None) -> dict[str, int]:
        """Do from now on what the orders say: carry links anew, change some, release those that they do not name.

        Returns the links released, with how many frames each delivered early. What is wrong in the orders (DescriptionError,
        BrokenFileError, RuleError) is found before anything is changed; OSError names a free end that is not there, and then
        the other links have been changed.
        """
        wanted = {link.name: link for link in orders.links}
        for link in orders.links:
            _check(link, orders, self._fields)
        early = {name: self._release_at_once(name) for name in list(self.links) if name not in wanted}
        for name, link in wanted.items():
            known = self.links.get(name)
            same = known is not None and known.seed == orders.seed and _continues(known.carried, link)
            if known is not None and same and known.still_there():
                known.change(link, orders.files)
                continue
            if known is not None:
                early[name] = self._release_at_once(name)
            self.links[name] = self._carry(link, orders, log)
            self._heard.update(self._count(self.links[name]))
        if self.crossbars is not None:
            plugs = [plug for link in orders.links for plug in link.plugs if plug is not None]
            self.crossbars.keep({plug.switch for plug in plugs})
        return early

    def _carry(self, link: Carried, orders: Orders, log: Callable[[Record], object] | None) -> AnyLink:
        """Begin to."""
        loop, seed, arena, fields, files = self._loop, orders.seed, self._arena, self._fields, orders.files
        if not link.is_myrinet:
            return LinkCarriage(loop, link, seed=seed, arena=arena, fields=fields, files=files, log=log)
        if self.crossbars is None:
            self.crossbars = Crossbars(loop, USUAL.slowed(orders.slowed))
        return CrossbarLink(loop, link, self.crossbars, seed=seed, arena=arena, fields=fields, files=files, log=log)

    def heard(self) -> dict[str, int]:
        """By free end, how many frames nobody had taken when a link was taken over, or let go, since this was last asked."""
        heard, self._heard = self._heard, {}
        return heard

    def _count(self, link: AnyLink) -> dict[str, int]:
        return {socket.device: self._unclaimed(socket.index) for socket in link.sockets().values()}

    def release(self, names: Sequence[str], then: Callable[[dict[str, int]], object]) -> None:
        """Carry these links no more, those that are carried: they hear nothing more, and give on what they have heard.

        As soon as the kernel knows, too, that nobody listens, the loop calls then(how many frames each delivered early).
        """
        leaving = {name: link for name in names if (link := self.links.pop(name, None)) is not None}
        sockets = [socket for link in leaving.values() for socket in link.sockets().values()]
        for socket in sockets:
            self._heard[socket.device] = self._unclaimed(socket.index)
            socket.mute()
        early = {name: self._let_go(link) for name, link in leaving.items()}

        def deaf() -> None:
            for socket in sockets:
                # As if the kernel had counted them, too: the rise since is what was lost.
                self._heard[socket.device] -= socket.overheard()
            self._close(sockets)
            then(early)

        self._aside.make([socket.stop_listening for socket in sockets], deaf)

    def _release_at_once(self, name: str) -> int:
        """The same for a link whose free ends are others now, or are not wanted: what it may still hear is lost."""
        link = self.links.pop(name)
        early = self._let_go(link)
        self._close(link.sockets().values())
        return early

    def _let_go(self, link: AnyLink) -> int:
        for direction in link.directions.values():
            self._idle.update(dict.fromkeys(direction.injected.idle()))
        return link.release()

    def _close(self, sockets: Iterable[PacketSocket]) -> None:
        self._aside.make([socket.close for socket in sockets], lambda: None)

    def idle_rules(self) -> list[str]:
        """A sentence for each rule, in force, lifted or gone with its link, that has never decided a frame's fate."""
        carried = [link.directions[name].injected.idle() for link in self.links.values() for name in DIRECTIONS]
        return [*self._idle, *(sentence for sentences in carried for sentence in sentences)]


def _continues(before: Carried, after: Carried) -> bool:
    """Whether the same sockets and the same counts go on. A replay begins with the first frame."""
    one, other = ((link.a, link.b, link.plugs, link.forward.replay, link.backward.replay) for link in (before, after))
    return one == other


def _check(link: Carried, orders: Orders, fields: Fields) -> None:
    """Raises what a direction would."""
    for name in DIRECTIONS:
        treated: Treated = getattr(link, name)
        rules = RuleSet(fields)
        kind = Channel if link.is_myrinet else Direction
        kind(link.name, name, treated.impairment, seed=orders.seed, rules=rules, files=orders.files)
        for text in treated.rules.values():
            rules.add(0, text)

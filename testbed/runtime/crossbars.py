"""Myrinet in the relay: the sans-IO network on the wall clock, between the packet sockets of its NICs' interfaces.

The switches, and the cables between them, are nowhere but here; only a NIC's end of a link is an interface. A frame enters
with the time at which the kernel got it, unless the network is further already.

A NIC's frames that its link does not take now wait here, a few of them. Then the NIC is told STOP, and its socket is not
read until they have gone on: what is under way meanwhile waits in the socket's buffer, which holds the whole window that the
NIC may use (`testbed.wire.myrinet.stop_go`). So nothing is lost, however late either process is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, Literal

from testbed.engine.loop import Loop
from testbed.kernel.packets import Arena, PacketSocket
from testbed.kernel.unfinished import Unfinished
from testbed.runtime.lateness import Lateness
from testbed.runtime.orders import DIRECTIONS, Carried, Plug, Treated
from testbed.runtime.treating import InjectedRules, texts_of
from testbed.wire.direction import Delivery
from testbed.wire.fates import Record
from testbed.wire.fields import Fields
from testbed.wire.myrinet.channel import Channel, ignore
from testbed.wire.myrinet.network import Network
from testbed.wire.myrinet.settings import Settings
from testbed.wire.myrinet.stop_go import ADDRESS, ASK, GO, STOP, Word, frame_of, word_in
from testbed.wire.myrinet.switch import Switch
from testbed.wire.rules import RuleSet

BUFFER: Final = 32 << 20
"""Bytes that may wait in each packet socket, where the machine lets us have so many."""

LARGEST_WINDOW: Final = 1024
"""Frames."""

_MANY: Final = 16  # frames that wait here, from which on a NIC is told STOP
_FEW: Final = 4  # up to which it is told GO
_TOGETHER: Final = 8  # frames that leave in one go: more of them would make the first ones late
_HEAD: Final = slice(6, 14)  # of a frame: its sender, its EtherType


class Crossbars:
    """All of Myrinet's switches in a cluster, in one process of the relay."""

    def __init__(self, loop: Loop, settings: Settings) -> None:
        self.settings: Final = settings
        self.switches: Final[dict[str, Switch]] = {}
        self.now: Final = loop.now
        self._outputs: dict[str, dict[int, Channel]] = {}
        self._network = Network(settings)
        self._timer = loop.timer(self._due)
        self._reached = 0  # the network's time
        self._is_busy = False
        self._left: dict[CrossbarWay, None] = {}  # those with frames that have come out of the network

    def lead(self, way: Channel, start: Plug | None, end: Plug | None) -> None:
        """The switches' ports at the ends of a direction; None: a NIC."""
        if end is not None:
            way.end_at(self._switch(end), end.port)
        if start is not None:
            self._switch(start)
            self._outputs[start.switch][start.port] = way

    def leave(self, way: Channel, start: Plug | None) -> None:
        """The direction is no more. What is under way on it has come to its end for nothing."""
        way.receive = ignore
        if start is not None and self._outputs[start.switch].get(start.port) is way:
            del self._outputs[start.switch][start.port]

    def keep(self, names: set[str]) -> None:
        """Only these switches are there any more."""
        for name in self.switches.keys() - names:
            del self.switches[name], self._outputs[name]

    def offer(self, when: int, way: Channel, frame: bytes) -> bool:
        """A NIC's frame. False: not now."""
        network = self._network
        if self._is_busy:
            return network.offer(when, way, frame)
        deadline = network.deadline
        if deadline is not None and deadline <= when:
            self._poll(when)
        elif when > self._reached:
            self._reached = when
        return network.offer(self._reached, way, frame)

    def settle(self) -> None:
        """Frames have been offered: send what is due, and see to the rest."""
        if not self._is_busy:
            deadline = self._network.deadline
            if deadline is not None and deadline <= (now := self.now()):
                self._poll(now)
                deadline = self._network.deadline
            self._send()
            self._timer.set(deadline)

    def left(self, way: CrossbarWay) -> None:
        """A frame has come to a NIC."""
        self._left[way] = None

    def _due(self, _now: int) -> None:
        self.settle()

    def _poll(self, now: int) -> None:
        self._is_busy = True
        self._network.poll(now)
        self._reached = max(self._reached, now)
        self._is_busy = False

    def _send(self) -> None:
        for way in self._left:
            way.send()
        self._left.clear()

    def _switch(self, plug: Plug) -> Switch:
        switch = self.switches.get(plug.switch)
        if switch is None:
            outputs = self._outputs[plug.switch] = {}
            switch = self.switches[plug.switch] = Switch(plug.switch, self.settings.ports, outputs)
        switch.ports = max(switch.ports, plug.port)
        return switch


class CrossbarWay:
    """One direction of a link. What it has of `relay.Carriage` is for who counts and watches."""

    __slots__ = ("_crossbars", "_due", "_out", "finished", "injected", "lateness", "model", "pieces")

    def __init__(self, crossbars: Crossbars, model: Channel, injected: InjectedRules, out: PacketSocket | None) -> None:
        """out: where its frames leave, if a NIC is at its end."""
        self.model = model
        self.injected: Final = injected
        self.lateness = Lateness()
        self.pieces = 0
        self.finished = 0
        self._crossbars = crossbars
        self._out = out
        self._due: list[Delivery] = []
        if out is not None:
            model.receive = self._receive

    def _receive(self, now: int, frame: bytes) -> None:
        self._due.append((now, frame))
        if len(self._due) == _TOGETHER:
            self.send()
        else:
            self._crossbars.left(self)

    def send(self) -> None:
        """What has come to its end leaves."""
        assert self._out is not None
        due, self._due = self._due, []
        if not due:
            return
        self.lateness.count(max(self._crossbars.now(), due[-1][0]), due)
        self._out.send([frame for _, frame in due])


class Uplink:
    """Where a NIC's frames come in. stops: how often it was told STOP. waited: frames that had to."""

    __slots__ = (
        "_answered", "_crossbars", "_head", "_kept", "_last", "_loop", "_socket", "_stopped", "_way", "_window", "stops",
        "waited",
    )  # fmt: skip

    def __init__(self, loop: Loop, crossbars: Crossbars, way: CrossbarWay, socket: PacketSocket) -> None:
        self.stops = 0
        self.waited = 0
        self._loop = loop
        self._crossbars = crossbars
        self._way = way
        self._socket = socket
        self._kept: deque[bytes | Word] = deque()  # a word is what the NIC has asked between two frames
        self._stopped = False
        self._answered = 0
        self._window = max(1, min(LARGEST_WINDOW, socket.room))
        self._head = b""  # of the NIC's words; empty until it has said one
        self._last = loop.now()
        way.model.on_space = self._go_on
        loop.watch(socket.fileno(), self.read)

    @property
    def waiting(self) -> tuple[int, int]:
        """Bytes and frames that wait here."""
        frames = [len(frame) for frame in self._kept if not isinstance(frame, Word)]
        return sum(frames), len(frames)

    def read(self, _now: int) -> bool:
        """Offer what has come; whether more may be waiting. One batch a turn, as of every link."""
        if self._stopped:
            return False
        frames = self._socket.receive(self._last)
        if self._socket.unfinished:
            frames = self._finished(frames)
        kept, offer, model = self._kept, self._crossbars.offer, self._way.model
        for when, frame in frames:
            if frame[:6] == ADDRESS and (word := word_in(frame)) is not None:
                self._head = frame[_HEAD]
                if kept:
                    kept.append(word)
                else:
                    self._answer(word)
            elif kept or not offer(when, model, frame):
                self.waited += 1
                kept.append(frame)
        if frames:
            self._last = frames[-1][0]
        self._crossbars.settle()
        if len(kept) > _MANY:
            self._stop()
        return self._socket.filled and not self._stopped

    def catch_up(self, now: int) -> None:
        """Offer all that has come until now."""
        while self.read(now) and self._last < now:
            pass

    def close(self) -> None:
        """Nothing is read any more."""
        self._way.model.on_space = None
        self._kept.clear()
        if not self._stopped:
            self._loop.unwatch(self._socket.fileno())

    def _go_on(self, now: int) -> None:
        """The link is the NIC's."""
        kept = self._kept
        while kept:
            first = kept[0]
            if isinstance(first, Word):
                self._answer(first)
            elif not self._crossbars.offer(now, self._way.model, first):
                break
            kept.popleft()
        if self._stopped and len(kept) <= _FEW:
            self._stopped = False
            self._loop.watch(self._socket.fileno(), self.read)
            self._say(GO)

    def _stop(self) -> None:
        self._stopped = True
        self._loop.unwatch(self._socket.fileno())
        self.stops += 1
        self._say(STOP)

    def _answer(self, word: Word) -> None:
        if word.kind == ASK:
            self._answered = word.count
            self._say(STOP if self._stopped else GO)

    def _say(self, kind: int) -> None:
        if self._head:
            self._socket.send([frame_of(Word(kind, self._answered, self._window), self._head)])

    def _finished(self, frames: list[Delivery]) -> list[Delivery]:
        """The same, without what its sender's kernel has left unfinished."""
        found: list[Delivery] = []
        for when, frame in frames:
            if isinstance(frame, Unfinished):
                self._way.finished += 1
                found += [(when, one) for one in frame.finish()]
            else:
                found.append((when, frame))
        return found


class CrossbarLink:
    """A link with one of Myrinet's switches at one end or both."""

    def __init__(
        self,
        loop: Loop,
        carried: Carried,
        crossbars: Crossbars,
        *,
        seed: int,
        arena: Arena,
        fields: Fields,
        files: Mapping[str, str],
        log: Callable[[Record], object] | None = None,
    ) -> None:
        """OSError where a free end is not there."""
        self.carried = carried
        self.seed = seed
        self.directions: Final[dict[str, CrossbarWay]] = {}
        self.uplinks: Final[dict[str, Uplink]] = {}
        """By the direction in which a NIC sends."""
        self._texts = texts_of(carried, files)
        self._loop = loop
        self._crossbars = crossbars
        self._sockets: dict[str, PacketSocket] = {}
        try:
            for name, device in zip(DIRECTIONS, (carried.a, carried.b), strict=True):
                if device:
                    self._sockets[name] = PacketSocket(device, arena, BUFFER)
        except BaseException:
            self.close()
            raise
        for name, other in (DIRECTIONS, DIRECTIONS[::-1]):
            treated: Treated = getattr(carried, name)
            self.directions[name] = self._direct(name, self._sockets.get(other), treated, seed, fields, files, log)
        for name, socket in self._sockets.items():
            self.uplinks[name] = Uplink(loop, crossbars, self.directions[name], socket)

    def _direct(
        self,
        name: Literal["forward", "backward"],
        out: PacketSocket | None,
        treated: Treated,
        seed: int,
        fields: Fields,
        files: Mapping[str, str],
        log: Callable[[Record], object] | None,
    ) -> CrossbarWay:
        rules, now = RuleSet(fields), self._loop.now()
        model = Channel(
            self.carried.name,
            name,
            treated.impairment,
            seed=seed,
            now=now,
            settings=self._crossbars.settings,
            rules=rules,
            files=files,
            log=log,
        )
        model.is_cut = self.carried.is_cut
        self._crossbars.lead(model, *self._plugs(name))
        return CrossbarWay(self._crossbars, model, InjectedRules(now, model, rules, treated), out)

    def _plugs(self, direction: str) -> tuple[Plug | None, Plug | None]:
        """Where a direction begins, and where it ends."""
        a, b = self.carried.plugs
        return (a, b) if direction == "forward" else (b, a)

    def change(self, carried: Carried, files: Mapping[str, str]) -> None:
        """As `LinkCarriage`'s."""
        texts = texts_of(carried, files)
        if (carried, texts) == (self.carried, self._texts):
            return
        self.catch_up()
        now = self._loop.now()
        for name, way in self.directions.items():
            before: Treated = getattr(self.carried, name)
            after: Treated = getattr(carried, name)
            if (after.impairment, texts[name]) != (before.impairment, self._texts[name]):
                way.model.change(now, after.impairment, files)
            way.injected.set(now, after.rules)
            way.model.is_cut = carried.is_cut
        self._crossbars.settle()
        self.carried, self._texts = carried, texts

    def catch_up(self) -> None:
        """Treat all that has come until now."""
        for uplink in self.uplinks.values():
            uplink.catch_up(self._loop.now())

    def release(self) -> int:
        """Carry the link no more; no frame is delivered early. The sockets are left to be closed."""
        for uplink in self.uplinks.values():
            uplink.close()
        for name, way in self.directions.items():
            self._crossbars.leave(way.model, self._plugs(name)[0])
        return 0

    def close(self) -> None:
        for socket in self._sockets.values():
            socket.close()

    def still_there(self) -> bool:
        """Whether its free ends are the interfaces that it was opened on."""
        return sum(socket.still_there() for socket in self._sockets.values()) == len(self._sockets)

    def sockets(self) -> dict[str, PacketSocket]:
        """By the direction whose frames come in on them."""
        return self._sockets

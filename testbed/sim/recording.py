"""What a simulation writes down: frames as pcapng, fates and a trace as JSON Lines, and the parts that are watched.

A simulation that records is built of watched directions and NICs, another one of plain ones: what is not written costs
nothing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from protocols.core.firmware import Agent
from testbed.sim.myrinet import MyrinetWay, Wormholes
from testbed.sim.nic import SimNic
from testbed.sim.priced import PricedNic
from testbed.sim.way import DirectionName, Receive, Shared, Way
from testbed.spec.layout import End, Layout, Link
from testbed.wire import pcapng
from testbed.wire.fates import Record
from testbed.wire.flows import Known
from testbed.wire.myrinet.switch import NO_CABLE, NO_PORT, SWALLOWED, TRUNCATED, USED_UP
from testbed.wire.myrinet.switch import Switch as Crossbar

CAPTURE: Final = "capture.pcapng"
FATES: Final = "fates.jsonl"
TRACE: Final = "trace.jsonl"

_CUT: Final = "the cable is out"
_OF_SWITCHES: Final = {
    USED_UP: "the route is used up",
    NO_PORT: "the route leads to a port that does not exist",
    NO_CABLE: "the route leads to a port without a cable",
    TRUNCATED: "truncated, blocked for too long",
    SWALLOWED: "swallowed, blocked for too long",
}

_PIECES: Final = 3_000
"""Pieces of a file that wait to be written together."""


class Recording:
    """The files of one run, in its folder; what they had said before is gone.

    Captured is what goes out of a NIC and what comes in, and any frame that meets a fate, where it meets it. trace: time
    in nanoseconds, node, what.
    """

    def __init__(self, folder: Path, nics: list[End], layout: Layout) -> None:
        """nics: what is captured, as interfaces in this order; others follow when something happens there."""
        folder.mkdir(parents=True, exist_ok=True)
        self._capture = (folder / CAPTURE).open("wb")
        self._fates = (folder / FATES).open("w", encoding="utf-8")
        self._trace = (folder / TRACE).open("w", encoding="utf-8")
        self._captured = [pcapng.section_header("testbed sim")]  # not written yet
        self._told: list[str] = []
        self._interfaces: dict[End, int] = {}
        self._links = {end: link.name for link in layout.links for end in (link.a, link.b)}
        self._macs = layout.macs()
        self.nics: Final = frozenset(nics)
        self.met: Final[list[str]] = []
        """What has happened to the frame that is entering a direction."""
        for nic in nics:
            self.interface(nic)

    def close(self) -> None:
        self._write()
        for file in (self._capture, self._fates, self._trace):
            file.close()

    def way(self, link: Link, direction: DirectionName, shared: Shared) -> WatchedWay:
        """A direction that is watched."""
        return WatchedWay(link, direction, shared, self)

    def channel(self, link: Link, direction: DirectionName, shared: Shared, wormholes: Wormholes) -> WatchedMyrinetWay:
        """The same, of a Myrinet network."""
        return WatchedMyrinetWay(link, direction, shared, wormholes, self)

    def drop(self, now: int, switch: Crossbar, port: int, cause: str, frame: bytes) -> None:
        """A Myrinet switch does not send on what has come by that port, or not whole."""
        why = _OF_SWITCHES[cause]
        self.capture(self.interface(End(switch.name, str(port))), now, frame, "inbound", why)
        self.say(now, switch.name, "truncates a frame" if cause == TRUNCATED else "loses a frame", port=port, why=why)

    def arriving(self, end: End, receive: Receive) -> Receive:
        """What captures the frames that come there and lets them go on, if it is a NIC."""
        if end not in self.nics:
            return receive
        number, capture = self.interface(end), self.capture

        def arrive(now: int, frame: bytes) -> None:
            capture(number, now, frame, "inbound")
            receive(now, frame)

        return arrive

    def tell_of_loss(self, now: int, source: End, link: str, why: str) -> None:
        """A frame that enters a link there was lost for another reason than a fate."""
        self.met.append(why)
        self.say(now, source.owner, "loses a frame", link=link, why=why)

    def entered(self, now: int, source: End, number: int, frame: bytes) -> None:
        """A frame has entered a link there, and met what it has. number: of the interface, -1 for none."""
        if self.met:
            self.capture(self.interface(source), now, frame, "outbound", "; ".join(self.met))
            self.met.clear()
        elif number >= 0:
            self.capture(number, now, frame, "outbound")

    def interface(self, end: End) -> int:
        """Its number; it has one from now on."""
        number = self._interfaces.get(end)
        if number is None:
            number = self._interfaces[end] = len(self._interfaces)
            self._captured.append(pcapng.interface(str(end), self._links.get(end, ""), self._macs.get(end, "")))
        return number

    def fate(self, record: Record) -> None:
        """For a direction's log."""
        self._fates.write(record.to_line() + "\n")
        self.met.append(record.in_words())

    def capture(self, number: int, now: int, frame: bytes, bound: pcapng.Bound, comment: str = "") -> None:
        """A frame on the interface of that number."""
        before, after = pcapng.around(number, now, len(frame), bound, comment)
        captured = self._captured
        captured += (before, frame, after)
        if len(captured) > _PIECES:
            self._write()

    def say(self, now: int, node: str, what: str, **more: int | str) -> None:
        """A line of the trace."""
        self.tell(json.dumps({"time": now, "node": node, "what": what, **more}, ensure_ascii=False) + "\n")

    def tell(self, line: str) -> None:
        """The same, in JSON and with its end already."""
        told = self._told
        told.append(line)
        if len(told) > _PIECES:
            self._write()

    def _write(self) -> None:
        self._capture.write(b"".join(self._captured))
        self._trace.write("".join(self._told))
        self._captured.clear()
        self._told.clear()


class WatchedWay(Way):
    """A direction whose frames are recorded: where they enter, and where they come to a NIC."""

    __slots__ = ("_interface", "_recording")

    def __init__(self, link: Link, direction: DirectionName, shared: Shared, recording: Recording) -> None:
        super().__init__(link, direction, shared)
        self._recording = recording
        self._interface = recording.interface(self.source) if self.source in recording.nics else -1

    def admit(self, now: int, frame: bytes, known: Known | None) -> Way | None:
        recording, counters = self._recording, self._counters
        lost, full = self.lost, counters.queue
        way = super().admit(now, frame, known)
        if self.lost > lost:
            recording.tell_of_loss(now, self.source, self.link, _CUT)
        elif counters.queue > full:
            recording.tell_of_loss(now, self.source, self.link, "queue full")
        recording.entered(now, self.source, self._interface, frame)
        return way

    def lead_to(self, receive: Receive) -> None:
        super().lead_to(self._recording.arriving(self.end, receive))


class WatchedMyrinetWay(MyrinetWay):
    """The same of a Myrinet network, where a frame enters when the direction is free."""

    __slots__ = ("_interface", "_recording")

    def __init__(
        self, link: Link, direction: DirectionName, shared: Shared, wormholes: Wormholes, recording: Recording
    ) -> None:
        super().__init__(link, direction, shared, wormholes)
        self._recording = recording
        self._interface = recording.interface(self.source) if self.source in recording.nics else -1

    def take(self, now: int, frame: bytes) -> bytes | None:
        recording, lost = self._recording, self.lost
        accepted = super().take(now, frame)
        if self.lost > lost:
            recording.tell_of_loss(now, self.source, self.link, _CUT)
        recording.entered(now, self.source, self._interface, frame)
        return accepted

    def lead_to(self, receive: Receive) -> None:
        super().lead_to(self._recording.arriving(self.end, receive))


class WatchedNic(SimNic):
    """A NIC whose dealings with its host are recorded, from `tell` on."""

    def tell(self, recording: Recording, name: str) -> None:
        """Record there, under the node's name."""
        self._name = name
        self._recording = recording
        self._line = recording.tell
        # What stands in a line of the trace between the time and a descriptor.
        node = f', "node": {json.dumps(name, ensure_ascii=False)}, "what": '
        self._posts, self._takes, self._gives_back, self._sees = [
            f'{node}"{what}", "descriptor": ' for what in ("posts", "takes", "gives back", "sees")
        ]

    def begin(self, now: int, agent: Agent) -> None:
        self._recording.say(now, self._name, "begins")
        super().begin(now, agent)

    def end(self, now: int) -> None:
        self._recording.say(now, self._name, "ends")
        super().end(now)

    def receive(self, now: int, frame: bytes) -> None:
        dropped = self.dropped
        super().receive(now, frame)
        if self.dropped > dropped:
            self._recording.say(now, self._name, "loses a frame", why="receive ring full")

    def receive_what_fits(self, now: int, frame: bytes) -> None:
        oversized = self.oversized
        super().receive_what_fits(now, frame)
        if self.oversized > oversized:
            self._recording.say(now, self._name, "loses a frame", why="longer than the NIC takes")

    def doorbell(self, index: int, written: int, translated: int) -> None:
        self._line(f'{{"time": {self._loop.now()}{self._posts}{index}}}\n')
        super().doorbell(index, written, translated)

    def _ring(self, now: int, index: int) -> None:
        self._line(f'{{"time": {now}{self._takes}{index}}}\n')
        super()._ring(now, index)

    def show(self, index: int) -> None:
        self._line(f'{{"time": {self._now}{self._gives_back}{index}}}\n')
        super().show(index)

    def interrupt(self, index: int) -> None:
        self._line(f'{{"time": {self._now}{self._gives_back}{index}}}\n')
        super().interrupt(index)

    def _complete(self, now: int) -> None:
        self._line(f'{{"time": {now}{self._sees}{self._shown[0]}}}\n')
        super()._complete(now)


class WatchedPricedNic(WatchedNic, PricedNic):
    """One with a profile."""

"""What a simulation writes down: frames as pcapng, fates and a trace as JSON Lines, and the parts that are watched.

A simulation that records is built of watched directions and NICs, another one of plain ones: what is not written costs
nothing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from protocols.core.firmware import Agent
from testbed.engine.loop import Loop
from testbed.engine.server import Server
from testbed.sim import pcapng
from testbed.sim.nic import SimNic
from testbed.sim.profile import Profile
from testbed.sim.way import DirectionName, Receive, Shared, Way
from testbed.spec.layout import End, Link
from testbed.wire.fates import Fate, Record

CAPTURE: Final = "capture.pcapng"
FATES: Final = "fates.jsonl"
TRACE: Final = "trace.jsonl"

_BUFFER: Final = 1 << 18


class Recording:
    """The files of one run, in its folder; what they had said before is gone.

    Captured is what goes out of a NIC and what comes in, and any frame that meets a fate, where it meets it. trace: time
    in nanoseconds, node, what.
    """

    def __init__(self, folder: Path, nics: list[End]) -> None:
        """nics: what is captured, as interfaces in this order; others follow when something happens there."""
        folder.mkdir(parents=True, exist_ok=True)
        self._capture = (folder / CAPTURE).open("wb", buffering=_BUFFER)
        self._fates = (folder / FATES).open("w", buffering=_BUFFER)
        self._trace = (folder / TRACE).open("w", buffering=_BUFFER)
        self._interfaces: dict[End, int] = {}
        self.nics: Final = frozenset(nics)
        self._met: list[str] = []  # what has happened to the frame that is being offered
        self._capture.write(pcapng.section_header("testbed sim"))
        for nic in nics:
            self._interface(nic)

    def close(self) -> None:
        for file in (self._capture, self._fates, self._trace):
            file.close()

    def way(self, link: Link, direction: DirectionName, shared: Shared) -> WatchedWay:
        """A direction that is watched."""
        return WatchedWay(link, direction, shared, self)

    def fate(self, record: Record) -> None:
        """For a direction's log."""
        self._fates.write(record.to_line() + "\n")
        self._met.append(f"{record.cause}: {_phrase(record.fate)}" + (f" ({record.detail})" if record.detail else ""))

    def offered(self, now: int, way: Way, frame: bytes, lost: str) -> None:
        """A frame has entered a direction. lost: why it was lost for another reason than a fate, or empty."""
        met = self._met
        if lost:
            met.append(lost)
            self.say(now, way.source.owner, "loses a frame", link=way.link, why=lost)
        if met or way.source in self.nics:
            number = self._interface(way.source)
            self._capture.write(pcapng.packet(number, now, frame, "outbound", "; ".join(met)))
            met.clear()

    def arrived(self, now: int, nic: End, frame: bytes) -> None:
        """A frame has come to a NIC."""
        self._capture.write(pcapng.packet(self._interfaces[nic], now, frame, "inbound"))

    def say(self, now: int, node: str, what: str, **more: int | str) -> None:
        """A line of the trace."""
        self._trace.write(json.dumps({"time": now, "node": node, "what": what, **more}, ensure_ascii=False) + "\n")

    def _interface(self, end: End) -> int:
        number = self._interfaces.get(end)
        if number is None:
            number = self._interfaces[end] = len(self._interfaces)
            self._capture.write(pcapng.interface(str(end)))
        return number


class WatchedWay(Way):
    """A direction whose frames are recorded: where they enter, and where they come to a NIC."""

    __slots__ = ("_recording",)

    def __init__(self, link: Link, direction: DirectionName, shared: Shared, recording: Recording) -> None:
        super().__init__(link, direction, shared)
        self._recording = recording

    def enter(self, now: int, frame: bytes) -> None:
        lost, full = self.lost, self.counters.queue
        super().enter(now, frame)
        why = "the cable is out" if self.lost > lost else "queue full" if self.counters.queue > full else ""
        self._recording.offered(now, self, frame, why)

    def lead_to(self, receive: Receive) -> None:
        recording, end = self._recording, self.end
        if end not in recording.nics:
            super().lead_to(receive)
            return

        def arrive(now: int, frame: bytes) -> None:
            recording.arrived(now, end, frame)
            receive(now, frame)

        self.receive = arrive


class WatchedNic(SimNic):
    """A NIC whose dealings with its host are recorded."""

    __slots__ = ("_name", "_recording")

    def __init__(
        self, loop: Loop, name: str, way: Way, core: Server, profile: Profile, mtu: int, recording: Recording
    ) -> None:
        super().__init__(loop, name, way, core, profile, mtu)
        self._name = name
        self._recording = recording

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

    def doorbell(self, index: int, written: int, translated: int) -> None:
        self._recording.say(self._loop.now(), self._name, "posts", descriptor=index)
        super().doorbell(index, written, translated)

    def _ring(self, now: int, index: int) -> None:
        self._recording.say(now, self._name, "takes", descriptor=index)
        super()._ring(now, index)

    def show(self, index: int) -> None:
        self._recording.say(self._now, self._name, "gives back", descriptor=index)
        super().show(index)

    def _complete(self, now: int) -> None:
        self._recording.say(now, self._name, "sees", descriptor=self._shown[0])
        super()._complete(now)


def _phrase(fate: Fate) -> str:
    """What was done to a frame, in words."""
    done = []
    if fate.drop:
        done.append("dropped")
    if fate.delay:
        done.append(f"{fate.delay} ns later")
    if fate.flips:
        done.append(f"{fate.flips} bits flipped" if fate.flips > 1 else "1 bit flipped")
    if fate.duplicate:
        done.append("twice")
    if fate.reorder:
        done.append("out of order")
    return ", ".join(done)

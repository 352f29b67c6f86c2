"""Recorder of a simulation: frames as pcapng, fates and a trace as JSON Lines; wrappers that observe directions and
NICs.

Recording wraps directions and NICs, which do not know of it, so that a run without recording pays nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Concatenate, Final, ParamSpec, TypeVar

from protocols.core.host_work import host_work
from testbed.fabric import pcapng
from testbed.fabric.interface import Receive
from testbed.fates.records import Record
from testbed.nic.immediate import ImmediateNic
from testbed.sim.sim_network import AnyDirection, ChannelDirection
from testbed.spec.layout import End, Layout

CAPTURE: Final = "capture.pcapng"
FATES: Final = "fates.jsonl"
TRACE: Final = "trace.jsonl"

More = ParamSpec("More")
Taken = TypeVar("Taken")

_MAX_BUFFERED: Final = 3_000
"""Number of buffered strings at which a file is written."""


class Recording:
    """The files of one run, in its folder; existing files are overwritten.

    The capture contains the frames that NICs send and receive, and any frame with a fate, at the place where it meets
    it. The trace has time in nanoseconds, node, and event.
    """

    def __init__(self, folder: Path, nics: list[End], layout: Layout) -> None:
        """nics: captured ends, as the first interfaces in this order; others are added when an event occurs there."""
        folder.mkdir(parents=True, exist_ok=True)
        self._capture = (folder / CAPTURE).open("wb")
        self._fates = (folder / FATES).open("w", encoding="utf-8")
        self._trace = (folder / TRACE).open("w", encoding="utf-8")
        self._captured = [pcapng.section_header("testbed sim")]  # not written yet
        self._told: list[str] = []
        self._interfaces: dict[End, int] = {}
        self._links = {end: link.name for link in layout.links for end in (link.a, link.b)}
        self._macs = layout.macs()
        self._nics = frozenset(nics)
        self._met: list[str] = []  # events of the frame that is entering a direction
        for nic in nics:
            self.interface(nic)

    def close(self) -> None:
        self._write()
        for file in (self._capture, self._fates, self._trace):
            file.close()

    def attend(self, link_direction: AnyDirection) -> None:
        """Record frames that enter a direction; on a modelled network, when the network accepts them."""
        if isinstance(link_direction, ChannelDirection):
            link_direction.channel.entrance.take = self._watched(link_direction, link_direction.channel.entrance.take)
        else:
            link_direction.take = self._watched(link_direction, link_direction.take)

    def _watched(
        self, link_direction: AnyDirection, take: Callable[Concatenate[int, bytes, More], Taken]
    ) -> Callable[Concatenate[int, bytes, More], Taken]:
        """Wrap `take` to record each frame together with the fates it meets."""
        source, link = link_direction.source, link_direction.link
        number = self.interface(source) if source in self._nics else -1

        def watched(now: int, frame: bytes, /, *more: More.args, **named: More.kwargs) -> Taken:
            lost, overflowed = link_direction.lost, link_direction.overflowed
            taken = take(now, frame, *more, **named)
            if link_direction.lost > lost:
                self._lose(now, source, link, "the cable is out")
            elif link_direction.overflowed > overflowed:
                self._lose(now, source, link, "queue full")
            if self._met:
                self.capture(self.interface(source), now, frame, "outbound", "; ".join(self._met))
                self._met.clear()
            elif number >= 0:
                self.capture(number, now, frame, "outbound")
            return taken

        return watched

    def drop(self, now: int, switch: str, port: int, does: str, why: str, frame: bytes) -> None:
        """Record that a modelled switch drops or truncates a frame that came in by that port."""
        self.capture(self.interface(End(switch, str(port))), now, frame, "inbound", why)
        self.say(now, switch, does, port=port, why=why)

    def arriving(self, end: End, receive: Receive) -> Receive:
        """Wrap `receive` to capture the frames that arrive at a NIC."""
        number, capture = self.interface(end), self.capture

        def arrive(now: int, frame: bytes) -> None:
            capture(number, now, frame, "inbound")
            receive(now, frame)

        return arrive

    def _lose(self, now: int, source: End, link: str, why: str) -> None:
        """Record a frame that is lost as it enters a link for a reason other than a fate."""
        self._met.append(why)
        self.say(now, source.owner, "loses a frame", link=link, why=why)

    def interface(self, end: End) -> int:
        """The interface number of an end, assigned on first use."""
        number = self._interfaces.get(end)
        if number is None:
            number = self._interfaces[end] = len(self._interfaces)
            self._captured.append(pcapng.interface(str(end), self._links.get(end, ""), self._macs.get(end, "")))
        return number

    def fate(self, record: Record) -> None:
        """Record a fate; serves as a direction's log."""
        self._fates.write(record.to_line() + "\n")
        self._met.append(record.in_words())

    def capture(self, number: int, now: int, frame: bytes, bound: pcapng.Bound, comment: str = "") -> None:
        """Capture a frame on the interface of that number."""
        before, after = pcapng.around(number, now, len(frame), bound, comment)
        captured = self._captured
        captured += (before, frame, after)
        if len(captured) > _MAX_BUFFERED:
            self._write()

    def say(self, now: int, node: str, what: str, **more: int | str) -> None:
        """Append a line to the trace."""
        self.tell(json.dumps({"time": now, "node": node, "what": what, **more}, ensure_ascii=False) + "\n")

    def tell(self, line: str) -> None:
        """Append a line of JSON, including its line end, to the trace."""
        told = self._told
        told.append(line)
        if len(told) > _MAX_BUFFERED:
            self._write()

    def _write(self) -> None:
        self._capture.write(b"".join(self._captured))
        self._trace.write("".join(self._told))
        self._captured.clear()
        self._told.clear()


class NicWatcher:
    """Records what a NIC, its firmware and its host exchange; stands before the NIC for both of them.

    Implements `protocols.core.firmware.Nic` by that NIC, whose own stages it wraps.
    """

    def __init__(self, nic: ImmediateNic, recording: Recording, name: str) -> None:
        """name: the node's."""
        self._nic = nic
        self._recording = recording
        self._name = name
        # The parts of a trace line between the time and a descriptor.
        node = f', "node": {json.dumps(name, ensure_ascii=False)}, "what": '
        self._posts, takes, self._gives_back, sees = [
            f'{node}"{what}", "descriptor": ' for what in ("posts", "takes", "gives back", "sees")
        ]
        self.dma_read, self.dma_write, self.send, self.when_sent, self.send_later = (
            nic.dma_read,
            nic.dma_write,
            nic.send,
            nic.when_sent,
            nic.send_later,
        )
        self._work = work = host_work(nic)
        self.spend, self.offload, self.read_frames, self.bind = work.spend, work.offload, work.read_frames, work.bind
        self.caught_up = work.caught_up
        ring, see, tell, now = nic.on_doorbell, nic.see, recording.tell, nic.now

        def watched_ring(now: int, index: int) -> None:
            tell(f'{{"time": {now}{takes}{index}}}\n')
            ring(now, index)

        def watched_see(index: int) -> None:
            tell(f'{{"time": {now()}{sees}{index}}}\n')
            see(index)

        nic.on_doorbell, nic.see = watched_ring, watched_see

    # Implements `protocols.core.host_work.HostWork`, too.

    @property
    def core(self) -> int:
        return self._work.core

    @property
    def writer(self) -> int:
        return self._work.writer

    @property
    def reached(self) -> int:
        return self._work.reached

    def receive_by(self, receive: Receive) -> Receive:
        """Wrap the NIC's `receive` to record the frames that it drops."""
        nic = self._nic

        def watched(now: int, frame: bytes) -> None:
            dropped, oversized = nic.dropped, nic.oversized
            receive(now, frame)
            if nic.dropped > dropped:
                self._recording.say(now, self._name, "loses a frame", why="receive ring full")
            elif nic.oversized > oversized:
                self._recording.say(now, self._name, "loses a frame", why="longer than the NIC takes")

        return watched

    def ring_doorbell(self, index: int, written: int, translated: int) -> None:
        self._recording.tell(f'{{"time": {self._nic.now()}{self._posts}{index}}}\n')
        self._nic.ring_doorbell(index, written, translated)

    def post_completion(self, index: int) -> None:
        self._give_back(index)
        self._nic.post_completion(index)

    def interrupt(self, index: int) -> None:
        self._give_back(index)
        self._nic.interrupt(index)

    def _give_back(self, index: int) -> None:
        self._recording.tell(f'{{"time": {self._nic.handled_at}{self._gives_back}{index}}}\n')

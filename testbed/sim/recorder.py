"""Recording of a simulation: frames as pcapng, fates and a trace as JSON Lines.

The recorder observes directions and wraps NICs from the outside, so that a run without recording has no extra cost.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from protocols.core.firmware import Buffer
from protocols.core.host_work import host_work
from testbed.fabric import pcapng
from testbed.fabric.interface import Receive
from testbed.fates.records import Record
from testbed.nic.immediate import ImmediateNic
from testbed.sim.sim_direction import SimDirection
from testbed.spec.layout import End, Layout

CAPTURE: Final = "capture.pcapng"
FATES: Final = "fates.jsonl"
TRACE: Final = "trace.jsonl"

_encode: Final = json.JSONEncoder(ensure_ascii=False).encode

_MAX_BUFFERED: Final = 3_000
"""Number of buffered strings at which a file is written."""


class Recording:
    """The files of one run, in its folder; existing files are overwritten.

    The capture contains the frames that NICs send and receive, and every frame with a fate, at the end where it enters the
    link. A line of the trace has the time in nanoseconds, the node, and the event.
    """

    def __init__(self, folder: Path, nics: list[End], layout: Layout) -> None:
        """nics: the ends of links at NICs, the first interfaces of the capture in this order; other ends are added at their
        first event."""
        folder.mkdir(parents=True, exist_ok=True)
        self._capture = (folder / CAPTURE).open("wb")
        self._fates = (folder / FATES).open("w", encoding="utf-8")
        self._trace = (folder / TRACE).open("w", encoding="utf-8")
        self._captured = [pcapng.section_header("testbed sim")]  # not written yet
        self._trace_lines: list[str] = []
        self._interfaces: dict[End, int] = {}
        self._links = {end: link.name for link in layout.links for end in (link.a, link.b)}
        self._macs = layout.macs()
        self._nics = frozenset(nics)
        self._frame_events: list[str] = []  # events of the frame that is entering a direction
        for nic in nics:
            self.interface_number(nic)

    def close(self) -> None:
        self._write()
        for file in (self._capture, self._fates, self._trace):
            file.close()

    def record_direction(self, link_direction: SimDirection) -> None:
        """Record frames that enter a direction, when its network accepts them, together with their fates."""
        source, link = link_direction.source, link_direction.link
        number = (
            self.interface_number(source) if source in self._nics else -1
        )  # -1: only frames with an event are captured
        lost = overflowed = 0

        def record(now: int, frame: bytes) -> None:
            nonlocal lost, overflowed
            if link_direction.lost > lost:
                lost = link_direction.lost
                self._record_loss(now, source, link, "the cable is out")
            elif link_direction.overflowed > overflowed:
                overflowed = link_direction.overflowed
                self._record_loss(now, source, link, "queue full")
            if self._frame_events:
                self.capture(self.interface_number(source), now, frame, "outbound", "; ".join(self._frame_events))
                self._frame_events.clear()
            elif number >= 0:
                self.capture(number, now, frame, "outbound")

        link_direction.channel.entrance.observe(record)

    def record_drop(self, now: int, switch: str, port: int, action: str, reason: str, frame: bytes) -> None:
        """Record that a modelled switch drops or truncates a frame from an input port. action: the event of the trace."""
        self.capture(self.interface_number(End(switch, str(port))), now, frame, "inbound", reason)
        self.trace(now, switch, action, port=port, why=reason)

    def capture_arrivals(self, end: End, receive: Receive) -> Receive:
        """Wrap `receive` to capture the frames that arrive at a NIC."""
        number, capture = self.interface_number(end), self.capture

        def capture_and_receive(now: int, frame: bytes) -> None:
            capture(number, now, frame, "inbound")
            receive(now, frame)

        return capture_and_receive

    def _record_loss(self, now: int, source: End, link: str, reason: str) -> None:
        """Record a frame that is lost as it enters a link for a reason other than a fate."""
        self._frame_events.append(reason)
        self.trace(now, source.owner, "loses a frame", link=link, why=reason)

    def interface_number(self, end: End) -> int:
        """Return the number of an end's interface in the capture; it is assigned on first use."""
        number = self._interfaces.get(end)
        if number is None:
            number = self._interfaces[end] = len(self._interfaces)
            self._captured.append(pcapng.interface(str(end), self._links.get(end, ""), self._macs.get(end, "")))
        return number

    def record_fate(self, record: Record) -> None:
        """Record a fate. The frame, which its direction reports next, is captured with it."""
        self._fates.write(record.to_line() + "\n")
        self._frame_events.append(record.describe())

    def capture(self, number: int, now: int, frame: bytes, bound: pcapng.Bound, comment: str = "") -> None:
        """Capture a frame. number: number of the interface. bound: direction of the frame at the interface."""
        before, after = pcapng.enclose(number, now, len(frame), bound, comment)
        captured = self._captured
        captured += (before, frame, after)
        if len(captured) > _MAX_BUFFERED:
            self._write()

    def trace(self, now: int, node: str, event: str, **details: int | str) -> None:
        """Append a line to the trace."""
        trace_lines = self._trace_lines
        trace_lines.append(_encode({"time": now, "node": node, "what": event, **details}) + "\n")
        if len(trace_lines) > _MAX_BUFFERED:
            self._write()

    def _write(self) -> None:
        self._capture.write(b"".join(self._captured))
        self._trace.write("".join(self._trace_lines))
        self._captured.clear()
        self._trace_lines.clear()


class NicWatcher:
    """Proxy of a NIC that records the descriptors that the NIC, its firmware and its host exchange.

    It implements `protocols.core.firmware.Nic` and `protocols.core.host_work.HostWork` for firmware and host, and wraps the
    NIC's doorbell and completion functions.
    """

    def __init__(self, nic: ImmediateNic, recording: Recording, name: str) -> None:
        """name: the node's name."""
        self._nic = nic
        self._recording = recording
        self._name = name
        self.dma_read, self.dma_write, self.send, self.when_sent, self.send_later = (
            nic.dma_read,
            nic.dma_write,
            nic.send,
            nic.when_sent,
            nic.send_later,
        )
        self._work = work = host_work(nic)
        self.spend, self.offload, self.read_frames, self.bind = work.spend, work.offload, work.read_frames, work.bind
        self.caught_up, self.receiving_core = work.caught_up, work.receiving_core
        on_doorbell, deliver = nic.on_doorbell, nic.deliver_completion

        def traced_doorbell(now: int, index: int) -> None:
            recording.trace(now, name, "takes", descriptor=index)
            on_doorbell(now, index)

        def traced_completion(index: int) -> None:
            recording.trace(nic.now(), name, "sees", descriptor=index)
            deliver(index)

        nic.on_doorbell, nic.deliver_completion = traced_doorbell, traced_completion

    @property
    def core(self) -> int:
        return self._work.core

    @property
    def writer(self) -> int:
        return self._work.writer

    @property
    def reached(self) -> int:
        return self._work.reached

    def record_dropped(self, receive: Receive) -> Receive:
        """Wrap the NIC's `receive` to record the frames that it drops."""
        nic = self._nic

        def receive_and_record(now: int, frame: bytes) -> None:
            dropped, oversized = nic.dropped, nic.oversized
            receive(now, frame)
            if nic.dropped > dropped:
                self._recording.trace(now, self._name, "loses a frame", why="receive ring full")
            elif nic.oversized > oversized:
                self._recording.trace(now, self._name, "loses a frame", why="longer than the NIC takes")

        return receive_and_record

    def ring_doorbell(self, index: int, written: int, translated: int) -> None:
        self._recording.trace(self._nic.now(), self._name, "posts", descriptor=index)
        self._nic.ring_doorbell(index, written, translated)

    def post_completion(self, index: int) -> None:
        self._trace_return(index)
        self._nic.post_completion(index)

    def interrupt(self, index: int) -> None:
        self._trace_return(index)
        self._nic.interrupt(index)

    def post_to(self, function: object, target: memoryview, data: Buffer, index: int) -> None:
        assert isinstance(function, NicWatcher)
        self._recording.trace(self._nic.handled_at, function._name, "gives back", descriptor=index)
        self._nic.post_to(function._nic, target, data, index)

    def _trace_return(self, index: int) -> None:
        self._recording.trace(self._nic.handled_at, self._name, "gives back", descriptor=index)

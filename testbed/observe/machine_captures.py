"""Captures of a cluster that is spread over machines: one file, with times of the controller's clock.

Each machine's worker captures its part. Both ends of a direction of a link between machines are captured at the receiving
machine, which applies the link's impairments. So a frame enters such a link in the capture when it has left the underlay.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from testbed.cluster.faults.injections import DirectionName, links_of
from testbed.cluster.records.ownership import temporary_directory
from testbed.cluster.records.state import Store
from testbed.errors import TestbedError, UnsupportedError, errors_naming, reason_of
from testbed.fabric import pcapng
from testbed.machines.remote_workers import WorkerLostError
from testbed.machines.spread import Workers, clock_of
from testbed.machines.spread_faults import incoming_directions, spread_state
from testbed.observe.decoding.capture_reader import CaptureReader, Frame, Interface
from testbed.spec.layout import Layout
from testbed.spec.selection import SELECTOR

if TYPE_CHECKING:
    from testbed.observe.sniff.capture import Capture


@dataclass(frozen=True, slots=True)
class _OpenCapture:
    """A running capture. running: its `close` ends the capture. files: its `close` removes the capture's file."""

    capture: Capture
    running: ExitStack
    files: ExitStack


class OpenCaptures:
    """Running captures in a machine's worker, by number. A context manager that ends them on exit."""

    def __init__(self) -> None:
        self._open: dict[int, _OpenCapture] = {}
        self._numbers = itertools.count(1)

    def __enter__(self) -> OpenCaptures:
        return self

    def __exit__(self, *_: object) -> None:
        for opened in self._open.values():
            with opened.files, contextlib.suppress(TestbedError):  # the capture is discarded: its errors do not matter
                opened.running.close()

    def begin(self, name: str, target: str) -> int:
        """Begin a capture of a cluster's part; return its number. Every frame that passes after the return is captured.
        name: of the cluster. target: see `capturing`."""
        from testbed.observe.sniff.capture import Capture

        with ExitStack() as files:
            capture = Capture(
                Store(), name, target, files.enter_context(temporary_directory("capture")) / "part.pcapng"
            )
            running = ExitStack()
            running.enter_context(capture)
            number = next(self._numbers)
            self._open[number] = _OpenCapture(capture, running, files.pop_all())
        return number

    def end(self, number: int) -> object:
        """End a capture; return its file in base64, its result, and whether it is complete."""
        opened = self._open.pop(number)
        with opened.files:
            opened.running.close()
            data, result = opened.capture.path.read_bytes(), opened.capture.result
        return {"file": base64.b64encode(data).decode(), "result": asdict(result), "complete": result.complete}


@dataclass(slots=True)
class SpreadCapture:
    """Result of a capture, valid after its end. frames: number of frames, by end of a link. lost: errors of machines that
    were lost with their frames, by machine. complete: whether all machines captured every frame with its fate."""

    path: Path
    frames: dict[str, int] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    complete: bool = False


@contextmanager
def capturing(running: Workers, name: str, target: str, path: Path) -> Iterator[SpreadCapture]:
    """Context manager: capture the frames of the target's links on all machines into one pcapng file.

    target: a link, a node or switch (all its links), or "all". The frames of a machine that is lost before the end are
    missing in the file. Raises NotFoundError, UnsupportedError for a tag, TestbedError if the file cannot be written.
    """
    if target.startswith(SELECTOR):
        raise UnsupportedError(
            f"{target}: the target of a capture on several machines must be a link, a node, a switch, or all"
        )
    state = spread_state(running, name)
    links = {link.name for link in links_of(state.layout, target)}
    workers = {
        machine: state.workers[machine]
        for machine, part in state.parts.items()
        if links & {link.name for link in part.links}
    }
    clock_offsets = {machine: clock_of(worker, "wall_clock", time.time_ns).ahead for machine, worker in workers.items()}
    numbers: dict[str, int] = {}
    result = SpreadCapture(path)
    replies: dict[str, Mapping[str, Any]] = {}
    try:
        for machine, worker in workers.items():
            numbers[machine] = worker.call("capture", name=name, target=target)
        yield result
    finally:
        for machine, number in numbers.items():
            try:
                replies[machine] = workers[machine].call("captured", None, number=number)
            except WorkerLostError as error:
                result.lost[machine] = str(error)
    frames: list[Frame] = []
    for machine, reply in replies.items():
        for frame in _incoming_frames(state.parts[machine], base64.b64decode(reply["file"]), machine):
            frame.when += clock_offsets[machine]
            frames.append(frame)
    frames.sort(key=lambda frame: frame.when)
    try:
        with errors_naming(path):
            path.write_bytes(_pcapng_file(frames))
    except OSError as error:
        raise TestbedError(f"the capture cannot be written: {reason_of(error)}") from error
    for frame in frames:
        result.frames[frame.interface.name] = result.frames.get(frame.interface.name, 0) + 1
    result.complete = not result.lost and all(reply["complete"] for reply in replies.values())


def _incoming_frames(part: Layout, data: bytes, machine: str) -> Iterator[Frame]:
    """Yield the frames of the directions that arrive at a machine."""
    reader, incoming = CaptureReader(f"the capture of machine {machine}"), incoming_directions(part)
    for frame in reader.feed(data):
        direction = cast(DirectionName, frame.interface.direction_of(frame.bound))
        if (frame.interface.link, direction) in incoming:
            yield frame
    reader.end()


def _pcapng_file(frames: list[Frame]) -> bytes:
    """Return a pcapng file of these frames, with an interface for each end of a link."""
    numbers: dict[tuple[str, str], int] = {}
    interfaces: list[bytes] = []
    packets: list[bytes] = []
    for frame in frames:
        key = frame.interface.name, frame.interface.link
        if key not in numbers:
            numbers[key] = len(numbers)
            interfaces.append(_interface(frame.interface))
        bound = cast(pcapng.Bound, frame.bound)
        packets.append(pcapng.packet(numbers[key], frame.when, frame.raw, bound, frame.comment))
    return b"".join([pcapng.section_header("testbed machines capture"), *interfaces, *packets])


def _interface(interface: Interface) -> bytes:
    return pcapng.interface(interface.name, interface.link, interface.mac)

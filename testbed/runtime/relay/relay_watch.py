"""Watches of a relay: report frames with a fate to other processes as they occur.

A watch is a named pipe in the cluster's directory. The relay's processes look for pipes when told to watch and whenever
orders are loaded, so that a process that is started later reports from its first frame. A frame is identified by the
kernel's receive timestamp, which is the same for all packet sockets, and by its content. A watch never delays the
relay: reports that do not fit in the pipe are dropped, and their number is reported. It ends with its reader, however
that dies. Without watches, the relay does no additional work per frame.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from zlib import crc32

from testbed.engine.loop import Loop
from testbed.errors import KernelError
from testbed.fates.fate_counters import Outcome
from testbed.fates.records import Record
from testbed.runtime.calls import NotListeningError, call
from testbed.runtime.relay.orders import DIRECTIONS, RelayPaths
from testbed.runtime.relay.relay import AnyLink, LinkForwarder
from testbed.runtime.relay.relay_network import ModelledLink

QUEUE_FULL: Final = "queue full"
"""Cause reported for a frame dropped because a direction's queue was full, which is a loss but not a fate."""

_NAME: Final = "watch."
_ROOM: Final = 1 << 20  # bytes: what an ordinary user's pipe may hold
_LONGEST: Final = 500  # characters of a frame's fate: a write of at most 4,096 bytes to a pipe is atomic
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class FrameFates:
    """A frame and its fates. stamp: time at which it arrived at the direction's free end, wall clock, nanoseconds. check:
    CRC-32 of the frame. causes: see `fates.records`, or `QUEUE_FULL`. words: a description for people."""

    link: str
    direction: str
    stamp: int
    check: int
    causes: tuple[str, ...]
    words: str


class Watch:
    """The reader of a watch, which covers all links that the relay carries."""

    def __init__(self, directory: Path) -> None:
        """directory: the cluster's."""
        self.untold = 0
        """Number of frames with a fate whose report did not fit in the pipe."""
        self._places = RelayPaths(directory)
        self._path = directory / f"{_NAME}{os.getpid()}.{next(_numbers)}"
        self._rest = b""
        self._processes: Mapping[str, int] = {}
        self._known = (0, 0)  # of their file
        os.mkfifo(self._path, 0o600)
        try:
            self._pipe = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with contextlib.suppress(PermissionError):  # the user's limit on pipe buffers is reached
                fcntl.fcntl(self._pipe, fcntl.F_SETPIPE_SZ, _ROOM)
        except BaseException:
            os.unlink(self._path)
            raise

    def catch_up(self, links: Sequence[str]) -> None:
        """Wait until reports of all frames received so far can be read; later frames are reported from now on.

        Does nothing if there is no relay, or it does not answer. links: the watched links; for others there is no
        guarantee.
        """
        shares: dict[int, list[str]] = {}
        for link in links:
            shares.setdefault(self._process_of(link), []).append(link)
        for number, share in shares.items():
            with contextlib.suppress(NotListeningError, KernelError):
                call(self._places.socket(number), {"do": "watch", "links": share})

    def _process_of(self, link: str) -> int:
        """The number of the relay process that carries a link."""
        with contextlib.suppress(FileNotFoundError):
            found = os.stat(self._places.orders)
            if (found.st_ino, found.st_mtime_ns) != self._known:
                orders = self._places.read_orders()
                self._known = found.st_ino, found.st_mtime_ns
                self._processes = orders.processes_of() if orders is not None else self._processes
        return self._processes.get(link, 0)

    def read(self) -> list[FrameFates]:
        """Read the reports since the last call."""
        found: list[FrameFates] = []
        while True:
            try:
                data = os.read(self._pipe, _ROOM)
            except BlockingIOError:
                return found
            if not data:  # no writer at the moment
                return found
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                report = json.loads(line)
                if isinstance(report, int):
                    self.untold += report
                else:
                    link, direction, stamp, check, causes, words = report
                    found.append(FrameFates(link, direction, stamp, check, tuple(causes), words))

    def close(self) -> None:
        with contextlib.suppress(FileNotFoundError):  # the cluster has been taken down
            os.unlink(self._path)
        os.close(self._pipe)


class Watchers:
    """The writing side of all watches, in a relay process."""

    def __init__(self, loop: Loop, directory: Path) -> None:
        self._loop = loop
        self._directory = directory
        self._pipes: dict[str, int] = {}  # name -> descriptor
        self._untold: dict[str, int] = {}
        self._watched: list[Callable[[], object]] = []  # each ends the watch of a direction
        self._met: list[Record] = []  # of the frame that is being offered
        self._reported: set[tuple[str, str]] = set()  # directions whose frames are reported

    def note(self, record: Record) -> None:
        """Note a fate; serves as a direction's log."""
        if self._pipes and (record.link, record.direction) in self._reported:
            self._met.append(record)

    def report_links(self, links: Mapping[str, AnyLink]) -> None:
        """Report the frames of these links, which the relay forwards now, to all current watches."""
        for path in self._directory.glob(f"{_NAME}*"):
            if path.name not in self._pipes:
                self._add_pipe(path)
        if not self._pipes:
            return
        self._watched = []
        self._reported.clear()
        for name, link in links.items():
            for direction in DIRECTIONS:
                if isinstance(link, LinkForwarder):
                    self._watch_forwarder(name, direction, link)
                elif direction in link.uplinks:  # in the others no frame has a timestamp: they begin in the model
                    self._watch_uplink(name, direction, link)

    def _watch_forwarder(self, name: str, direction: str, link: LinkForwarder) -> None:
        forwarder, source = link.directions[direction], link.sockets()[direction]
        offer = forwarder.model.offer

        def watched(when: int, frame: bytes) -> Outcome:
            outcome = offer(when, frame)
            if self._met or outcome is Outcome.QUEUE:
                self._report_fates(name, direction, when + source.clock_offset, frame, is_full=outcome is Outcome.QUEUE)
            return outcome

        def restore() -> None:
            forwarder.offer = offer

        forwarder.offer = watched
        self._add(name, direction, restore)

    def _watch_uplink(self, name: str, direction: str, link: ModelledLink) -> None:
        uplink, source = link.uplinks[direction], link.sockets()[direction]
        entrance = link.directions[direction].channel.entrance
        take = entrance.enter

        def watched(now: int, frame: bytes) -> bytes | None:
            accepted = take(now, frame)
            if self._met:
                self._report_fates(name, direction, uplink.stamp + source.clock_offset, frame)
            return accepted

        def restore() -> None:
            entrance.take = take

        entrance.take = watched
        self._add(name, direction, restore)

    def _add(self, name: str, direction: str, restore: Callable[[], object]) -> None:
        self._reported.add((name, direction))
        self._watched.append(restore)

    def _add_pipe(self, path: Path) -> None:
        try:
            pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            with contextlib.suppress(FileNotFoundError):  # its reader was killed
                path.unlink()
            return
        self._pipes[path.name] = pipe
        self._untold[path.name] = 0

        def ended(_now: int) -> None:
            self._remove_pipe(path.name)

        self._loop.watch(pipe, ended)  # only to be notified when the reader closes

    def _remove_pipe(self, name: str) -> None:
        pipe = self._pipes.pop(name)
        self._loop.unwatch(pipe)
        os.close(pipe)
        if not self._pipes:
            for restore in self._watched:
                restore()
            self._watched = []

    def _report_fates(self, link: str, direction: str, stamp: int, frame: bytes, *, is_full: bool = False) -> None:
        """Report the fates of the frame that has just been offered. stamp: wall clock, nanoseconds."""
        causes = [record.cause for record in self._met]
        words = [record.describe() for record in self._met]
        self._met.clear()
        if is_full:
            causes.append(QUEUE_FULL)
            words.append(f"dropped: {QUEUE_FULL}")
        self._write_report([link, direction, stamp, crc32(frame), causes, "; ".join(words)[:_LONGEST]])

    def _write_report(self, report: list[object]) -> None:
        line = json.dumps(report).encode() + b"\n"
        for name, pipe in self._pipes.items():
            untold = self._untold[name]
            try:
                os.write(pipe, b"%d\n" % untold + line if untold else line)
                self._untold[name] = 0
            except BlockingIOError:
                self._untold[name] = untold + 1
            except BrokenPipeError:  # its reader has closed; the loop will be notified
                continue

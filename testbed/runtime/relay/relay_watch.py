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
from testbed.kernel.packet_socket import PacketSocket
from testbed.runtime.calls import NotListeningError, call
from testbed.runtime.relay.orders import DIRECTIONS, RelayPaths
from testbed.runtime.relay.relay import AnyLink, Forwarder, LinkForwarder

QUEUE_FULL: Final = "queue full"
"""Cause reported for a frame dropped because a direction's queue was full, which is a loss but not a fate."""

_NAME: Final = "watch."
_ROOM: Final = 1 << 20  # bytes: what an ordinary user's pipe may hold
_LONGEST: Final = 500  # characters of a frame's fate: a line of at most 4,096 bytes is written whole or not at all
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class FrameFates:
    """A frame and its fates. stamp: when it came in on the direction's free end, wall clock, nanoseconds. check: CRC-32
    of the frame. causes: see `fates.records`, or `QUEUE_FULL`. words: a description for people."""

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
    """The relay's side of all watches."""

    def __init__(self, loop: Loop, directory: Path) -> None:
        self._loop = loop
        self._directory = directory
        self._pipes: dict[str, int] = {}  # name -> descriptor
        self._untold: dict[str, int] = {}
        self._watched: list[Forwarder] = []
        self._met: list[Record] = []  # of the frame that is being offered
        self._reported: set[str] = set()  # links whose frames are reported

    def note(self, record: Record) -> None:
        """Note a fate; serves as a direction's log."""
        if self._pipes and record.link in self._reported:
            self._met.append(record)

    def attend(self, links: Mapping[str, AnyLink]) -> None:
        """Report frames of these links, the ones carried now, to all current watches."""
        for path in self._directory.glob(f"{_NAME}*"):
            if path.name not in self._pipes:
                self._greet(path)
        if not self._pipes:
            return
        self._watched = []
        self._reported.clear()
        for name, link in links.items():
            if not isinstance(link, LinkForwarder):  # frames enter long after their timestamp
                continue
            self._reported.add(name)
            for direction in DIRECTIONS:
                forwarder = link.directions[direction]
                if forwarder.offer == forwarder.model.offer:
                    forwarder.offer = self._watching(name, direction, forwarder, link.sockets()[direction])
                self._watched.append(forwarder)

    def _greet(self, path: Path) -> None:
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
            self._part(path.name)

        self._loop.watch(pipe, ended)  # only to be notified when the reader closes

    def _part(self, name: str) -> None:
        pipe = self._pipes.pop(name)
        self._loop.unwatch(pipe)
        os.close(pipe)
        if not self._pipes:
            for forwarder in self._watched:
                forwarder.offer = forwarder.model.offer
            self._watched = []

    def _watching(
        self, link: str, direction: str, forwarder: Forwarder, source: PacketSocket
    ) -> Callable[[int, bytes], Outcome]:
        """Wrap a direction's offer so that it reports the fates of each frame."""
        offer, met, tell = forwarder.model.offer, self._met, self._tell

        def watched(when: int, frame: bytes) -> Outcome:
            outcome = offer(when, frame)
            if met or outcome is Outcome.QUEUE:
                causes = [record.cause for record in met]
                words = [record.in_words() for record in met]
                met.clear()
                if outcome is Outcome.QUEUE:
                    causes.append(QUEUE_FULL)
                    words.append(f"dropped: {QUEUE_FULL}")
                phrases = "; ".join(words)[:_LONGEST]
                tell([link, direction, when + source.behind, crc32(frame), causes, phrases])
            return outcome

        return watched

    def _tell(self, report: list[object]) -> None:
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

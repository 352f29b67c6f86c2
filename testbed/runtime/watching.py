"""Watching a relay: whoever wants to know which frames meet a fate is told of each while it happens.

A watch is a pipe with a name in the cluster's directory. The processes of the relay look for such names when they are told
to watch and whenever they are given orders, so that one which is started later, or again, tells of its first frame. A
frame is named by the kernel's stamp of when it came, which every packet socket gets alike, and by its content. A watch
never delays the relay: what finds no room in the pipe is counted, and that is told. It ends with its reader, however that
dies. A relay that nobody watches does nothing for it per frame.
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
from testbed.kernel.packets import PacketSocket
from testbed.runtime.calls import NotThereError, call
from testbed.runtime.orders import DIRECTIONS, Places
from testbed.runtime.relay import AnyLink, Carriage, LinkCarriage
from testbed.wire.counters import Outcome
from testbed.wire.fates import Record

QUEUE_FULL: Final = "queue full"
"""Told of a frame for which a direction's queue had no room. That is no fate, but the frame is lost."""

_NAME: Final = "watch."
_ROOM: Final = 1 << 20  # bytes: what an ordinary user's pipe may hold
_LONGEST: Final = 500  # characters of a frame's fate: a line of at most 4,096 bytes is written whole or not at all
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Met:
    """A frame and what it met. stamp: when it came in on the direction's free end, wall clock, nanoseconds. check: CRC-32
    of the frame. causes: see `wire.fates`, or `QUEUE_FULL`. words: what happened, for people."""

    link: str
    direction: str
    stamp: int
    check: int
    causes: tuple[str, ...]
    words: str


class Watch:
    """The reader's side. It watches all links that the relay carries."""

    def __init__(self, directory: Path) -> None:
        """directory: the cluster's."""
        self.untold = 0
        """How many frames with a fate found no room in the pipe."""
        self._places = Places(directory)
        self._path = directory / f"{_NAME}{os.getpid()}.{next(_numbers)}"
        self._rest = b""
        self._processes: Mapping[str, int] = {}
        self._known = (0, 0)  # of their file
        os.mkfifo(self._path, 0o600)
        try:
            self._pipe = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with contextlib.suppress(PermissionError):  # this user's pipes have as much room as they may have
                fcntl.fcntl(self._pipe, fcntl.F_SETPIPE_SZ, _ROOM)
        except BaseException:
            os.unlink(self._path)
            raise

    def catch_up(self, links: Sequence[str]) -> None:
        """When this returns, all that the relay has to tell of frames that have come until now can be read, and frames that
        come from now on are told of. Nothing happens where there is no relay, or it does not answer.

        links: those that are watched; of others nothing is promised.
        """
        shares: dict[int, list[str]] = {}
        for link in links:
            shares.setdefault(self._process_of(link), []).append(link)
        for number, share in shares.items():
            with contextlib.suppress(NotThereError, KernelError):
                call(self._places.socket(number), {"do": "watch", "links": share})

    def _process_of(self, link: str) -> int:
        """Which process of the relay carries it."""
        with contextlib.suppress(FileNotFoundError):
            found = os.stat(self._places.orders)
            if (found.st_ino, found.st_mtime_ns) != self._known:
                orders = self._places.read_orders()
                self._known = found.st_ino, found.st_mtime_ns
                self._processes = orders.processes_of() if orders is not None else self._processes
        return self._processes.get(link, 0)

    def read(self) -> list[Met]:
        """What has been told since the last time."""
        found: list[Met] = []
        while True:
            try:
                data = os.read(self._pipe, _ROOM)
            except BlockingIOError:
                return found
            if not data:  # nobody tells anything at the moment
                return found
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                said = json.loads(line)
                if isinstance(said, int):
                    self.untold += said
                else:
                    link, direction, stamp, check, causes, words = said
                    found.append(Met(link, direction, stamp, check, tuple(causes), words))

    def close(self) -> None:
        with contextlib.suppress(FileNotFoundError):  # the cluster has been taken down
            os.unlink(self._path)
        os.close(self._pipe)


class Watchers:
    """The relay's side: those who watch."""

    def __init__(self, loop: Loop, directory: Path) -> None:
        self._loop = loop
        self._directory = directory
        self._pipes: dict[str, int] = {}  # name -> descriptor
        self._untold: dict[str, int] = {}
        self._watched: list[Carriage] = []
        self._met: list[Record] = []  # of the frame that is being offered
        self._told: set[str] = set()  # links of whose frames something is told

    def note(self, record: Record) -> None:
        """For a direction's log."""
        if self._pipes and record.link in self._told:
            self._met.append(record)

    def attend(self, links: Mapping[str, AnyLink]) -> None:
        """Tell those who watch now of these links' frames: the ones that are carried now."""
        for path in self._directory.glob(f"{_NAME}*"):
            if path.name not in self._pipes:
                self._greet(path)
        if not self._pipes:
            return
        self._watched = []
        self._told.clear()
        for name, link in links.items():
            if not isinstance(link, LinkCarriage):  # a frame enters when the network lets it, long after its stamp
                continue
            self._told.add(name)
            for direction in DIRECTIONS:
                carriage = link.directions[direction]
                if carriage.offer == carriage.model.offer:
                    carriage.offer = self._watching(name, direction, carriage, link.sockets()[direction])
                self._watched.append(carriage)

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

        self._loop.watch(pipe, ended)  # nothing is ever read of it, but the kernel tells when its reader has gone

    def _part(self, name: str) -> None:
        pipe = self._pipes.pop(name)
        self._loop.unwatch(pipe)
        os.close(pipe)
        if not self._pipes:
            for carriage in self._watched:
                carriage.offer = carriage.model.offer
            self._watched = []

    def _watching(
        self, link: str, direction: str, carriage: Carriage, source: PacketSocket
    ) -> Callable[[int, bytes], Outcome]:
        """To offer a frame, and tell of what it meets."""
        offer, met, tell = carriage.model.offer, self._met, self._tell

        def watched(when: int, frame: bytes) -> Outcome:
            outcome = offer(when, frame)
            if met or outcome is Outcome.QUEUE:
                causes = [record.cause for record in met]
                words = [record.in_words() for record in met]
                met.clear()
                if outcome is Outcome.QUEUE:
                    causes.append(QUEUE_FULL)
                    words.append(f"dropped: {QUEUE_FULL}")
                said = "; ".join(words)[:_LONGEST]
                tell([link, direction, when + source.behind, crc32(frame), causes, said])
            return outcome

        return watched

    def _tell(self, said: list[object]) -> None:
        line = json.dumps(said).encode() + b"\n"
        for name, pipe in self._pipes.items():
            untold = self._untold[name]
            try:
                os.write(pipe, b"%d\n" % untold + line if untold else line)
                self._untold[name] = 0
            except BlockingIOError:
                self._untold[name] = untold + 1
            except BrokenPipeError:  # its reader has gone; the loop is about to learn of it
                continue

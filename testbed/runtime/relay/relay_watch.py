"""Watches of a relay: pipes through which it reports each frame whose fate is other than "pass", as it occurs.

A watch is a named pipe in the cluster's directory. The relay's processes look for pipes at the command "watch" and
whenever orders are loaded, so that a relay process that is started later reports from its first frame. A frame is identified
by the kernel's receive timestamp, which is the same for all packet sockets, and by its content. A watch never delays the
relay: reports that do not fit in the pipe are dropped, and their number is reported. A watch ends when its reader closes it
or dies. Without watches, the relay does no additional work per frame.
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
from functools import partial
from pathlib import Path
from typing import Final
from zlib import crc32

from testbed.engine.loop import Loop
from testbed.errors import KernelError
from testbed.fates.fate_counters import Outcome
from testbed.fates.records import Record
from testbed.kernel.filesystem import names_in
from testbed.runtime.calls import NotListeningError, call
from testbed.runtime.relay.link_forwarder import LinkForwarder
from testbed.runtime.relay.orders import DIRECTIONS, RelayPaths
from testbed.runtime.relay.relay import AnyLink
from testbed.runtime.relay.relay_network import ModelledLink

QUEUE_FULL: Final = "queue full"
"""Reported cause of a frame that was dropped because the queue was full; logs of fates do not contain such frames."""

_PREFIX: Final = "watch."
_PIPE_SIZE: Final = 1 << 20  # bytes: the maximum for an unprivileged user
_MAX_TEXT: Final = 500  # characters of a description: a write of at most 4,096 bytes to a pipe is atomic
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class FrameFates:
    """Report of a frame and its fates. link, direction: their names. stamp: receive timestamp at the direction's start, wall
    clock, nanoseconds. crc: CRC-32 of the frame. causes: see `fates.records`, or `QUEUE_FULL`. text: a description for
    users."""

    link: str
    direction: str
    stamp: int
    crc: int
    causes: tuple[str, ...]
    text: str


class Watch:
    """Reader of a watch, which covers all links that the relay forwards."""

    def __init__(self, directory: Path) -> None:
        """directory: the cluster's directory."""
        self.dropped_reports = 0
        """Number of frames whose report did not fit in the pipe."""
        self._paths = RelayPaths(directory)
        self._path = directory / f"{_PREFIX}{os.getpid()}.{next(_numbers)}"
        self._incomplete = b""
        self._processes: Mapping[str, int] = {}
        self._orders_version = (0, 0)  # inode and modification time of the orders from which `_processes` was read
        os.mkfifo(self._path, 0o600)
        try:
            self._pipe = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with contextlib.suppress(PermissionError):  # the user's limit on pipe buffers is reached
                fcntl.fcntl(self._pipe, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)
        except BaseException:
            os.unlink(self._path)
            raise

    def catch_up(self, links: Sequence[str]) -> None:
        """Make the relay's processes look for new watches, and wait until the reports of all frames received so far can be
        read.

        links: names of the links for which this is guaranteed. A relay process that does not run or reply is ignored.
        """
        shares: dict[int, list[str]] = {}
        for link in links:
            shares.setdefault(self._process_of(link), []).append(link)
        for number, share in shares.items():
            with contextlib.suppress(NotListeningError, KernelError):
                call(self._paths.socket(number), {"do": "watch", "links": share})

    def _process_of(self, link: str) -> int:
        """Return the number of the relay process that forwards a link."""
        with contextlib.suppress(FileNotFoundError):
            status = os.stat(self._paths.orders)
            if (status.st_ino, status.st_mtime_ns) != self._orders_version:
                orders = self._paths.read_orders()
                self._orders_version = status.st_ino, status.st_mtime_ns
                self._processes = orders.processes_of() if orders is not None else self._processes
        return self._processes.get(link, 0)

    def read(self) -> list[FrameFates]:
        """Read the reports since the last call."""
        reports: list[FrameFates] = []
        while True:
            try:
                data = os.read(self._pipe, _PIPE_SIZE)
            except BlockingIOError:
                return reports
            if not data:  # no writer at the moment
                return reports
            *lines, self._incomplete = (self._incomplete + data).split(b"\n")
            for line in lines:
                report = json.loads(line)
                if isinstance(report, int):
                    self.dropped_reports += report
                else:
                    link, direction, stamp, crc, causes, text = report
                    reports.append(FrameFates(link, direction, stamp, crc, tuple(causes), text))

    def close(self) -> None:
        with contextlib.suppress(FileNotFoundError):  # the cluster has been taken down
            os.unlink(self._path)
        os.close(self._pipe)


class Watchers:
    """Writers of all watches, in a relay process."""

    def __init__(self, loop: Loop, directory: Path) -> None:
        self._loop = loop
        self._directory = directory
        self._pipes: dict[str, int] = {}  # name -> descriptor
        self._dropped_reports: dict[str, int] = {}
        self._restorers: list[Callable[[], object]] = []  # each ends the reports of one direction
        self._records: list[Record] = []  # fates of the frame that is being offered
        self._reported: set[tuple[str, str]] = set()  # directions whose frames are reported

    def note(self, record: Record) -> None:
        """Note a fate of the frame that is being offered. Called for each record that a direction logs."""
        if self._pipes and (record.link, record.direction) in self._reported:
            self._records.append(record)

    def report_links(self, links: Mapping[str, AnyLink]) -> None:
        """Look for new watches, and report the frames of these links to all watches. links: all links that the relay process
        forwards."""
        for name in names_in(self._directory, _PREFIX):
            if name not in self._pipes:
                self._add_pipe(self._directory / name)
        if not self._pipes:
            return
        self._restorers = []
        self._reported.clear()
        for name, link in links.items():
            for direction in DIRECTIONS:
                if isinstance(link, LinkForwarder):
                    self._watch_forwarder(name, direction, link)
                elif direction in link.uplinks:  # frames of other directions come from a switch, without a timestamp
                    self._watch_uplink(name, direction, link)

    def _watch_forwarder(self, name: str, direction: str, link: LinkForwarder) -> None:
        forwarder, source = link.directions[direction], link.sockets()[direction]

        def report(when: int, frame: bytes, outcome: Outcome) -> None:
            if self._records or outcome is Outcome.QUEUE:
                self._report_fates(name, direction, when + source.clock_offset, frame, is_full=outcome is Outcome.QUEUE)

        def restore() -> None:
            forwarder.on_offered = None

        forwarder.on_offered = report
        self._add_direction(name, direction, restore)

    def _watch_uplink(self, name: str, direction: str, link: ModelledLink) -> None:
        uplink, source = link.uplinks[direction], link.sockets()[direction]
        entrance = link.directions[direction].channel.entrance

        def report(_now: int, frame: bytes) -> None:
            if self._records:
                self._report_fates(name, direction, uplink.stamp + source.clock_offset, frame)

        entrance.observe(report)
        self._add_direction(name, direction, partial(entrance.observe, None))

    def _add_direction(self, name: str, direction: str, restore: Callable[[], object]) -> None:
        self._reported.add((name, direction))
        self._restorers.append(restore)

    def _add_pipe(self, path: Path) -> None:
        try:
            pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            path.unlink(missing_ok=True)  # its reader was killed
            return
        self._pipes[path.name] = pipe
        self._dropped_reports[path.name] = 0

        def on_close(_now: int) -> None:
            self._remove_pipe(path.name)

        self._loop.watch(pipe, on_close)  # a pipe's writing end gets an event when the reader closes

    def _remove_pipe(self, name: str) -> None:
        pipe = self._pipes.pop(name)
        self._loop.unwatch(pipe)
        os.close(pipe)
        if not self._pipes:
            for restore in self._restorers:
                restore()
            self._restorers = []

    def _report_fates(self, link: str, direction: str, stamp: int, frame: bytes, *, is_full: bool = False) -> None:
        """Report the fates of the frame that has just been offered. stamp: wall clock, nanoseconds."""
        causes = [record.cause for record in self._records]
        descriptions = [record.describe() for record in self._records]
        self._records.clear()
        if is_full:
            causes.append(QUEUE_FULL)
            descriptions.append(f"dropped: {QUEUE_FULL}")
        self._write_report([link, direction, stamp, crc32(frame), causes, "; ".join(descriptions)[:_MAX_TEXT]])

    def _write_report(self, report: list[object]) -> None:
        line = json.dumps(report).encode() + b"\n"
        for name, pipe in self._pipes.items():
            dropped = self._dropped_reports[name]
            try:
                os.write(pipe, b"%d\n" % dropped + line if dropped else line)
                self._dropped_reports[name] = 0
            except BlockingIOError:
                self._dropped_reports[name] = dropped + 1
            except BrokenPipeError:  # its reader has closed; the loop will be notified
                continue

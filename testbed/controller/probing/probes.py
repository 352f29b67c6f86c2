"""Send probes over directions of links and receive them at both ends, with the kernel's time stamps.

First sparse probes over all directions at once, for delay, jitter, loss and order; then, where there is a rate, one
train after the other. Judging is not done here.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from array import array
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from testbed.controller.probing import probe_frames
from testbed.controller.probing.probe_frames import COUNTED, MARKER, TRAIN, Seen
from testbed.controller.probing.probe_plan import Plan, Train
from testbed.controller.probing.sleeper import Sleeper
from testbed.engine.loop import Loop
from testbed.errors import KernelError
from testbed.kernel import namespaces
from testbed.kernel.rtnl_dump import Counters, interfaces
from testbed.kernel.taps import Sender, Tap
from testbed.kernel.waiter import Waiter

_BUFFER: Final = 32 << 20
_BATCH: Final = 64
_SECOND: Final = 1_000_000_000
_QUIET: Final = 250_000_000  # ns of the sleeper alone, for the timer floor
_WARM_UP: Final = 200_000_000  # ns of markers: until stamps are the kernel's, caches are warm
_MARKER_EVERY: Final = 20_000_000
_QUIET_TIME: Final = 100_000_000  # ns without a frame, beyond what delay and rate explain: the train has passed
_CHECK_INTERVAL: Final = 100_000_000
_MORE: Final = 1.05
_PROBE_TIMEOUT: Final = 3 * _SECOND  # for probes under way, beyond their delay
_CATCH_UP: Final = 0.25  # s of probes that must fit into a tap's buffer
_TRAINS: Final = 4  # at most, of one direction
_TRAINS_SECONDS: Final = 30  # s, of all directions together
_NICENESS: Final = -10  # the relay's; with a lower priority trains could not fill its links
_MIN_SLEEP: Final = 1_000_000  # ns; for a shorter time the sender spins
_ROOM_OF_TRAIN: Final = 4  # buffer room of a full frame, as a multiple of a small one's


@dataclass(frozen=True, slots=True)
class ProbePort:
    """An interface. namespace: its path. port: empty, or the name of a port's interface; then only frames marked as the
    port's are its input."""

    namespace: str
    device: str
    port: str = ""


@dataclass(frozen=True, slots=True)
class ProbePath:
    """The way of probes between two interfaces, or from one back to it, and its plan. along: makes a frame that takes it of
    one that arrives."""

    source: ProbePort
    sink: ProbePort
    plan: Plan
    along: Callable[[bytes], bytes] = bytes


@dataclass(frozen=True, slots=True)
class TrainResult:
    """Result of a train. offered: bit/s at which it was sent. frames: when each frame that came left and came, wall
    clock nanoseconds, in the order of arrival. others: bytes of other frames that came meanwhile. overrun: frames that
    this process did not read in time."""

    offered: float
    frames: tuple[tuple[int, int], ...]
    others: int
    overrun: int


@dataclass(frozen=True, slots=True)
class Probed:
    """Result of probing one direction. sent: probes that left; arrived: those of them that came, once or more. delays:
    nanoseconds, of the timed probes, without those that skipped the delay. skipped, twice, corrupted, overtaken: of
    those that arrived. others, other_bytes: frames that were not probes. overrun: probes that this process did not read
    in time."""

    sent: int
    arrived: int
    delays: tuple[int, ...]
    skipped: int
    twice: int
    corrupted: int
    overtaken: int
    others: int
    other_bytes: int
    overrun: int
    seconds: float
    train: TrainResult | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """Result of a measurement. ways: in the requested order. floor, lag: how late a sleeper woke before and while
    probes ran, nanoseconds, sorted. stepped: nanoseconds by which the wall clock was set meanwhile."""

    paths: tuple[Probed, ...]
    floor: tuple[int, ...]
    lag: tuple[int, ...]
    stepped: int


def probe(paths: Sequence[ProbePath], seconds: float, longest: float, run: int, slow: float) -> Measured:
    """Probe the ways for `seconds`, and longer until enough probes are sent, up to `longest`. run: distinguishes these
    probes from another check's. slow: multiplies patience.

    To be called where the paths' namespaces can be entered. Raises OSError where an interface is gone.
    """
    sleeper = Sleeper()
    wake_ups: list[tuple[int, int]] = []
    begun = time.monotonic_ns()
    try:
        time.sleep(_QUIET / _SECOND)
        quiet_until = time.monotonic_ns()
        offset = _wall_offset()
        with ExitStack() as stack:
            session = _Session(stack, paths, run)
            session.sparse(seconds, longest, slow)
            results = session.results()
            with contextlib.suppress(PermissionError):
                os.setpriority(os.PRIO_PROCESS, 0, _NICENESS)
            until = time.monotonic_ns() + round(_TRAINS_SECONDS * slow * _SECOND)
            trains = session.trains(until, slow)
        stepped = abs(_wall_offset() - offset)
    finally:
        wake_ups = sleeper.wake_ups()
    return Measured(
        tuple(replace(result, train=train) for result, train in zip(results, trains, strict=True)),
        tuple(sorted(late for due, late in wake_ups if begun < due < quiet_until)),
        tuple(sorted(late for due, late in wake_ups if due >= quiet_until)),
        stepped,
    )


def _wall_offset() -> int:
    """Return the wall clock's offset from the monotonic clock, nanoseconds, by the quickest of some readings."""
    best = (1 << 62, 0)
    for _ in range(20):
        before = time.monotonic_ns()
        wall = time.time_ns()
        after = time.monotonic_ns()
        best = min(best, (after - before, wall - (before + after) // 2))
    return best[1]


@dataclass(slots=True)
class _Track:
    """Received probes of one direction; left and came are indexed by number."""

    left: array[int] = field(default_factory=lambda: array("q"))
    came: array[int] = field(default_factory=lambda: array("q"))
    under_way: int = 0  # probes that have left less those that have come
    twice: int = 0
    corrupted: int = 0
    unreadable: int = 0
    overtaken: int = 0
    highest: int = -1
    markers: int = 0
    marked: int = 0  # the latest marker that has come
    train_left: dict[int, int] = field(default_factory=dict)
    train_came: list[tuple[int, int]] = field(default_factory=list)  # number, when
    frames: int = 0  # probes of any kind that came in, with their copies
    bytes: int = 0


class _Session:
    """A session of probing: taps at all ends and the tracks of received probes."""

    def __init__(self, stack: ExitStack, paths: Sequence[ProbePath], run: int) -> None:
        self._paths = paths
        self._run = run
        self._tracks = [_Track() for _ in paths]
        self._taps: dict[ProbePort, Tap] = {}
        self._senders: dict[ProbePort, Sender] = {}
        self._overrun = dict.fromkeys([port for path in paths for port in (path.source, path.sink)], 0)
        self._incoming: dict[ProbePort, list[_Track]] = {}
        for path, track in zip(paths, self._tracks, strict=True):
            self._incoming.setdefault(path.sink, []).append(track)
        for port in self._overrun:
            tap = Tap(port.namespace, port.device, probe_frames.ACCEPTED, _BUFFER, port.port)
            stack.callback(tap.close)
            self._taps[port] = tap
        for port in {path.source for path in paths}:
            sender = Sender(port.namespace, port.device)
            stack.callback(sender.close)
            self._senders[port] = sender
        # Taps with small buffers (without root) must be read in time.
        self._bursts = [max(1, min(path.plan.burst, self._burst_size(path))) for path in paths]
        self._seconds = 0.0
        self._pulsing = True
        self._others: list[tuple[int, int]] = [(0, 0)] * len(paths)

    # Sparse probes

    def sparse(self, seconds: float, longest: float, slow: float) -> None:
        """Send sparse probes for `seconds`, or until there are enough; wait until they have come or none can be
        expected any more."""
        waiter = Waiter(spin=0)
        loop = Loop(waiter)
        for port, tap in self._taps.items():
            loop.watch(tap.fileno(), partial(self._hear, port))
        self._mark_for(loop, _WARM_UP)
        heard = self._received()
        started = loop.now()
        limit = started + round(longest * _SECOND)
        for number, path in enumerate(self._paths):
            first = started + path.plan.interval * number // len(self._paths)
            self._pulse(loop, number, first)

        def check(now: int) -> None:
            if now >= limit or self._sent_enough():
                loop.stop()
            else:
                loop.at(now + _CHECK_INTERVAL, check)

        loop.at(started + round(seconds * _SECOND), check)
        loop.run()
        self._pulsing = False
        self._drain(loop, loop.now(), slow)
        self._seconds = (loop.now() - started) / _SECOND
        self._others = self._other_traffic(heard)
        for port, tap in self._taps.items():
            self._overrun[port] += tap.overrun()
        waiter.close()

    def _pulse(self, loop: Loop, number: int, first: int) -> None:
        """Send the probes of one direction from `first` on. Missed bursts are not made up for: bursts must keep their
        distance."""
        interval = self._paths[number].plan.interval

        def again(_now: int) -> None:
            if self._pulsing:
                self._burst(number)
                timer.set(loop.now() + interval)

        timer = loop.timer(again)
        timer.set(first)

    def _burst(self, number: int) -> None:
        """Send one timed probe and those that go with it."""
        track, path = self._tracks[number], self._paths[number]
        sender = self._senders[path.source]
        for _ in range(self._bursts[number]):
            sender.send(path.along(probe_frames.build(self._run, number, COUNTED, len(track.left))))
            track.left.append(0)
            track.came.append(0)

    def _sent_enough(self) -> bool:
        """Whether somewhat more probes than wanted were sent: some do not arrive."""
        return all(
            len(track.left) >= _MORE * max(path.plan.wanted, path.plan.samples * burst)
            for path, track, burst in zip(self._paths, self._tracks, self._bursts, strict=True)
        )

    def _burst_size(self, path: ProbePath) -> int:
        """Return how many probes may go at once so that the taps' buffers hold _CATCH_UP seconds of them."""
        room = min(self._taps[path.source].capacity, self._taps[path.sink].capacity)
        return int(room * path.plan.interval / _SECOND / _CATCH_UP / 2)

    def _mark(self, number: int) -> None:
        track = self._tracks[number]
        track.markers += 1
        frame = probe_frames.build(self._run, number, MARKER, track.markers)
        path = self._paths[number]
        self._senders[path.source].send(path.along(frame))

    def _mark_for(self, loop: Loop, duration: int) -> None:
        end = loop.now() + duration

        def again(now: int) -> None:
            if now >= end:
                loop.stop()
                return
            for number in range(len(self._paths)):
                self._mark(number)
            loop.at(now + _MARKER_EVERY, again)

        loop.at(loop.now(), again)
        loop.run()

    def _drain(self, loop: Loop, end: int, slow: float) -> None:
        """Wait until every probe has come, or a later marker has, and then as long as reordering may last."""
        after = [track.markers for track in self._tracks]
        longest = max((path.plan.latest for path in self._paths), default=0)
        limit = end + longest + round(_PROBE_TIMEOUT * slow)
        settled: dict[int, int] = {}

        def again(now: int) -> None:
            for number, track in enumerate(self._tracks):
                if track.marked > after[number] or not track.under_way:
                    settled.setdefault(number, now + self._paths[number].plan.latest)
                elif number not in settled:
                    self._mark(number)
            done = len(settled) == len(self._tracks) and now >= max(settled.values(), default=0)
            if done or now >= limit:
                loop.stop()
            else:
                loop.at(now + _MARKER_EVERY, again)

        loop.at(loop.now(), again)
        loop.run()

    def _hear(self, port: ProbePort, _now: int = 0) -> None:
        for outgoing, when, length, head in self._taps[port].read(_BATCH):
            seen = probe_frames.read(head)
            if not outgoing and (tracks := self._incoming.get(port)):
                for track in tracks:
                    track.frames += 1
                    track.bytes += length
                if len(tracks) == 1:  # with several paths it is unknown whose it was
                    tracks[0].unreadable += seen is None
            if seen is not None and seen.run == self._run and seen.path < len(self._paths):
                self._note(port, seen, outgoing, when)

    def _note(self, port: ProbePort, seen: Seen, outgoing: bool, when: int) -> None:
        path, track = self._paths[seen.path], self._tracks[seen.path]
        if outgoing:
            if port != path.source:
                return
            if seen.kind == COUNTED and seen.number < len(track.left):
                track.left[seen.number] = when
                track.under_way += 1
            elif seen.kind == TRAIN:
                track.train_left[seen.number] = when
            return
        if port != path.sink:
            return
        if seen.kind == MARKER:
            track.marked = max(track.marked, seen.number)
        elif seen.kind == TRAIN:
            track.train_came.append((seen.number, when))
        elif seen.number < len(track.came):
            if track.came[seen.number]:
                track.twice += 1
                return
            track.came[seen.number] = when
            track.under_way -= 1
            track.corrupted += not seen.intact
            if seen.number < track.highest:
                track.overtaken += 1
            else:
                track.highest = seen.number

    # Trains

    def trains(self, until: int, slow: float) -> list[TrainResult | None]:
        """Fill one direction after the other for a short time; repeat those that other programs kept from being filled.
        None where no train is planned, or no time was left."""
        results: list[TrainResult | None] = [None] * len(self._paths)
        for _ in range(_TRAINS):
            for number, path in enumerate(self._paths):
                train, known = path.plan.train, results[number]
                wanting = train is not None and (known is None or known.offered < train.enough)
                if train is not None and wanting and time.monotonic_ns() < until:
                    results[number] = self._send_train(number, path, train, slow)
        return results

    def _send_train(self, number: int, path: ProbePath, train: Train, slow: float) -> TrainResult:
        source, sink = self._taps[path.source], self._taps[path.sink]
        self._empty()
        heard = self._received()
        track = self._tracks[number]
        track.train_left.clear()
        track.train_came.clear()
        sender = self._senders[path.source]
        build = partial(probe_frames.build, self._run, number, TRAIN, size=train.size)
        frames = [path.along(build(index)) for index in range(train.count)]
        poll = select.poll()
        poll.register(sink, select.POLLIN)
        # The kernel stamps frames on arrival, so they are read as late as the buffer allows.
        unread = max(1, sink.capacity // _ROOM_OF_TRAIN // 4)
        started = time.monotonic_ns()
        for index, frame in enumerate(frames):
            due = started + train.duration * index // train.count
            while (now := time.monotonic_ns()) < due:
                if due - now > _MIN_SLEEP:
                    time.sleep((due - now - _MIN_SLEEP // 2) / _SECOND)
            sender.send(frame)
            if index % unread == unread - 1:
                self._read_waiting(path.sink)
                self._read_waiting(path.source)
        elapsed = time.monotonic_ns() - started
        self._await_train(path, train, track, poll, slow)
        self._read_waiting(path.source)
        _, other_bytes = self._other_traffic(heard)[number]
        offered = train.bits * train.count * _SECOND / elapsed
        left = track.train_left
        times = tuple((left[number], came) for number, came in track.train_came if number in left)
        return TrainResult(offered, times, other_bytes, sink.overrun() + source.overrun())

    def _await_train(self, path: ProbePath, train: Train, track: _Track, poll: select.poll, slow: float) -> None:
        """Wait until all frames have come, or none has come for longer than delay and rate explain."""
        quiet = path.plan.latest + 20 * train.duration // train.count + round(_QUIET_TIME * slow)
        last, known = time.monotonic_ns(), len(track.train_came)
        while known < train.count and time.monotonic_ns() - last < quiet:
            poll.poll(5)
            self._hear(path.sink)
            if len(track.train_came) > known:
                last, known = time.monotonic_ns(), len(track.train_came)

    def _empty(self) -> None:
        """Read all pending frames, which are markers."""
        for port in self._taps:
            self._read_waiting(port)

    def _read_waiting(self, port: ProbePort) -> None:
        waiting = select.poll()
        waiting.register(self._taps[port], select.POLLIN)
        while waiting.poll(0):
            self._hear(port)

    # Other frames

    def _received(self) -> list[tuple[int, int]]:
        """Return, for each direction, the frames and bytes that its sink received, without probes that were read."""
        namespaces_of = {path.sink.namespace for path in self._paths}
        seen = {path: device_counters(path) for path in namespaces_of}
        received = []
        for path, track in zip(self._paths, self._tracks, strict=True):
            counters = seen[path.sink.namespace].get(path.sink.device)
            if counters is None:
                raise KernelError(f"the interface {path.sink.device} has gone while it was probed")
            received.append((counters.rx_packets - track.frames, counters.rx_bytes - track.bytes))
        return received

    def _other_traffic(self, before: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return the frames and bytes received since then that were not probes."""
        now = self._received()
        return [
            (max(0, frames - earlier[0]), max(0, size - earlier[1]))
            for (frames, size), earlier in zip(now, before, strict=True)
        ]

    # Results

    def results(self) -> list[Probed]:
        return [self._result(number) for number in range(len(self._paths))]

    def _result(self, number: int) -> Probed:
        path, track = self._paths[number], self._tracks[number]
        sent = arrived = skipped = 0
        delays = []
        for index, (left, came) in enumerate(zip(track.left, track.came, strict=True)):
            if not left:
                continue
            sent += 1
            if not came:
                continue
            arrived += 1
            if came - left < path.plan.skip_below:
                skipped += 1
            elif index % self._bursts[number] == 0:
                delays.append(came - left)
        arrived = min(sent, arrived + track.unreadable)
        frames, size = self._others[number]
        return Probed(
            sent,
            arrived,
            tuple(sorted(delays)),
            skipped,
            track.twice,
            track.corrupted + track.unreadable,
            track.overtaken,
            frames,
            size,
            self._overrun[path.source] + self._overrun[path.sink],
            self._seconds,
        )


def device_counters(path: str) -> dict[str, Counters]:
    """Return the counters of a namespace's interfaces, by name."""
    namespace = namespaces.open_path(path)
    try:
        return {interface.name: interface.counters for interface in interfaces(namespace.route)}
    finally:
        namespace.close()

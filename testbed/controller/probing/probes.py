"""Send probes over directions of links and capture them at both ends, with time stamps of the kernel.

Sparse probes over all directions at once measure delay, jitter, loss and order. Then a train over each direction with a
rate, one after the other, measures the rate. The results are judged in `probe_findings`.
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
from testbed.controller.probing.probe_frames import COUNTED, MARKER, TRAIN, ReceivedProbe
from testbed.controller.probing.probe_plan import MARGIN, ProbePlan, Train
from testbed.controller.probing.sleeper import Sleeper
from testbed.engine.loop import Loop
from testbed.errors import KernelError
from testbed.kernel import namespaces
from testbed.kernel.rtnl_dump import Counters, interfaces
from testbed.kernel.taps import Sender, Tap
from testbed.kernel.waiter import Waiter

_BUFFER: Final = 32 << 20  # bytes of a tap
_BATCH: Final = 64  # frames per read
_SECOND: Final = 1_000_000_000
_FLOOR_TIME: Final = 250_000_000  # ns before probing, in which the sleeper measures the timer floor
_WARM_UP: Final = 200_000_000  # ns of markers, until the kernel stamps frames and caches are warm
_MARKER_INTERVAL: Final = 20_000_000  # ns
_IDLE_TIME: Final = 100_000_000  # ns without a frame, beyond delay and frame time, after which a train has passed
_CHECK_INTERVAL: Final = 100_000_000  # ns
_DRAIN_TIMEOUT: Final = 3 * _SECOND  # for probes in flight, beyond their delay
_BUFFERED_SECONDS: Final = 0.25  # duration of probing whose probes must fit into a tap's buffer
_MAX_TRAINS: Final = 4  # of one direction
_TRAINS_TIMEOUT: Final = 30  # s, of all directions together
_NICENESS: Final = -10  # the relay's; with a lower priority, trains could not fill the relay's links
_MIN_SLEEP: Final = 1_000_000  # ns; the sender spins for shorter times
_FULL_FRAME_ROOM: Final = 4  # buffer space of a full frame, as a multiple of that of a small frame


@dataclass(frozen=True, slots=True)
class ProbePort:
    """An interface at which probes are sent or captured. namespace: path. port: name of a switch port's interface, to
    capture only frames marked with it; or empty."""

    namespace: str
    device: str
    port: str = ""


@dataclass(frozen=True, slots=True)
class ProbePath:
    """Path of probes from one interface to another one or back to it, and their plan. to_frame: converts a probe to a frame
    that takes this path, such as by a source route."""

    source: ProbePort
    sink: ProbePort
    plan: ProbePlan
    to_frame: Callable[[bytes], bytes] = bytes


@dataclass(frozen=True, slots=True)
class TrainResult:
    """Result of a train. offered: bit/s at which it was sent. times: departure and arrival of each received frame,
    nanoseconds of the wall clock, in the order of arrival. other_bytes: bytes of other frames received meanwhile.
    overrun: frames that this process did not read in time."""

    offered: float
    times: tuple[tuple[int, int], ...]
    other_bytes: int
    overrun: int


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Result of probing one direction. sent: probes that left. arrived: sent probes that were received at least once.
    delays: nanoseconds, of timed probes that did not skip the delay, ascending. skipped: received probes that skipped the
    delay. duplicates: further copies. corrupted, overtaken: received probes that were corrupted, or overtaken. other_frames,
    other_bytes: received frames that were not probes. overrun: probes that this process did not read in time. seconds:
    duration."""

    sent: int
    arrived: int
    delays: tuple[int, ...]
    skipped: int
    duplicates: int
    corrupted: int
    overtaken: int
    other_frames: int
    other_bytes: int
    overrun: int
    seconds: float
    train: TrainResult | None = None


@dataclass(frozen=True, slots=True)
class Measurement:
    """Results of probing, and the timing of the machine meanwhile. paths: in the requested order. floor, lag: wake-up
    latencies of a sleeper before and during probing, nanoseconds, ascending. wall_clock_step: nanoseconds by which the wall
    clock was set meanwhile."""

    paths: tuple[ProbeResult, ...]
    floor: tuple[int, ...]
    lag: tuple[int, ...]
    wall_clock_step: int


def probe(paths: Sequence[ProbePath], min_seconds: float, max_seconds: float, run: int, slow: float) -> Measurement:
    """Probe the paths for `min_seconds`, or longer until enough probes are sent, at most for `max_seconds`. run:
    distinguishes these probes from those of other checks. slow: factor of timeouts.

    The caller must be able to enter the namespaces of the paths. Raises OSError for a missing interface, KernelError
    for one that is removed meanwhile.
    """
    sleeper = Sleeper()
    wake_ups: list[tuple[int, int]] = []
    started = time.monotonic_ns()
    try:
        time.sleep(_FLOOR_TIME / _SECOND)
        probing_started = time.monotonic_ns()
        offset = _wall_offset()
        with ExitStack() as stack:
            session = _Session(stack, paths, run)
            session.send_sparse(min_seconds, max_seconds, slow)
            results = session.results()
            with contextlib.suppress(PermissionError):
                os.setpriority(os.PRIO_PROCESS, 0, _NICENESS)
            until = time.monotonic_ns() + round(_TRAINS_TIMEOUT * slow * _SECOND)
            trains = session.send_trains(until, slow)
        wall_clock_step = abs(_wall_offset() - offset)
    finally:
        wake_ups = sleeper.stop()
    return Measurement(
        tuple(replace(result, train=train) for result, train in zip(results, trains, strict=True)),
        tuple(sorted(late for due, late in wake_ups if started < due < probing_started)),
        tuple(sorted(late for due, late in wake_ups if due >= probing_started)),
        wall_clock_step,
    )


def _wall_offset() -> int:
    """Return the wall clock's offset from the monotonic clock, nanoseconds, by the fastest of several readings."""
    best = (1 << 62, 0)
    for _ in range(20):
        before = time.monotonic_ns()
        wall = time.time_ns()
        after = time.monotonic_ns()
        best = min(best, (after - before, wall - (before + after) // 2))
    return best[1]


@dataclass(slots=True)
class _Track:
    """Sent and received probes of one direction. departures, arrivals: times by number; 0 for none."""

    departures: array[int] = field(default_factory=lambda: array("q"))
    arrivals: array[int] = field(default_factory=lambda: array("q"))
    in_flight: int = 0
    duplicates: int = 0
    corrupted: int = 0
    unreadable: int = 0
    overtaken: int = 0
    highest: int = -1
    markers: int = 0
    last_marker: int = 0  # received
    train_departures: dict[int, int] = field(default_factory=dict)  # time by number
    train_arrivals: list[tuple[int, int]] = field(default_factory=list)  # number, time
    frames: int = 0  # received probes of any kind, with their copies
    bytes: int = 0


class _Session:
    """Taps and senders at the ends of all paths, and the track of each direction. Directions are numbered as their paths."""

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
        # Without root, the buffers of taps are small, and bursts must fit into them.
        self._bursts = [max(1, min(path.plan.burst, self._burst_size(path))) for path in paths]
        self._seconds = 0.0
        self._is_sending = True
        self._other_counts: list[tuple[int, int]] = [(0, 0)] * len(paths)

    # Sparse probes

    def send_sparse(self, min_seconds: float, max_seconds: float, slow: float) -> None:
        """Send sparse probes for `min_seconds`, or longer until enough are sent; wait until they have arrived or are
        lost."""
        waiter = Waiter(spin=0)
        loop = Loop(waiter)
        for port, tap in self._taps.items():
            loop.watch(tap.fileno(), partial(self._read_tap, port))
        self._send_markers(loop, _WARM_UP)
        counts_before = self._other_received()
        started = loop.now()
        limit = started + round(max_seconds * _SECOND)
        for number, path in enumerate(self._paths):
            first = started + path.plan.interval * number // len(self._paths)
            self._send_bursts(loop, number, first)

        def check(now: int) -> None:
            if now >= limit or self._sent_enough():
                loop.stop()
            else:
                loop.at(now + _CHECK_INTERVAL, check)

        loop.at(started + round(min_seconds * _SECOND), check)
        loop.run()
        self._is_sending = False
        self._drain(loop, loop.now(), slow)
        self._seconds = (loop.now() - started) / _SECOND
        self._other_counts = self._other_traffic(counts_before)
        for port, tap in self._taps.items():
            self._overrun[port] += tap.overrun()
        waiter.close()

    def _send_bursts(self, loop: Loop, number: int, first: int) -> None:
        """Send the bursts of one direction. first: time of the first one. Late bursts delay the following ones, since bursts
        must keep their interval."""
        interval = self._paths[number].plan.interval

        def on_timer(_now: int) -> None:
            if self._is_sending:
                self._send_burst(number)
                timer.set(loop.now() + interval)

        timer = loop.timer(on_timer)
        timer.set(first)

    def _send_burst(self, number: int) -> None:
        """Send a burst, which begins with a timed probe."""
        track, path = self._tracks[number], self._paths[number]
        sender = self._senders[path.source]
        for _ in range(self._bursts[number]):
            sender.send(path.to_frame(probe_frames.build(self._run, number, COUNTED, len(track.departures))))
            track.departures.append(0)
            track.arrivals.append(0)

    def _sent_enough(self) -> bool:
        """Whether enough probes were sent, with a margin for probes that do not arrive."""
        return all(
            len(track.departures) >= MARGIN * max(path.plan.min_probes, path.plan.min_samples * burst)
            for path, track, burst in zip(self._paths, self._tracks, self._bursts, strict=True)
        )

    def _burst_size(self, path: ProbePath) -> int:
        """Return the maximum size of a burst for which the taps' buffers hold the probes of _BUFFERED_SECONDS."""
        capacity = min(self._taps[path.source].capacity, self._taps[path.sink].capacity)
        return int(capacity * path.plan.interval / _SECOND / _BUFFERED_SECONDS / 2)

    def _send_marker(self, number: int) -> None:
        track = self._tracks[number]
        track.markers += 1
        frame = probe_frames.build(self._run, number, MARKER, track.markers)
        path = self._paths[number]
        self._senders[path.source].send(path.to_frame(frame))

    def _send_markers(self, loop: Loop, duration: int) -> None:
        end = loop.now() + duration

        def send(now: int) -> None:
            if now >= end:
                loop.stop()
                return
            for number in range(len(self._paths)):
                self._send_marker(number)
            loop.at(now + _MARKER_INTERVAL, send)

        loop.at(loop.now(), send)
        loop.run()

    def _drain(self, loop: Loop, end: int, slow: float) -> None:
        """Wait until every probe or a later marker has arrived, and then for the longest delay of reordered probes."""
        markers_before = [track.markers for track in self._tracks]
        max_delay = max((path.plan.max_delay for path in self._paths), default=0)
        limit = end + max_delay + round(_DRAIN_TIMEOUT * slow)
        drained: dict[int, int] = {}  # by direction: the time after which no probe can arrive any more

        def check(now: int) -> None:
            for number, track in enumerate(self._tracks):
                if track.last_marker > markers_before[number] or not track.in_flight:
                    drained.setdefault(number, now + self._paths[number].plan.max_delay)
                elif number not in drained:
                    self._send_marker(number)
            done = len(drained) == len(self._tracks) and now >= max(drained.values(), default=0)
            if done or now >= limit:
                loop.stop()
            else:
                loop.at(now + _MARKER_INTERVAL, check)

        loop.at(loop.now(), check)
        loop.run()

    def _read_tap(self, port: ProbePort, _now: int = 0) -> None:
        for outgoing, when, length, head in self._taps[port].read(_BATCH):
            received = probe_frames.parse(head)
            if not outgoing and (tracks := self._incoming.get(port)):
                for track in tracks:
                    track.frames += 1
                    track.bytes += length
                if len(tracks) == 1:  # an unreadable probe does not show its path
                    tracks[0].unreadable += received is None
            if received is not None and received.run == self._run and received.path < len(self._paths):
                self._record(port, received, outgoing, when)

    def _record(self, port: ProbePort, received: ReceivedProbe, outgoing: bool, when: int) -> None:
        path, track = self._paths[received.path], self._tracks[received.path]
        if outgoing:
            if port != path.source:
                return
            if received.kind == COUNTED and received.number < len(track.departures):
                track.departures[received.number] = when
                track.in_flight += 1
            elif received.kind == TRAIN:
                track.train_departures[received.number] = when
            return
        if port != path.sink:
            return
        if received.kind == MARKER:
            track.last_marker = max(track.last_marker, received.number)
        elif received.kind == TRAIN:
            track.train_arrivals.append((received.number, when))
        elif received.number < len(track.arrivals):
            if track.arrivals[received.number]:
                track.duplicates += 1
                return
            track.arrivals[received.number] = when
            track.in_flight -= 1
            track.corrupted += not received.is_intact
            if received.number < track.highest:
                track.overtaken += 1
            else:
                track.highest = received.number

    # Trains

    def send_trains(self, until: int, slow: float) -> list[TrainResult | None]:
        """Send trains over one direction after the other; repeat trains that were sent too slowly because of other programs.
        Return a result for each direction; None if no train is planned, or no time was left."""
        results: list[TrainResult | None] = [None] * len(self._paths)
        for _ in range(_MAX_TRAINS):
            for number, path in enumerate(self._paths):
                train, previous = path.plan.train, results[number]
                if train is None or (previous is not None and previous.offered >= train.min_offered):
                    continue
                if time.monotonic_ns() < until:
                    results[number] = self._send_train(number, path, train, slow)
        return results

    def _send_train(self, number: int, path: ProbePath, train: Train, slow: float) -> TrainResult:
        source, sink = self._taps[path.source], self._taps[path.sink]
        self._read_all()
        counts_before = self._other_received()
        track = self._tracks[number]
        track.train_departures.clear()
        track.train_arrivals.clear()
        sender = self._senders[path.source]
        build = partial(probe_frames.build, self._run, number, TRAIN, size=train.size)
        frames = [path.to_frame(build(index)) for index in range(train.count)]
        poll = select.poll()
        poll.register(sink, select.POLLIN)
        # The kernel stamps frames on arrival, so they can be read late; reading takes time from sending.
        max_unread = max(1, sink.capacity // _FULL_FRAME_ROOM // 4)
        started = time.monotonic_ns()
        for index, frame in enumerate(frames):
            due = started + train.duration * index // train.count
            while (now := time.monotonic_ns()) < due:
                if due - now > _MIN_SLEEP:
                    time.sleep((due - now - _MIN_SLEEP // 2) / _SECOND)
            sender.send(frame)
            if index % max_unread == max_unread - 1:
                self._read_pending(path.sink)
                self._read_pending(path.source)
        elapsed = time.monotonic_ns() - started
        self._await_train(path, train, track, poll, slow)
        self._read_pending(path.source)
        _, other_bytes = self._other_traffic(counts_before)[number]
        offered = train.bits * train.count * _SECOND / elapsed
        departures = track.train_departures
        times = tuple((departures[index], arrival) for index, arrival in track.train_arrivals if index in departures)
        return TrainResult(offered, times, other_bytes, sink.overrun() + source.overrun())

    def _await_train(self, path: ProbePath, train: Train, track: _Track, poll: select.poll, slow: float) -> None:
        """Wait until all frames have arrived, or none has arrived for longer than delay and rate explain."""
        idle_timeout = path.plan.max_delay + 20 * train.duration // train.count + round(_IDLE_TIME * slow)
        last, count = time.monotonic_ns(), len(track.train_arrivals)
        while count < train.count and time.monotonic_ns() - last < idle_timeout:
            poll.poll(5)
            self._read_tap(path.sink)
            if len(track.train_arrivals) > count:
                last, count = time.monotonic_ns(), len(track.train_arrivals)

    def _read_all(self) -> None:
        """Read the pending frames of all taps, which are markers."""
        for port in self._taps:
            self._read_pending(port)

    def _read_pending(self, port: ProbePort) -> None:
        poll = select.poll()
        poll.register(self._taps[port], select.POLLIN)
        while poll.poll(0):
            self._read_tap(port)

    # Other frames

    def _other_received(self) -> list[tuple[int, int]]:
        """Return the frames and bytes received by each direction's sink, without the probes read so far. Raises KernelError
        for a missing interface."""
        sink_namespaces = {path.sink.namespace for path in self._paths}
        by_namespace = {namespace: device_counters(namespace) for namespace in sink_namespaces}
        received = []
        for path, track in zip(self._paths, self._tracks, strict=True):
            counters = by_namespace[path.sink.namespace].get(path.sink.device)
            if counters is None:
                raise KernelError(f"the interface {path.sink.device} was removed while it was probed")
            received.append((counters.rx_packets - track.frames, counters.rx_bytes - track.bytes))
        return received

    def _other_traffic(self, before: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return the frames and bytes, without probes, received since the earlier counts."""
        now = self._other_received()
        return [
            (max(0, frames - earlier[0]), max(0, size - earlier[1]))
            for (frames, size), earlier in zip(now, before, strict=True)
        ]

    # Results

    def results(self) -> list[ProbeResult]:
        return [self._result(number) for number in range(len(self._paths))]

    def _result(self, number: int) -> ProbeResult:
        path, track = self._paths[number], self._tracks[number]
        sent = arrived = skipped = 0
        delays = []
        for index, (departure, arrival) in enumerate(zip(track.departures, track.arrivals, strict=True)):
            if not departure:
                continue
            sent += 1
            if not arrival:
                continue
            arrived += 1
            delay = delay_of(departure, arrival)
            if delay < path.plan.skip_below:
                skipped += 1
            elif index % self._bursts[number] == 0:
                delays.append(delay)
        arrived = min(sent, arrived + track.unreadable)
        frames, size = self._other_counts[number]
        return ProbeResult(
            sent,
            arrived,
            tuple(sorted(delays)),
            skipped,
            track.duplicates,
            track.corrupted + track.unreadable,
            track.overtaken,
            frames,
            size,
            self._overrun[path.source] + self._overrun[path.sink],
            self._seconds,
        )


def delay_of(departure: int, arrival: int) -> int:
    """Return a probe's delay, nanoseconds; 0 if the arrival seems earlier, since the wall clock was set back, or two
    machines' clocks differ. Even on a link without reordering (`skip_below` is 0), a negative delay would count as that of
    a frame that skipped the link's delay."""
    return max(0, arrival - departure)


def device_counters(path: str) -> dict[str, Counters]:
    """Return the counters of the interfaces in a namespace, by name. path: path of the namespace."""
    namespace = namespaces.open_path(path)
    try:
        return {interface.name: interface.counters for interface in interfaces(namespace.route)}
    finally:
        namespace.close()

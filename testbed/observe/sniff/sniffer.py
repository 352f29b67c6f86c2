"""Packet capture on links of a running cluster: packet rings at all capture points, the relay's reports of fates, and the
merge of both.

A link's datapath may change during a capture, and with it the capture points. So the sniffer tracks the cluster's state.
"""

from __future__ import annotations

import os
import select
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from typing import Final

from testbed.cluster.faults.injections import DirectionName, in_force, links_of
from testbed.cluster.plan import namespace_names
from testbed.cluster.records.state import State, Store
from testbed.errors import ConflictError, KernelError, NotFoundError
from testbed.kernel import namespaces, rtnl_dump
from testbed.kernel.loss_classifier import open_attached
from testbed.kernel.netlink import RequestError
from testbed.kernel.rtnl_monitor import Monitor
from testbed.kernel.tpacket import Ring
from testbed.observe.sniff.fate_reconstruction import MIN_QUIET, FateReconstruction
from testbed.observe.sniff.frame_merge import CapturedFrame, FrameMerge
from testbed.observe.sniff.points import Point, points
from testbed.runtime.relay.relay_watch import Watch
from testbed.spec.layout import Impairment

RELEASE_DELAY: Final = 100_000_000
"""Nanoseconds by which the release of frames is delayed, long enough for the kernel to deliver earlier frames."""

TIMEOUT: Final = 10.0
"""Seconds to wait for another command that changes the cluster."""

_RELEASE_INTERVAL: Final = 50_000_000  # ns between two releases of frames
_POLL_MS: Final = 20  # maximum ms to wait for frames before the state is checked
_RING_MEMORY: Final = 128 << 20  # bytes of all rings together, unless _MIN_RING and _MAX_RING limit the size of each
_MAX_RING, _MIN_RING = 16 << 20, 1 << 20


class Sniffer:
    """Capture from `begin` until `close`. dropped: number of frames that the kernel dropped because the ring was full, by
    end of a link. begun: wall-clock time of the start, ns."""

    def __init__(self, store: Store, cluster: str, target: str) -> None:
        """target: a link, a node or a switch (all its links), or "all", as for injections. Raises NotFoundError with
        the valid names."""
        self.dropped: Counter[str] = Counter()
        self.cut = 0
        """Number of frames truncated because they were longer than a ring's slot."""
        self.gone = False
        """Whether the cluster has been taken down."""
        self.begun = 0
        self._store = store
        self._cluster = cluster
        self._target = target
        self._path = store.directory(cluster) / "state.json"
        self._state_stamp = (0, 0)  # inode and mtime of the state's file
        self._rings: dict[tuple[str, str], tuple[Ring, Point]] = {}
        self._retiring: list[tuple[int, Ring, Point]] = []  # rings with the time until which they are read
        self._reconstructions: dict[tuple[str, DirectionName], FateReconstruction] = {}
        self._all_reconstructions: list[FateReconstruction] = []  # including replaced ones
        self._wire: namespaces.OpenNamespace | None = None
        self._stack = ExitStack()
        self._poll = select.poll()
        self._merge = FrameMerge(0)
        # Frame counts of interfaces, by index, when the capture began or when their last ring was retired.
        self._base_counts: dict[int, int] = {}
        self._counted_at = 0  # time of the last check for dropped frames
        self._next_release = 0  # time of the next release
        self._checked_at = 0  # time of the last check of the state
        self._is_changing = False  # whether the cluster was being changed at that time
        self._verify_classifiers = False  # whether classifiers may have been replaced since they were read
        links_of(store.choose(cluster).layout, target)

    def begin(self) -> None:
        """Start capturing: every frame that passes after the return is captured. Raises KernelError for a capture point that
        does not exist, NotFoundError if the cluster is gone, ConflictError if it does not come up."""
        deadline = time.monotonic() + TIMEOUT
        while (state := self._read()) is not None and state.phase != "up":
            if time.monotonic() > deadline:
                raise ConflictError(f"another testbed command is changing cluster {self._cluster}")
            time.sleep(_POLL_MS / 1000)
        if state is None:
            raise NotFoundError(f"cluster {self._cluster} has been taken down")
        self._watch = Watch(self._path.parent)
        self._stack.callback(self._watch.close)
        self._stack.callback(self._close_rings)
        self._stack.callback(self._close_wire)
        self._monitor = Monitor(state.namespaces[namespace_names.WIRE])
        self._stack.callback(self._monitor.close)
        self._poll.register(self._monitor.fileno(), select.POLLIN)
        self._wire = namespaces.open_path(state.namespaces[namespace_names.WIRE])
        self._open_current_rings(state, retry=False)
        self._base_counts = {
            interface.index: _frame_count_of(interface) for interface in rtnl_dump.interfaces(self._wire.route)
        }
        self._watch.catch_up(self._links())
        if self._reconstructions:
            # If no frame passes meanwhile, the first readings determine the frame numbers.
            time.sleep(2 * MIN_QUIET / 1e9)
            self._read_classifiers()
        for ring, point in self._rings.values():
            if self._add_counts(ring, point):
                self._mark_gap(point, self._counted_at, time.time_ns())
        self.dropped.clear()
        self.begun = self._checked_at = time.time_ns()
        self._merge = FrameMerge(self.begun)

    def close(self) -> None:
        self._stack.close()

    @property
    def points(self) -> list[Point]:
        """The current capture points."""
        return [point for _, point in self._rings.values()]

    @property
    def late(self) -> int:
        """Number of frames that arrived after later frames had been released."""
        return self._merge.late

    @property
    def unknown_fates(self) -> int:
        """Number of fates that the relay could not report in time, or whose frames were not captured."""
        return self._watch.dropped_reports + self._merge.unplaced

    @property
    def undecided(self) -> int:
        """Number of frames for which it is unknown whether a loss classifier dropped them."""
        return sum(reconstruction.undecided for reconstruction in self._all_reconstructions)

    def wait(self, stop: int) -> bool:
        """Wait at most 20 ms for frames; return whether the descriptor `stop` is readable."""
        self._poll.register(stop, select.POLLIN)
        ready = self._sleep()
        self._poll.unregister(stop)
        return stop in ready

    def frames(self) -> list[CapturedFrame]:
        """Return the frames that are ready, in order of time."""
        now = time.time_ns()
        self._check_state()
        if now < self._next_release:
            self._read_rings()
            return []
        return self._release(now, now - RELEASE_DELAY)

    def drain(self) -> Iterator[list[CapturedFrame]]:
        """Yield all frames that passed before the call, as they become ready."""
        end = time.time_ns()
        while (now := time.time_ns()) <= end + RELEASE_DELAY:
            self._sleep()
            self._check_state()
            yield self._release(now, min(end, now - RELEASE_DELAY))
        yield self._release(now, end)

    def _release(self, now: int, until: int) -> list[CapturedFrame]:
        """Read the rings and reports; return the frames with timestamps up to `until`."""
        self._watch.catch_up(self._links())
        self._read_rings()
        self._next_release = now + _RELEASE_INTERVAL
        return self._merge.release(until, now - RELEASE_DELAY)

    def _links(self) -> list[str]:
        """Return the names of the links that the relay forwards."""
        return sorted({point.link for _, point in self._rings.values() if point.datapath == "relay"})

    def update_counts(self) -> None:
        """Update the counts of dropped and truncated frames."""
        for ring, point in self._all_rings():
            self._add_counts(ring, point)

    def _sleep(self) -> dict[int, int]:
        ready = dict(self._poll.poll(_POLL_MS))
        for ring, _ in self._rings.values():
            if ready.get(ring.fileno(), 0) & select.POLLERR:
                ring.clear_error()
        return ready

    def _read_rings(self) -> None:
        now = time.time_ns()
        for ring, point in self._all_rings():
            reconstruction = self._reconstructions.get((point.link, point.direction))
            dropped = self._add_counts(ring, point)
            counted_at = time.time_ns()
            while frames := ring.read():
                self._merge.add(point, frames, reconstruction)
            if dropped:
                # All frames before the drop have been read: the kernel drops frames when all blocks are full.
                self._mark_gap(point, self._counted_at, counted_at)
        self._counted_at = now
        while self._retiring and self._retiring[0][0] < now:
            _, ring, point = self._retiring.pop(0)
            self._add_counts(ring, point)
            ring.close()
        captured = {point.link for _, point in self._all_rings()}
        # The relay reports on all its links.
        self._merge.add_fates(fates for fates in self._watch.read() if fates.link in captured)
        self._read_classifiers()

    def _read_classifiers(self) -> None:
        """Read the frame counters of the loss classifiers whose fates are reconstructed, until the frame numbers are known,
        and after changes of the cluster."""
        for ring, point in self._rings.values():
            reconstruction = self._reconstructions.get((point.link, point.direction))
            if reconstruction is None or not (reconstruction.needs_reading or self._verify_classifiers):
                continue
            assert self._wire is not None  # opened by `begin`
            with suppress(FileNotFoundError), open_attached(self._wire.route, ring.index) as classifier:
                if classifier is not None:
                    reconstruction.read(classifier)
        self._verify_classifiers = self._is_changing

    def _prepare_reconstructions(self, state: State, points: Iterable[Point], since: int) -> None:
        """Prepare a fate reconstruction for each loss classifier of the state, which may not be in force yet. since: time
        since which every frame is captured, ns."""
        links = {link.name: link for link in state.layout.links}
        reconstructions: dict[tuple[str, DirectionName], FateReconstruction] = {}
        for point in points:
            key = point.link, point.direction
            impairment = in_force(links[point.link], point.direction, state.injected).impairment
            losses = Impairment(loss=impairment.loss, gemodel=impairment.gemodel, loss_pattern=impairment.loss_pattern)
            if point.datapath != "tc" or not losses:
                continue
            reconstruction = self._reconstructions.get(key)
            if reconstruction is None or reconstruction.losses != losses:
                reconstruction = FateReconstruction(*key, state.layout.seed, losses, since, reconstruction)
                self._all_reconstructions.append(reconstruction)
                self._merge.reconstruct(point, reconstruction, since)
            reconstructions[key] = reconstruction
        self._reconstructions = reconstructions

    def _check_state(self) -> None:
        """Follow changes of the cluster's state and interfaces."""
        now = time.time_ns()
        try:
            status = os.stat(self._path)
        except FileNotFoundError:
            self.gone = True
            return
        if self._monitor.drain() or (status.st_ino, status.st_mtime_ns) != self._state_stamp:
            state = self._read()
            if state is not None:
                self._is_changing, self._verify_classifiers = state.phase != "up", True
                self._open_current_rings(state, retry=True)
        self._checked_at = now

    def _read(self) -> State | None:
        with suppress(FileNotFoundError):
            status = os.stat(self._path)
            self._state_stamp = status.st_ino, status.st_mtime_ns
        return self._store.read(self._cluster)

    def _open_current_rings(self, state: State, *, retry: bool) -> None:
        """Open rings at the links' current capture points, and close those at other points. While links are being rewired,
        the rings at the old points stay open, too.

        retry: retry later if a capture point does not exist yet; otherwise KernelError is raised.
        """
        try:
            current = points(state, links_of(state.layout, self._target))
        except NotFoundError:
            current = []  # the target has been removed from the cluster
        gaps: list[Point] = []  # points at which frames are missing
        by_key = {(point.namespace, point.device): point for point in current}
        for key, (ring, point) in list(self._rings.items()):
            if key in by_key and ring.is_current():
                if state.phase == "up" or by_key[key].end == point.end:
                    self._rings[key] = ring, by_key[key]
            elif state.phase == "up" or not ring.is_current():
                self._retire(key, ring, point)
        size = max(_MIN_RING, min(_MAX_RING, _RING_MEMORY // max(1, len(by_key))))
        for key, point in by_key.items():
            if key in self._rings:
                continue
            try:
                ring = Ring(*key, size)
            except OSError as error:
                if not retry:
                    reason = error.strerror or error
                    raise KernelError(
                        f"{point.end} of {point.link} cannot be captured at {point.device}: {reason}"
                    ) from error
                self._state_stamp = 0, 0
                continue
            self._rings[key] = ring, point
            self._poll.register(ring.fileno(), select.POLLIN)
            if retry:
                # Frames may have passed before the ring was opened.
                missing_frames = (
                    self._frame_count(ring) - self._base_counts.get(ring.index, 0) - ring.update_counts().received
                )
                if missing_frames > 0:
                    self.dropped[str(point.end)] += missing_frames
                    gaps.append(point)
        if not retry:
            self._counted_at = time.time_ns()
        self._prepare_reconstructions(state, current, self._checked_at if retry else self._counted_at)
        for point in gaps:
            self._mark_gap(point, self._checked_at - RELEASE_DELAY, time.time_ns())

    def _retire(self, key: tuple[str, str], ring: Ring, point: Point) -> None:
        """Stop capturing at a point after its last frames have been read."""
        self._base_counts[ring.index] = self._frame_count(ring)
        self._poll.unregister(ring.fileno())
        self._retiring.append((time.time_ns() + RELEASE_DELAY, ring, point))
        del self._rings[key]

    def _frame_count(self, ring: Ring) -> int:
        """Return the interface's frame count; 0 if it is not in the wire namespace."""
        assert self._wire is not None  # opened by `begin`
        try:
            return _frame_count_of(rtnl_dump.interface(self._wire.route, ring.index))
        except (OSError, RequestError):
            return 0

    def _all_rings(self) -> list[tuple[Ring, Point]]:
        return [*self._rings.values(), *((ring, point) for _, ring, point in self._retiring)]

    def _mark_gap(self, point: Point, start: int, end: int) -> None:
        """Note for the fate reconstruction that frames at a point are missing between these times."""
        reconstruction = self._reconstructions.get((point.link, point.direction))
        if reconstruction is not None:
            reconstruction.mark_gap(start, end)

    def _add_counts(self, ring: Ring, point: Point) -> int:
        """Add the ring's counts; return the number of frames dropped since the last call."""
        counts = ring.update_counts()
        dropped = counts.dropped
        self.dropped[str(point.end)] += dropped
        self.cut += counts.cut
        counts.dropped = counts.cut = 0
        return dropped

    def _close_wire(self) -> None:
        if self._wire is not None:
            self._wire.close()

    def _close_rings(self) -> None:
        for ring, _ in self._all_rings():
            ring.close()


def _frame_count_of(interface: rtnl_dump.Interface) -> int:
    return interface.counters.rx_packets + interface.counters.tx_packets

"""Hearing links of a running cluster: rings on all their places, what the relay tells of their frames, and both joined.

Who carries a link may change while it is heard, and with it the places where it is to be heard: the state says so.
"""

from __future__ import annotations

import os
import select
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from typing import Final

from testbed.cluster import names
from testbed.cluster.injections import DirectionName, in_force, links_of
from testbed.cluster.state import State, Store
from testbed.errors import ConflictError, KernelError, NotFoundError
from testbed.kernel import namespaces, survey
from testbed.kernel.loss_classifier import opened
from testbed.kernel.netlink import RequestError
from testbed.kernel.news import News
from testbed.kernel.rings import Ring
from testbed.observe.foretelling import Foretelling
from testbed.observe.joining import Joining, Seen
from testbed.observe.points import Point, points
from testbed.runtime.watching import Watch
from testbed.spec.layout import Impairment

HOLD: Final = 100_000_000
"""Nanoseconds for which a frame is held back: until then it is in our hands if the kernel has had any time at all."""

PATIENCE: Final = 10.0
"""Seconds for another command's work on the cluster to be over."""

_EVERY: Final = 50_000_000  # ns between two times at which frames are given out
_MOMENT: Final = 20  # ms between two looks at the state
_MEMORY: Final = 128 << 20  # bytes of all rings together, of which none has more or less than this
_MOST, _LEAST = 16 << 20, 1 << 20


class Listening:
    """It hears from `begin` until `close`. dropped: by end, frames that the kernel dropped since we had not read in time."""

    def __init__(self, store: Store, cluster: str, target: str) -> None:
        """target: as for injections: a link, a node or a switch (all its links), "all". NotFoundError says what there is."""
        self.dropped: Counter[str] = Counter()
        self.cut = 0
        """Frames that were longer than what a ring holds of them."""
        self.gone = False
        """Whether the cluster has been taken down."""
        self.begun = 0
        self._store = store
        self._cluster = cluster
        self._target = target
        self._path = store.directory(cluster) / "state.json"
        self._known = (0, 0)  # of the state's file
        self._rings: dict[tuple[str, str], tuple[Ring, Point]] = {}
        self._leaving: list[tuple[int, Ring, Point]] = []  # until when they are read on
        self._foretellings: dict[tuple[str, DirectionName], Foretelling] = {}
        self._foretold: list[Foretelling] = []  # those and earlier ones
        self._wire: namespaces.OpenNamespace | None = None
        self._stack = ExitStack()
        self._poll = select.poll()
        self._joining = Joining(0)
        self._passed: dict[int, int] = {}  # frames that an interface of the wire namespace had carried, when not heard
        self._due = 0  # when frames are given out next
        self._looked = 0  # when the state was looked at last
        links_of(store.choose(cluster).layout, target)

    def begin(self) -> None:
        """Hear every frame that passes after this has returned. KernelError for a place that is not there."""
        deadline = time.monotonic() + PATIENCE
        while (state := self._read()) is not None and state.phase != "up":
            if time.monotonic() > deadline:
                raise ConflictError(f"another testbed command is at work on cluster {self._cluster}")
            time.sleep(_MOMENT / 1000)
        if state is None:
            raise NotFoundError(f"cluster {self._cluster} has been taken down")
        self._watch = Watch(self._path.parent)
        self._stack.callback(self._watch.close)
        self._stack.callback(self._close_rings)
        self._stack.callback(self._close_wire)
        self._news = News(state.namespaces[names.WIRE])
        self._stack.callback(self._news.close)
        self._poll.register(self._news.fileno(), select.POLLIN)
        self._wire = namespaces.open_path(state.namespaces[names.WIRE])
        self._follow(state, hurry=False)
        self._passed = {one.index: _carried(one) for one in survey.interfaces(self._wire.route)}
        self._watch.catch_up(self._links())
        self._read_classifiers()
        for ring, _ in self._rings.values():
            ring.look().dropped = 0
        self.begun = self._looked = time.time_ns()
        self._joining = Joining(self.begun)

    def close(self) -> None:
        self._stack.close()

    @property
    def points(self) -> list[Point]:
        """Where it hears now."""
        return [point for _, point in self._rings.values()]

    @property
    def late(self) -> int:
        """Frames that came when later ones had been given out."""
        return self._joining.late

    @property
    def untold(self) -> int:
        """Frames that met something of which the relay could not tell us in time, or that we did not hear."""
        return self._watch.untold + self._joining.unplaced

    @property
    def undecided(self) -> int:
        """Frames of which it is not known whether a classifier has lost them."""
        return sum(foretelling.undecided for foretelling in self._foretold)

    def wait(self, stop: int) -> bool:
        """Until frames have come, or for a moment; whether the descriptor `stop` can be read."""
        self._poll.register(stop, select.POLLIN)
        ready = self._sleep()
        self._poll.unregister(stop)
        return stop in ready

    def frames(self) -> list[Seen]:
        """Those that are ready, in the order of time."""
        now = time.time_ns()
        self._look()
        if now < self._due:
            self._take()
            return []
        return self._ready(now, now - HOLD)

    def rest(self) -> Iterator[list[Seen]]:
        """All that have passed until now, as they become ready."""
        end = time.time_ns()
        while (now := time.time_ns()) <= end + HOLD:
            self._sleep()
            self._look()
            yield self._ready(now, min(end, now - HOLD))
        yield self._ready(now, end)

    def _ready(self, now: int, until: int) -> list[Seen]:
        self._watch.catch_up(self._links())
        self._take()
        self._due = now + _EVERY
        return self._joining.ready(until, now - HOLD)

    def _links(self) -> list[str]:
        """Those that a relay carries."""
        return sorted({point.link for _, point in self._rings.values() if point.datapath == "relay"})

    def account(self) -> None:
        """Bring the counts up to date."""
        for ring, point in self._all_rings():
            self._account(ring, point)

    def _sleep(self) -> dict[int, int]:
        ready = dict(self._poll.poll(_MOMENT))
        for ring, _ in self._rings.values():
            if ready.get(ring.fileno(), 0) & select.POLLERR:
                ring.forget_error()
        return ready

    def _take(self) -> None:
        now = time.time_ns()
        for ring, point in self._all_rings():
            foretelling = self._foretellings.get((point.link, point.direction))
            if foretelling is not None and ring.counts.dropped < ring.look().dropped:
                foretelling.forget()
            while frames := ring.read():
                self._joining.hear(point, frames, foretelling)
        while self._leaving and self._leaving[0][0] < now:
            _, ring, point = self._leaving.pop(0)
            self._account(ring, point)
            ring.close()
        self._joining.tell(self._watch.read())
        self._read_classifiers()

    def _read_classifiers(self) -> None:
        """What those have counted whose fates are computed, as long as that is needed."""
        for ring, point in self._rings.values():
            foretelling = self._foretellings.get((point.link, point.direction))
            if foretelling is None or not foretelling.wants:
                continue
            assert self._wire is not None  # since the beginning
            with suppress(FileNotFoundError), opened(self._wire.route, ring.index) as classifier:
                if classifier is not None:
                    foretelling.read(classifier)

    def _foretell(self, state: State, points: Iterable[Point]) -> None:
        """Have everything ready for the classifiers that there are or are about to be."""
        links = {link.name: link for link in state.layout.links}
        kept: dict[tuple[str, DirectionName], Foretelling] = {}
        for point in points:
            place = point.link, point.direction
            asked = in_force(links[point.link], point.direction, state.injected).impairment
            losses = Impairment(loss=asked.loss, gemodel=asked.gemodel, loss_pattern=asked.loss_pattern)
            if point.datapath != "tc" or not losses:
                continue
            known = self._foretellings.get(place)
            if known is None or known.losses != losses:
                first = known is None
                known = Foretelling(*place, state.layout.seed, losses, known)
                self._foretold.append(known)
                if first:
                    self._joining.foretell(point, known, self._looked)
            kept[place] = known
        self._foretellings = kept

    def _look(self) -> None:
        """Whether the cluster is wired otherwise by now."""
        now = time.time_ns()
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            self.gone = True
            return
        if self._news.heard() or (found.st_ino, found.st_mtime_ns) != self._known:
            state = self._read()
            if state is not None:
                self._follow(state, hurry=True)
        self._looked = now

    def _read(self) -> State | None:
        with suppress(FileNotFoundError):
            found = os.stat(self._path)
            self._known = found.st_ino, found.st_mtime_ns
        return self._store.read(self._cluster)

    def _follow(self, state: State, *, hurry: bool) -> None:
        """Hear where the links are to be heard now. hurry: a place that is not there yet is looked for again.

        While they are being wired otherwise, the old places are heard, too.
        """
        try:
            wanted = points(state, links_of(state.layout, self._target))
        except NotFoundError:
            wanted = []  # it has gone from the cluster
        self._foretell(state, wanted)
        kept = {(point.namespace, point.device): point for point in wanted}
        for place, (ring, point) in list(self._rings.items()):
            if place in kept and ring.still_there():
                if state.phase == "up" or kept[place].end == point.end:
                    self._rings[place] = ring, kept[place]
            elif state.phase == "up" or not ring.still_there():
                self._leave(place, ring, point)
        size = max(_LEAST, min(_MOST, _MEMORY // max(1, len(kept))))
        for place, point in kept.items():
            if place in self._rings:
                continue
            try:
                ring = Ring(*place, size)
            except OSError as error:
                if not hurry:
                    reason = error.strerror or error
                    raise KernelError(
                        f"{point.end} of {point.link} cannot be heard at {point.device}: {reason}"
                    ) from error
                self._known = 0, 0
                continue
            self._rings[place] = ring, point
            self._poll.register(ring.fileno(), select.POLLIN)
            if hurry:
                # Frames may have passed before we knew of the place.
                missed = self._passed_now(ring) - self._passed.get(ring.index, 0) - ring.look().taken
                self.dropped[str(point.end)] += max(0, missed)

    def _leave(self, place: tuple[str, str], ring: Ring, point: Point) -> None:
        """Its last frames are still to be handed over."""
        self._passed[ring.index] = self._passed_now(ring)
        self._poll.unregister(ring.fileno())
        self._leaving.append((time.time_ns() + HOLD, ring, point))
        del self._rings[place]

    def _passed_now(self, ring: Ring) -> int:
        """Frames that the interface has carried until now; 0 where it is not, or no more, one of the wire namespace."""
        assert self._wire is not None  # since the beginning
        try:
            return _carried(survey.interface(self._wire.route, ring.index))
        except (OSError, RequestError):
            return 0

    def _all_rings(self) -> list[tuple[Ring, Point]]:
        return [*self._rings.values(), *((ring, point) for _, ring, point in self._leaving)]

    def _account(self, ring: Ring, point: Point) -> None:
        counts = ring.look()
        self.dropped[str(point.end)] += counts.dropped
        self.cut += counts.cut
        counts.dropped = counts.cut = 0

    def _close_wire(self) -> None:
        if self._wire is not None:
            self._wire.close()

    def _close_rings(self) -> None:
        for ring, _ in self._all_rings():
            ring.close()


def _carried(interface: survey.Interface) -> int:
    return interface.counters.rx_packets + interface.counters.tx_packets

"""What a mapper does that leads: it explores, makes routes, and looks after both, for as long as it leads.

Written as a generator that gives what it waits for: a batch of probes, or a pause.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Protocol

from protocols.am2.mapper.counters import Counters
from protocols.am2.mapper.exploring import explore
from protocols.am2.mapper.prober import Batch, Found
from protocols.am2.mapper.settings import Settings
from protocols.am2.mapper.topology import ContradictionError, Topology
from protocols.am2.mapper.watching import Known, Silent


@dataclass(frozen=True, slots=True)
class Pause:
    """Until that long from now, or until somebody hints that it should look again."""

    time: int


Duty = Generator[Batch | Pause, int, None]
"""Is sent the time whenever it is resumed."""


class Realm(Protocol):
    """What a leader tells of what it finds."""

    def adopt(self, topology: Topology) -> None:
        """This is the network now."""
        ...

    def seen(self, hosts: dict[int, Found]) -> None:
        """The network is as it was, and these hosts have answered."""
        ...


def lead(me: int, settings: Settings, counters: Counters, lossy: Callable[[], bool], realm: Realm) -> Duty:
    """For ever. The first it gives is a pause of nothing, so that it can be sent the time from then on."""
    yield Pause(0)
    while True:
        counters.explorations += 1
        try:
            topology = yield from _explored(me, settings, lossy)
        except ContradictionError:
            counters.contradictions += 1
            yield Pause(settings.timeout)
            continue
        realm.adopt(topology)
        yield from _watch(topology, settings, counters, realm)


def _explored(me: int, settings: Settings, lossy: Callable[[], bool]) -> Generator[Batch | Pause, int, Topology]:
    exploration = explore(me, settings.ports, lossy)
    try:
        while True:
            yield next(exploration)
    except StopIteration as stop:
        topology: Topology = stop.value
        return topology


def _watch(topology: Topology, settings: Settings, counters: Counters, realm: Realm) -> Duty:
    """Until something has changed, or it is time to explore again."""
    turn = 0
    began: int | None = None
    while True:
        now = yield Pause(settings.watch)
        began = now if began is None else began
        known = Known(topology)
        yield known
        if known.broken:
            break
        realm.seen(known.answers)
        appeared = Silent(topology, settings.ports, settings.slices, turn)
        yield appeared
        if appeared.appeared:
            break
        counters.watches += 1
        turn += 1
        if settings.refresh and now - began >= settings.refresh:
            return
    counters.changes += 1

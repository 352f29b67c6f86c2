"""The duty of a leading mapper: explore, make routes, and maintain both, as long as it leads.

It is a generator that yields what it waits for: a batch of probes, or a pause.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Protocol

from protocols.myrinet.mapper.counters import Counters
from protocols.myrinet.mapper.explorer import explore
from protocols.myrinet.mapper.map_watch import AbsenceCheck, MapCheck, SilentPortCheck
from protocols.myrinet.mapper.network_map import ContradictionError, Topology
from protocols.myrinet.mapper.prober import Batch, HostAnswer
from protocols.myrinet.mapper.settings import Settings


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait for that many nanoseconds, or until a hint to check the map."""

    time: int


Duty = Generator[Batch | Pause, int, None]
"""A leader's generator, which is sent the time whenever it is resumed."""


class MapListener(Protocol):
    """Receiver of a leader's findings."""

    def is_doubtful(self, topology: Topology) -> bool:
        """Whether a map is not believed before it is made again, since it has no host, where there were some."""
        ...

    def adopt(self, topology: Topology) -> None:
        """Use a new map of the network."""
        ...

    def seen(self, hosts: dict[int, HostAnswer]) -> None:
        """Note that the network is unchanged, and that these hosts have answered."""
        ...


def lead(me: int, settings: Settings, counters: Counters, lossy: Callable[[], bool], realm: MapListener) -> Duty:
    """Lead for ever. The first item is a pause of 0, so that the time can be sent from then on."""
    yield Pause(0)
    while True:
        counters.explorations += 1
        try:
            topology = yield from _explored(me, settings, lossy)
            if realm.is_doubtful(topology):
                yield Pause(settings.patience)
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


def _watch(topology: Topology, settings: Settings, counters: Counters, realm: MapListener) -> Duty:
    """Check the map until more has changed than hosts at ports of their own, or it is time to explore again."""
    turn = 0
    began: int | None = None
    while True:
        now = yield Pause(settings.watch)
        began = now if began is None else began
        changed = yield from _checked(topology, settings, turn, realm)
        if changed is None:
            break
        if changed is topology:
            counters.watches += 1
        else:
            counters.changes += 1
            topology = changed
            realm.adopt(topology)
        turn += 1
        if settings.refresh and now - began >= settings.refresh:
            return
    counters.changes += 1


def _checked(
    topology: Topology, settings: Settings, turn: int, realm: MapListener
) -> Generator[Batch | Pause, int, Topology | None]:
    """Check the map once. Returns it, possibly with other hosts; None: the network is to be explored again."""
    known = MapCheck(topology)
    yield known
    if known.is_wrong:
        return None
    if known.missing:
        absence = AbsenceCheck(topology, known.missing)
        yield absence
        return None if absence.is_wrong else topology.without_hosts(absence.gone) if absence.gone else topology
    realm.seen(known.answers)
    appeared = SilentPortCheck(topology, settings.ports, settings.slices, turn)
    yield appeared
    if appeared.is_wrong:
        return None
    for place, host in appeared.hosts.items():
        topology = topology.with_host(place, host)
    return topology

"""The task of the leading mapper: explore the network, and keep the map up to date while it leads.

The task is a generator that yields a batch of probes to run, or a pause.
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
    """Request to wait for `time` nanoseconds, or until a hint to check the map."""

    time: int


LeaderTask = Generator[Batch | Pause, int, None]
"""Generator of the leading mapper; the value sent to it is the time."""


class MapListener(Protocol):
    """Receiver of a leader's maps."""

    def is_doubtful(self, topology: Topology) -> bool:
        """Whether another exploration must confirm a map, since all hosts seem to have disappeared."""
        ...

    def adopt(self, topology: Topology) -> None:
        """Use a new map of the network."""
        ...

    def on_unchanged(self, hosts: dict[int, HostAnswer]) -> None:
        """Handle a check that found the map unchanged. hosts: those that have answered."""
        ...


def lead(
    me: int, settings: Settings, counters: Counters, has_losses: Callable[[], bool], listener: MapListener
) -> LeaderTask:
    """Lead until the generator is closed. me: number of the mapper's own NIC. The generator first yields a pause of 0,
    so that the time can be sent to it afterwards."""
    yield Pause(0)
    while True:
        counters.explorations += 1
        try:
            topology = yield from _explore(me, settings, has_losses)
            if listener.is_doubtful(topology):
                yield Pause(settings.patience)
                topology = yield from _explore(me, settings, has_losses)
        except ContradictionError:
            counters.contradictions += 1
            yield Pause(settings.timeout)
            continue
        listener.adopt(topology)
        yield from _watch(topology, settings, counters, listener)


def _explore(me: int, settings: Settings, has_losses: Callable[[], bool]) -> Generator[Batch | Pause, int, Topology]:
    exploration = explore(me, settings.ports, has_losses)
    try:
        while True:
            yield next(exploration)
    except StopIteration as stop:
        topology: Topology = stop.value
        return topology


def _watch(topology: Topology, settings: Settings, counters: Counters, listener: MapListener) -> LeaderTask:
    """Check the map until a change requires an exploration, or the next exploration is due."""
    turn = 0
    start_time: int | None = None
    while True:
        now = yield Pause(settings.watch)
        start_time = now if start_time is None else start_time
        checked_topology = yield from _check_map(topology, settings, turn, listener)
        if checked_topology is None:
            break
        if checked_topology is topology:
            counters.watches += 1
        else:
            counters.changes += 1
            topology = checked_topology
            listener.adopt(topology)
        turn += 1
        if settings.refresh and now - start_time >= settings.refresh:
            return
    counters.changes += 1


def _check_map(
    topology: Topology, settings: Settings, turn: int, listener: MapListener
) -> Generator[Batch | Pause, int, Topology | None]:
    """Check the map once. Returns the map, a map with changed hosts, or None if a new exploration is required. turn:
    number of the check, which selects the silent ports that are probed."""
    check = MapCheck(topology)
    yield check
    if check.is_wrong:
        return None
    if check.missing:
        absence = AbsenceCheck(topology, check.missing)
        yield absence
        return None if absence.is_wrong else topology.without_hosts(absence.gone) if absence.gone else topology
    listener.on_unchanged(check.answers)
    silent_ports = SilentPortCheck(topology, settings.ports, settings.slices, turn)
    yield silent_ports
    if silent_ports.is_wrong:
        return None
    for place, host in silent_ports.hosts.items():
        topology = topology.with_host(place, host)
    return topology

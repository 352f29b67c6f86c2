"""Distribution of tables to hosts: a limited number of parts in flight, each resent until it is acknowledged."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from protocols.core.timers import Timers
from protocols.myrinet.envelope import Route
from protocols.myrinet.mapper.counters import Counters
from protocols.myrinet.mapper.prober import Pacer
from protocols.myrinet.mapper.route_tables import Table, parts_of
from protocols.myrinet.mapper.settings import Settings


@dataclass(frozen=True, slots=True)
class TablePart:
    """One part of a table for a host. route: to the host."""

    host: int
    part: int
    parts: int
    table: Table
    route: Route
    payload: bytes


class Distributor:
    """Distributor of tables. send: sends a parcel."""

    __slots__ = ("_counters", "_pacer", "_queue", "_send", "_settings", "_timers", "_under_way")

    def __init__(self, settings: Settings, counters: Counters, pacer: Pacer, send: Callable[[TablePart], None]) -> None:
        self._settings, self._counters, self._pacer, self._send = settings, counters, pacer, send
        self._queue: deque[tuple[TablePart, int]] = deque()  # with the number of its sendings
        self._under_way: dict[tuple[int, int], tuple[TablePart, int]] = {}
        self._timers: Timers[tuple[int, int]] = Timers()

    @property
    def deadline(self) -> int | None:
        """Time at which `tick` is due, or None."""
        if self._queue and len(self._under_way) < self._settings.parts:
            return self._pacer.free
        return self._timers.deadline

    def brings(self, host: int) -> bool:
        """Whether a table for that host is in flight or queued."""
        return any(parcel.host == host for parcel, _ in (*self._queue, *self._under_way.values()))

    def bring(self, host: int, table: Table, route: Route, way_back: Route) -> None:
        """Queue a table for a host, replacing any other table for it. `tick` sends it."""
        self._forget(host)
        payloads = parts_of(table, way_back, self._settings.chunk)
        for part, payload in enumerate(payloads):
            self._queue.append((TablePart(host, part, len(payloads), table, route, payload), 0))

    def stop(self) -> None:
        self._queue.clear()
        self._under_way.clear()
        self._timers = Timers()

    def acknowledged(self, now: int, host: int, version: tuple[int, int], part: int) -> None:
        sent = self._under_way.get((host, part))
        if sent is not None and sent[0].table.version == version:
            del self._under_way[host, part]
            self._timers.cancel((host, part))
            self.on_timer(now)

    def on_timer(self, now: int) -> None:
        for key in self._timers.expired(now):
            parcel, tries = self._under_way.pop(key)
            if tries < self._settings.most:
                self._queue.append((parcel, tries))
            else:
                # If the host lives, the next check of the map shows which table it has.
                self._counters.tables_given_up += 1
                self._forget(parcel.host)
        while self._queue and len(self._under_way) < self._settings.parts and self._pacer.take(now):
            parcel, tries = self._queue.popleft()
            key = parcel.host, parcel.part
            self._under_way[key] = parcel, tries + 1
            self._timers.set(key, now + self._settings.timeout)
            self._counters.parts_sent += 1
            self._send(parcel)

    def _forget(self, host: int) -> None:
        self._queue = deque(waiting for waiting in self._queue if waiting[0].host != host)
        for key in [key for key in self._under_way if key[0] == host]:
            del self._under_way[key]
            self._timers.cancel(key)

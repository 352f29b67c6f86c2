"""Distribution of tables to hosts: a limited number of parts in flight, each resent until it is acknowledged."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from protocols.core.timers import Timers
from protocols.myrinet.envelope import Route
from protocols.myrinet.mapper.counters import Counters
from protocols.myrinet.mapper.prober import Pacer
from protocols.myrinet.mapper.route_tables import Table, split_table
from protocols.myrinet.mapper.settings import Settings


@dataclass(frozen=True, slots=True)
class TablePart:
    """One part of a table for a host. part: number of the part. part_count: number of the table's parts. route: to the
    host."""

    host: int
    part: int
    part_count: int
    table: Table
    route: Route
    payload: bytes


class Distributor:
    """Distributor of route tables to hosts. send: sends a part."""

    __slots__ = ("_counters", "_in_flight", "_pacer", "_queue", "_send", "_settings", "_timers")

    def __init__(self, settings: Settings, counters: Counters, pacer: Pacer, send: Callable[[TablePart], None]) -> None:
        self._settings, self._counters, self._pacer, self._send = settings, counters, pacer, send
        self._queue: deque[tuple[TablePart, int]] = deque()  # part, number of transmissions
        self._in_flight: dict[tuple[int, int], tuple[TablePart, int]] = {}  # by host and number of the part
        self._timers: Timers[tuple[int, int]] = Timers()

    @property
    def deadline(self) -> int | None:
        """Time at which `on_timer` is due, or None."""
        if self._queue and len(self._in_flight) < self._settings.parts:
            return self._pacer.next_send_time
        return self._timers.deadline

    def has_table_for(self, host: int) -> bool:
        """Whether a table for that host is in flight or queued."""
        return any(part_message.host == host for part_message, _ in (*self._queue, *self._in_flight.values()))

    def queue_table(self, host: int, table: Table, route: Route, return_route: Route) -> None:
        """Queue a table for a host, replacing an earlier table for it. `on_timer` sends it. route, return_route: to the
        host and back."""
        self._remove(host)
        payloads = split_table(table, return_route, self._settings.chunk)
        for part, payload in enumerate(payloads):
            self._queue.append((TablePart(host, part, len(payloads), table, route, payload), 0))

    def stop(self) -> None:
        """Discard all tables that are not acknowledged."""
        self._queue.clear()
        self._in_flight.clear()
        self._timers = Timers()

    def on_acknowledged(self, now: int, host: int, version: tuple[int, int], part: int) -> None:
        """Handle a host's acknowledgement of a part."""
        sent = self._in_flight.get((host, part))
        if sent is not None and sent[0].table.version == version:
            del self._in_flight[host, part]
            self._timers.cancel((host, part))
            self.on_timer(now)

    def on_timer(self, now: int) -> None:
        """Send the parts that may be sent, and resend or give up unacknowledged ones."""
        for key in self._timers.expired(now):
            part_message, tries = self._in_flight.pop(key)
            if tries < self._settings.max_tries:
                self._queue.append((part_message, tries))
            else:
                # If the host is up, the next check of the map shows which table it has.
                self._counters.tables_given_up += 1
                self._remove(part_message.host)
        while self._queue and len(self._in_flight) < self._settings.parts and self._pacer.take(now):
            part_message, tries = self._queue.popleft()
            key = part_message.host, part_message.part
            self._in_flight[key] = part_message, tries + 1
            self._timers.set(key, now + self._settings.timeout)
            self._counters.parts_sent += 1
            self._send(part_message)

    def _remove(self, host: int) -> None:
        """Discard the table for a host."""
        self._queue = deque(waiting for waiting in self._queue if waiting[0].host != host)
        for key in [key for key in self._in_flight if key[0] == host]:
            del self._in_flight[key]
            self._timers.cancel(key)

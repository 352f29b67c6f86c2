"""A relay process: it runs in the wire namespace, carries links by its orders and answers commands.

The cluster's supervisor starts and restarts it; when the supervisor dies, it starts a new one and continues to carry
links. It records an event when it cannot keep up.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from testbed.engine.loop import Loop
from testbed.errors import NotFoundError
from testbed.fates.fate_counters import CAUSES
from testbed.fates.records import Record
from testbed.fields import known_fields
from testbed.kernel.filesystem import replace_file
from testbed.kernel.packet_socket import Statistics
from testbed.kernel.waiter import Waiter
from testbed.runtime import event_log
from testbed.runtime.calls import Listener, PendingReply
from testbed.runtime.logs import ROOM, LogFile
from testbed.runtime.relay.lateness import LATE, LatenessWarnings
from testbed.runtime.relay.orders import DIRECTIONS, Orders, RelayPaths
from testbed.runtime.relay.relay import AnyLink, Relay
from testbed.runtime.relay.relay_watch import Watchers
from testbed.runtime.supervision import Supervision
from testbed.runtime.tally_file import TallyFile

_WATCH: Final = 1_000_000_000  # ns between checks of lateness and losses
_NICENESS: Final = -10  # without permission for real-time priority
_COUNTERS: Final = (*CAUSES, "corrupted", "duplicated", "reordered", "delayed")


class Process:
    """One process of a relay: its share of the links, its log, watchers and supervision."""

    def __init__(self, places: RelayPaths, number: int, command: Sequence[str]) -> None:
        """command: starts a supervisor."""
        self._places = places
        self._command = command
        self._number = number
        self._waiter = Waiter()
        self._loop = Loop(self._waiter)
        self._tallies = TallyFile(places.tallies(number))
        self._relay = Relay(self._loop, known_fields(), self._tallies)
        self._watchers = Watchers(self._loop, places.directory)
        self._begun = time.time_ns()
        self._behind: dict[object, LatenessWarnings] = {}
        self._log: LogFile | None = None

    def prepare(self) -> None:
        """Put the orders in force. Raises as `Relay.load`, and NotFoundError if there are no links to carry."""
        _go_first()
        self._load()
        self._tallies.settle()
        if not self._relay.links:
            raise NotFoundError("there are no links to carry")
        supervision = Supervision(self._places.directory, self._command)
        self._loop.watch(supervision.fileno(), lambda _: supervision.advance())
        Listener(self._loop, self._places.socket(self._number), self._answer)
        self._loop.at(self._loop.now() + _WATCH, self._watch)
        # Garbage collection would stop every link for milliseconds. The code for frames makes no reference cycles,
        # and those made by orders are collected when they are loaded.
        gc.collect()
        gc.freeze()
        gc.disable()

    def run(self) -> None:
        """Carry links until the process is ended."""
        self._loop.run()

    def _answer(self, request: Mapping[str, Any]) -> Mapping[str, object] | PendingReply:
        match request["do"]:
            case "load":
                return {"early": self._load()}
            case "pass through":
                return {"early": self._relay.pass_through(request["links"])}
            case "release":
                later = PendingReply()

                def released(early: dict[str, int]) -> None:
                    later.complete({"early": early})
                    gc.collect()

                self._relay.release(request["links"], released)
                return later
            case "report":
                replace_file(self._places.report(self._number), json.dumps(self._report()))
                return {}
            case "count":
                links = self._relay.links
                return {"links": {name: _counted(links[name]) for name in request["links"] if name in links}}
            case "watch":
                self._watchers.report_links(self._relay.links)
                for name in request["links"]:
                    if name in self._relay.links:
                        self._relay.links[name].catch_up()
                return {}
            case other:
                return {"error": f"the relay does not know how to {other}"}

    def _load(self) -> dict[str, int]:
        orders = self._places.read_orders() or Orders(0)
        self._open_log(orders)
        early = self._relay.load(orders.share(self._number), self._write)
        self._watchers.report_links(self._relay.links)
        gc.collect()  # only objects made since `prepare`
        return early

    def _open_log(self, orders: Orders) -> None:
        if orders.log == (self._log.path if self._log is not None else ""):
            return
        if self._log is not None:
            self._log.close()
        self._log = LogFile(orders.log, ROOM // orders.processes, self._untold) if orders.log else None

    def _untold(self, reason: str) -> None:
        log = self._log.path if self._log is not None else ""
        event_log.record(self._places.directory, "fates untold", log=log, reason=reason)

    def _write(self, record: Record) -> None:
        self._watchers.note(record)
        if self._log is not None:
            self._log.write(record)

    def _report(self) -> dict[str, object]:
        return {
            "pid": os.getpid(),
            "begun": self._begun,
            "time": time.time_ns(),
            "processor": {"used": time.process_time_ns(), "spun": self._waiter.spun},
            "links": {
                name: {direction: _direction(link, direction, self._loop.now()) for direction in DIRECTIONS}
                for name, link in self._relay.links.items()
            },
            "switches": self._relay.switches(),
            "idle_rules": self._relay.idle_rules(),
        }

    def _watch(self, now: int) -> None:
        """Record frames that were late or lost here since the last call."""
        current: dict[object, LatenessWarnings] = {}  # only of present forwarders: new ones count from 0
        for name, link in self._relay.links.items():
            for direction, socket in link.sockets().items():
                forwarder = link.directions[direction]
                behind = current[forwarder] = self._behind.get(forwarder) or LatenessWarnings(now)
                found = behind.take_due(now, forwarder.lateness.late, socket.update_statistics().lost)
                if found is not None:
                    late, lost, span = found
                    event_log.record(
                        self._places.directory,
                        "relay behind",
                        link=name,
                        direction=direction,
                        late=late,
                        limit=LATE,
                        worst=forwarder.lateness.worst,
                        lost=lost,
                        span=span,
                    )
        self._behind = current
        self._loop.at(now + _WATCH, self._watch)


def _go_first() -> None:
    """Take the lowest real-time priority, or else a good niceness: the relay emulates cables, which no program can
    delay.

    Real-time priority gives it a processor within microseconds; with niceness alone, it waits for the running program
    until the next tick, milliseconds later. By default, the kernel reserves a twentieth of a processor from real-time
    processes, so that an overloaded relay does not block the machine; relays of several clusters take turns. Without
    permission for either, it runs like any other process.
    """
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
        return
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, _NICENESS)


def _counted(link: AnyLink) -> dict[str, dict[str, int]]:
    """The non-zero counters of both directions.

    No frame is carried meanwhile, so it contains only what a caller needs every second; a report is ten times the work.
    """
    found = {}
    for direction, forwarder in link.directions.items():
        counters = forwarder.counters
        found[direction] = {name: value for name in _COUNTERS if (value := getattr(counters, name))}
    return found


def _direction(link: AnyLink, direction: str, now: int) -> dict[str, object]:
    """The report of one direction. Lost frames are counted where they came in; a frame that could not be sent is
    counted at the direction whose frames come in on that interface."""
    forwarder, source = link.directions[direction], link.sockets().get(direction)
    statistics = source.update_statistics() if source is not None else Statistics()
    return {
        "counters": forwarder.counters.by_name(),
        "held": forwarder.in_flight,
        "pieces": forwarder.gso_frames,
        "lateness": {
            "p50": forwarder.lateness.quantile(0.5),
            "p99": forwarder.lateness.quantile(0.99),
            "worst": forwarder.lateness.worst,
            "late": forwarder.lateness.late,
            "buckets": list(forwarder.lateness.buckets),
        },
        "emulator": {
            "overrun": statistics.overrun,
            "oversized": statistics.oversized,
            "unsent": statistics.unsent,
            "finished": forwarder.finished,
            "down": statistics.down,
        },
        "rules": {
            name: {"text": handle.text, "matched": handle.matched, "decided": handle.decided}
            for name, handle in forwarder.injected.handles().items()
        },
        **link.more(direction, now),
    }

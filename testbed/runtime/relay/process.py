"""A relay process: it runs in the wire namespace, forwards the links in its orders, and handles commands.

The cluster's supervisor starts and restarts it. When the supervisor dies, the relay process starts a new supervisor and
continues to forward. It records an event when it cannot keep up.
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
from testbed.fates.fate_counters import CAUSES, FATES
from testbed.fates.records import Record
from testbed.fields import known_fields
from testbed.kernel.filesystem import replace_file
from testbed.kernel.packet_socket import Statistics
from testbed.kernel.waiter import Waiter
from testbed.runtime import event_log
from testbed.runtime.calls import Listener, PendingReply
from testbed.runtime.logs import MAX_LOG_SIZE, LogFile
from testbed.runtime.relay.lateness import LATE_THRESHOLD, LatenessWarnings
from testbed.runtime.relay.orders import DIRECTIONS, Orders, RelayPaths
from testbed.runtime.relay.relay import AnyLink, Relay
from testbed.runtime.relay.relay_watch import Watchers
from testbed.runtime.supervision import Supervision
from testbed.runtime.tally_file import TallyFile

_CHECK_INTERVAL: Final = 1_000_000_000  # ns between checks of lateness and losses
_FALLBACK_NICENESS: Final = -10  # for a process without permission for real-time priority
_REPORTED_COUNTERS: Final = (*CAUSES, *FATES, "delivered", "delivered_bytes")


class Process:
    """One process of a relay: its share of the links, its log of fates, its watchers, and the supervision of the
    supervisor."""

    def __init__(self, paths: RelayPaths, number: int, command: Sequence[str]) -> None:
        """number: number of the process, from 0. command: command line that starts a supervisor."""
        self._paths = paths
        self._command = command
        self._number = number
        self._waiter = Waiter()
        self._loop = Loop(self._waiter)
        self._tallies = TallyFile(paths.tallies(number))
        self._relay = Relay(self._loop, known_fields(), self._tallies)
        self._watchers = Watchers(self._loop, paths.directory)
        self._started = time.time_ns()
        self._warnings: dict[object, LatenessWarnings] = {}
        self._log: LogFile | None = None

    def prepare(self) -> None:
        """Apply the orders, and listen for commands. Raises the errors of `RelayPaths.read_orders` and `Relay.load`,
        NotFoundError if the orders have no link for this process, and SystemExit if the cluster is gone."""
        _raise_priority()
        self._load()
        self._tallies.settle()
        if not self._relay.links:
            raise NotFoundError(f"the orders have no link for relay process {self._number}")
        supervision = Supervision(self._paths.directory, self._command)
        self._loop.watch(supervision.fileno(), lambda _: supervision.advance())
        Listener(self._loop, self._paths.socket(self._number), self._handle)
        self._loop.at(self._loop.now() + _CHECK_INTERVAL, self._check_lateness)
        # Garbage collection would stop every link for milliseconds. Forwarding makes no reference cycles; `_load` collects
        # those that orders make.
        gc.collect()
        gc.freeze()
        gc.disable()

    def run(self) -> None:
        """Forward frames until the process is ended."""
        self._loop.run()

    def _handle(self, request: Mapping[str, Any]) -> Mapping[str, object] | PendingReply:
        match request["do"]:
            case "load":
                return {"early": self._load()}
            case "pass through":
                return {"early": self._relay.pass_through(request["links"])}
            case "release":
                pending = PendingReply()

                def on_released(early: dict[str, int]) -> None:
                    pending.complete({"early": early})
                    gc.collect()

                self._relay.release(request["links"], on_released)
                return pending
            case "report":
                replace_file(self._paths.report(self._number), json.dumps(self._report()))
                return {}
            case "count":
                links = self._relay.links
                return {"links": {name: _nonzero_counters(links[name]) for name in request["links"] if name in links}}
            case "watch":
                self._watchers.report_links(self._relay.links)
                for name in request["links"]:
                    if name in self._relay.links:
                        self._relay.links[name].catch_up()
                return {}
            case command:
                return {"error": f"unknown relay command {command!r}"}

    def _load(self) -> dict[str, int]:
        orders = self._paths.read_orders() or Orders(0)
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
        self._log = LogFile(orders.log, MAX_LOG_SIZE // orders.processes, self._on_log_end) if orders.log else None

    def _on_log_end(self, reason: str) -> None:
        log = self._log.path if self._log is not None else ""
        event_log.record_if_possible(self._paths.directory, "fates untold", log=log, reason=reason)

    def _write(self, record: Record) -> None:
        self._watchers.note(record)
        if self._log is not None:
            self._log.write(record)

    def _report(self) -> dict[str, object]:
        return {
            "pid": os.getpid(),
            "begun": self._started,
            "time": time.time_ns(),
            "processor": {"used": time.process_time_ns(), "spun": self._waiter.spun},
            "links": {
                name: {direction: _direction_report(link, direction, self._loop.now()) for direction in DIRECTIONS}
                for name, link in self._relay.links.items()
            },
            "switches": self._relay.switch_counters(),
            "idle_rules": self._relay.idle_rules(),
        }

    def _check_lateness(self, now: int) -> None:
        """Record an event for each direction whose frames were late or lost here since its last warning."""
        current: dict[object, LatenessWarnings] = {}  # by present forwarder; those of a new forwarder count from 0
        for name, link in self._relay.links.items():
            for direction, socket in link.sockets().items():
                forwarder = link.directions[direction]
                warnings = current[forwarder] = self._warnings.get(forwarder) or LatenessWarnings(now)
                warning = warnings.take_due(now, forwarder.lateness.late_frames, socket.update_statistics().lost)
                if warning is not None:
                    late, lost, span = warning
                    event_log.record_if_possible(
                        self._paths.directory,
                        "relay behind",
                        link=name,
                        direction=direction,
                        late=late,
                        limit=LATE_THRESHOLD,
                        worst=forwarder.lateness.worst,
                        lost=lost,
                        span=span,
                    )
        self._warnings = current
        self._loop.at(now + _CHECK_INTERVAL, self._check_lateness)


def _raise_priority() -> None:
    """Take the lowest real-time priority, or else a negative niceness: the relay emulates cables, which no program can
    delay.

    A process with real-time priority gets a processor within microseconds; with niceness alone, it waits for the running
    program until the next tick, milliseconds later. By default, real-time processes get at most 95 % of a processor's time,
    so that an overloaded relay does not block the machine; relays of several clusters take turns. Without permission for
    either, the relay runs like any other process.
    """
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
        return
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, _FALLBACK_NICENESS)


def _nonzero_counters(link: AnyLink) -> dict[str, dict[str, int]]:
    """Return the non-zero counters of both directions.

    No frame is forwarded meanwhile, so only the counters that callers read every second are returned; a report takes ten
    times as long.
    """
    counts = {}
    for direction, forwarder in link.directions.items():
        counters = forwarder.counters
        counts[direction] = {name: value for name in _REPORTED_COUNTERS if (value := getattr(counters, name))}
    return counts


def _direction_report(link: AnyLink, direction: str, now: int) -> dict[str, object]:
    """Make the report of one direction. The emulator's counters are those of the interface on which the direction's frames
    arrive: "unsent" and "down" count frames of the opposite direction, which are sent there."""
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
            "late": forwarder.lateness.late_frames,
            "buckets": list(forwarder.lateness.buckets),
        },
        "emulator": {
            "overrun": statistics.overrun,
            "oversized": statistics.oversized,
            "unsent": statistics.unsent,
            "finished": forwarder.segmented,
            "down": statistics.down,
        },
        "rules": {
            name: {"text": handle.text, "matched": handle.matched, "decided": handle.decided}
            for name, handle in forwarder.injected.handles().items()
        },
        **link.report_fields(direction, now),
    }

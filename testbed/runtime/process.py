"""The relay's process: it stands in the wire namespace, carries links by its orders and answers commands.

It is a child of the cluster's steward and ends with it. What it cannot do in time it says as an event.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import time
from collections.abc import Mapping
from typing import Any, Final

from testbed.engine.loop import Loop
from testbed.fields import known_fields
from testbed.kernel.files import replace_file
from testbed.kernel.netlink import RequestError, RouteSocket
from testbed.kernel.packets import Statistics
from testbed.kernel.survey import interface
from testbed.kernel.waiting import Waiter
from testbed.runtime import events
from testbed.runtime.behind import Behind
from testbed.runtime.calls import Later, Listener
from testbed.runtime.crossbars import CrossbarLink, CrossbarWay
from testbed.runtime.lateness import LATE
from testbed.runtime.logs import ROOM, LogFile
from testbed.runtime.orders import DIRECTIONS, Orders, Places
from testbed.runtime.relay import AnyLink, Carriage, Relay
from testbed.runtime.watching import Watchers
from testbed.wire.counters import CAUSES
from testbed.wire.fates import Record

_WATCH: Final = 1_000_000_000  # ns between two looks at whether we keep up
_NICENESS: Final = -10  # where the kernel keeps real time from us
_COUNTERS: Final = (*CAUSES, "corrupted", "duplicated", "reordered", "delayed")


class Process:
    """One process of a relay: its share of the links, and what surrounds them."""

    def __init__(self, places: Places, number: int) -> None:
        self._places = places
        self._number = number
        self._waiter = Waiter()
        self._loop = Loop(self._waiter)
        self._route = RouteSocket()
        self._relay = Relay(self._loop, known_fields(), self._unclaimed)
        self._watchers = Watchers(self._loop, places.directory)
        self._begun = time.time_ns()
        self._told: dict[Carriage | CrossbarWay, Behind] = {}
        self._log: LogFile | None = None

    def prepare(self) -> None:
        """Have the orders in force. Raises what `Relay.load` does."""
        _go_first()
        self._load()
        Listener(self._loop, self._places.socket(self._number), self._answer)
        self._loop.at(self._loop.now() + _WATCH, self._watch)
        # A collection at some time would stop every link for milliseconds. What runs per frame leaves no cycles behind,
        # and what orders leave is collected with them.
        gc.collect()
        gc.freeze()
        gc.disable()

    def run(self) -> None:
        """Carry links until the process is ended."""
        self._loop.run()

    def _answer(self, request: Mapping[str, Any]) -> Mapping[str, object] | Later:
        match request["do"]:
            case "load":
                return {"early": self._load(), "unclaimed": self._relay.heard()}
            case "release":
                later = Later()

                def released(early: dict[str, int]) -> None:
                    later.tell({"early": early, "unclaimed": self._relay.heard()})
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
                self._watchers.attend(self._relay.links)
                for name in request["links"]:
                    if name in self._relay.links:
                        self._relay.links[name].catch_up()
                return {}
            case other:
                return {"error": f"the relay does not know how to {other}"}

    def _unclaimed(self, index: int) -> int:
        try:
            return interface(self._route, index).counters.rx_unclaimed
        except RequestError:  # it is gone, and whatever it counted
            return 0

    def _load(self) -> dict[str, int]:
        orders = self._places.read_orders() or Orders(0)
        self._open_log(orders)
        early = self._relay.load(orders.share(self._number), self._write)
        self._watchers.attend(self._relay.links)
        gc.collect()  # only what has come since `prepare`
        return early

    def _open_log(self, orders: Orders) -> None:
        if orders.log == (self._log.path if self._log is not None else ""):
            return
        if self._log is not None:
            self._log.close()
        self._log = LogFile(orders.log, ROOM // orders.processes, self._untold) if orders.log else None

    def _untold(self, reason: str) -> None:
        log = self._log.path if self._log is not None else ""
        events.record(self._places.directory, "fates untold", log=log, reason=reason)

    def _write(self, record: Record) -> None:
        self._watchers.note(record)
        if self._log is not None:
            self._log.write(record)

    def _report(self) -> dict[str, object]:
        switches = self._relay.crossbars.switches if self._relay.crossbars is not None else {}
        return {
            "pid": os.getpid(),
            "begun": self._begun,
            "time": time.time_ns(),
            "processor": {"used": time.process_time_ns(), "spun": self._waiter.spun},
            "links": {
                name: {direction: _direction(link, direction, self._loop.now()) for direction in DIRECTIONS}
                for name, link in self._relay.links.items()
            },
            "switches": {name: dict(switch.counters) for name, switch in switches.items()},
            "idle_rules": self._relay.idle_rules(),
        }

    def _watch(self, now: int) -> None:
        """Tell of frames that left too late or were lost in here since the last look."""
        told: dict[
            Carriage | CrossbarWay, Behind
        ] = {}  # only of what is carried now: who carries a link anew counts from 0
        for name, link in self._relay.links.items():
            for direction, socket in link.sockets().items():
                carriage = link.directions[direction]
                behind = told[carriage] = self._told.get(carriage) or Behind(now)
                found = behind.look(now, carriage.lateness.late, socket.look().lost)
                if found is not None:
                    late, lost, span = found
                    events.record(
                        self._places.directory,
                        "relay behind",
                        link=name,
                        direction=direction,
                        late=late,
                        limit=LATE,
                        worst=carriage.lateness.worst,
                        lost=lost,
                        span=span,
                    )
        self._told = told
        self._loop.at(now + _WATCH, self._watch)


def _go_first() -> None:
    """Run before every program that does not insist on more: the relay stands for cables, which nobody's program delays.

    The lowest real-time priority gives it a processor within microseconds; a good niceness alone lets it wait for whoever
    runs until the next tick, which is milliseconds. Usually the kernel keeps a twentieth of a processor from real time,
    so that a relay that is overwhelmed takes no machine down; relays of several clusters take turns. Without the right to
    either, it runs like any other process.
    """
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
        return
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, _NICENESS)


def _counted(link: AnyLink) -> dict[str, dict[str, int]]:
    """The counters of both directions, without those that are 0. While this is gathered no frame is carried, so it is but
    what somebody who looks every second needs; a report is ten times as much work."""
    found = {}
    for direction, carriage in link.directions.items():
        counters = carriage.model.counters
        found[direction] = {name: value for name in _COUNTERS if (value := getattr(counters, name))}
    return found


def _direction(link: AnyLink, direction: str, now: int) -> dict[str, object]:
    """What a report says of one direction. Lost frames are those that came in here; a frame that could not be
    sent is counted with the direction whose frames come in on the interface."""
    carriage, source = link.directions[direction], link.sockets().get(direction)
    model = carriage.model
    statistics = source.look() if source is not None else Statistics()
    uplink = link.uplinks.get(direction) if isinstance(link, CrossbarLink) else None
    return {
        "counters": model.counters.by_name(),
        "held": model.held,
        "pieces": carriage.pieces,
        "queued": list(uplink.waiting if uplink is not None else model.queued(now)),
        "lateness": {
            "p50": carriage.lateness.quantile(0.5),
            "p99": carriage.lateness.quantile(0.99),
            "worst": carriage.lateness.worst,
            "late": carriage.lateness.late,
            "buckets": list(carriage.lateness.buckets),
        },
        "emulator": {
            "overrun": statistics.overrun,
            "oversized": statistics.oversized,
            "unsent": statistics.unsent,
            "finished": carriage.finished,
            "down": statistics.down,
        },
        "rules": {
            name: {"text": handle.text, "matched": handle.matched, "decided": handle.decided}
            for name, handle in carriage.injected.handles().items()
        },
        **({"stops": uplink.stops, "waited": uplink.waited} if uplink is not None else {}),
    }

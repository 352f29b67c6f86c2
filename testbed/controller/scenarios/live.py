"""Faults in namespaces: by injecting and healing on links, and by signals to node processes."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from testbed.cluster.faults import fault_injection
from testbed.cluster.faults.injections import BOTH, DirectionKey, Injection
from testbed.cluster.records.state import State, Store
from testbed.cluster.records.status import links
from testbed.cluster.running_cluster import RunningCluster
from testbed.cluster.services import relay_client
from testbed.controller.scenarios.active import GONE, HOLD, Active, Counts, Programs
from testbed.controller.scenarios.moments import Occurrence
from testbed.controller.scenarios.targets import injection_of, measured_by, senders_of, touched_nodes
from testbed.controller.verdict.accounts import schedstat, take_account
from testbed.errors import KernelError, UnsupportedError
from testbed.kernel.processes import state_of
from testbed.spec.fault_models import Cpu, Crash, Fault, Impair, Incast, Partition, Pause, Reset, Restart, Traffic
from testbed.spec.layout import Layout
from testbed.spec.scenario import Scenario
from testbed.spec.selection import node_of

_CLASSIFIED = ("loss", "gemodel", "loss_pattern")

_SOON = 0.2
"""Seconds for signalled processes to stop."""

_POLL_INTERVAL = 0.001  # seconds

_ON_PROGRAMS = (Crash, Restart, Reset, Pause)
"""Faults that leave the cluster as it is."""

_GRACE = 5.0
"""Seconds after which a fault that was not lifted ends by itself."""


@contextlib.contextmanager
def hold(
    cluster: RunningCluster, scenario: Scenario, seconds: float, layout: Layout, number: int = 0
) -> Iterator[None]:
    """Keep the links with faults on the relay from before a run until after it: a link that changed its datapath while
    programs talk would lose frames that no fault asks for. The process that heals expired faults runs for the whole
    block, too. seconds: that the run may take. layout: of the complete cluster. number: the lowest of the injection."""
    store, state = Store(), cluster.state
    places = _held(state, scenario, layout) if state.asked in ("auto", "relay") else []
    if not (places or scenario.random or any(not isinstance(fault, _ON_PROGRAMS) for fault in scenario.faults)):
        yield
        return
    rules = tuple((place, HOLD) for place in places)
    until = time.monotonic_ns() + round((seconds + _GRACE) * 1e9)
    holding = Injection(number, f"links held for {scenario.name}", rules=rules, until=until)
    done = fault_injection.lay(store, cluster.name, holding)
    try:
        yield
    finally:
        _heal(store, cluster.name, [done.injection.number])


def _held(state: State, scenario: Scenario, layout: Layout) -> list[DirectionKey]:
    faults = list(scenario.faults)
    chance = scenario.random
    if chance is not None and "partition" in chance.kinds:
        faults.append(Partition(shape="halves", at=0))
    if chance is not None and "impair" in chance.kinds:
        faults.append(Impair(on=chance.on, at=0, loss=1.0))
    laid = {
        place[0]
        for fault in faults
        if (injection := injection_of(fault, layout)) is not None
        for place in (*injection.places, *(place for place, _ in injection.rules))
    }
    free = [link.name for link in state.layout.links if link.name in laid and link.datapath in ("auto", "relay")]
    return [(link, direction) for link in free for direction in BOTH]


def _heal(store: Store, name: str, numbers: Collection[int]) -> None:
    """Heal those injections that are still in force: a user may have healed some."""
    state = store.read(name)
    remaining = (
        [injection.number for injection in state.injected if injection.number in numbers] if state is not None else []
    )
    if remaining:
        fault_injection.heal(store, name, remaining)


class LiveStage:
    def __init__(self, cluster: RunningCluster, run: Programs, seconds: float) -> None:
        """seconds: that the run may take. Faults in force end by themselves some time after that, or after their own
        end, in case this process is killed before it lifts them."""
        self._store = Store()
        self._longest = round(seconds * 1e9)
        self._name = cluster.name
        self._layout = cluster.state.layout
        self._run = run
        self._least = 0  # the lowest number of the next injection
        self._pauses: Counter[str] = Counter()  # in force on each node

    def begin(self, occurrence: Occurrence) -> Active:
        fault = occurrence.fault
        injection = self._injection(fault)
        if injection is not None:
            return self._inject(occurrence, injection)
        if isinstance(fault, Crash | Restart | Reset):
            return self._crash(occurrence)
        if isinstance(fault, Pause):
            return self._pause(occurrence)
        if isinstance(fault, Cpu):
            nodes = self._touched(fault)
            return self._load(occurrence, [partial(self._burn, node, fault.share) for node in nodes])
        if isinstance(fault, Traffic | Incast):
            senders, receiver = senders_of(self._layout, fault), node_of(self._layout, fault.receiver)
            return self._load(occurrence, [partial(self._send, senders, receiver, self._rate(fault))])
        raise UnsupportedError(f"{fault.kind} is not supported in namespaces")

    def _injection(self, fault: Fault) -> Injection | None:
        return injection_of(fault, self._layout)

    def _touched(self, fault: Fault) -> list[str]:
        return touched_nodes(self._layout, fault)

    def _rate(self, fault: Traffic | Incast) -> int:
        return fault.rate

    def _moment(self, when: int) -> int:
        """Convert a time since the programs began to monotonic nanoseconds."""
        return self._run.begun + when

    # On links

    def _inject(self, occurrence: Occurrence, injection: Injection) -> Active:
        needed = measured_by(occurrence.fault)
        until = self._until(occurrence)
        done = fault_injection.lay(self._store, self._name, replace(injection, number=self._least, until=until))
        number = done.injection.number
        before = self._count(done.state, injection.places)

        def counted() -> Counts:
            state = self._state()
            if injection.down:
                down = sum(not link.up for link in links(state, injection.down))
                return {"links down": down}
            found: dict[str, int] = {}
            if injection.places:
                after = self._count(state, injection.places)
                found = {name: max(0, after[name] - before[name]) for name in ("frames", *needed) if name in after}
            if injection.rules:
                found["decided"] = self._decided(state, number)
            return found

        return Active(occurrence, counted, lambda _run_ended: self._heal([number]), needed)

    def _until(self, occurrence: Occurrence) -> int:
        """Return when a fault ends by itself, monotonic nanoseconds."""
        end = self._run.begun + self._longest if occurrence.end is None else self._moment(occurrence.end)
        return max(end, time.monotonic_ns()) + round(_GRACE * 1e9)

    def _state(self) -> State:
        return self._store.choose(self._name)

    def _heal(self, numbers: Collection[int]) -> None:
        _heal(self._store, self._name, numbers)

    def _count(self, state: State, places: Collection[DirectionKey]) -> Mapping[str, int]:
        """Sum the counters of these directions until now: the kernel's, the relay's and the classifiers'."""
        counts: Counter[str] = Counter()
        if not places:
            return counts
        for link in links(state, {link for link, _ in places}):
            for direction, traffic in zip(BOTH, (link.forward, link.backward), strict=True):
                if (link.link.name, direction) in places:
                    counts["frames"] += traffic.frames
        taken = take_account(self._store, state)
        for key in places:
            if key in taken.classifiers:
                for name in _CLASSIFIED:
                    counts[name] += getattr(taken.classifiers[key], name)
            counters = _of_relay(taken.relay, key).get("counters")
            for name, count in (counters or {}).items():
                counts[name] += count
        return counts

    def _decided(self, state: State, number: int) -> int:
        """Return how many fates an injection's rules have decided."""
        report = None
        with contextlib.suppress(KernelError):
            report = relay_client.report(self._store, state)
        if report is None:
            return 0
        return sum(
            rule["decided"]
            for link in report["links"].values()
            for direction in link.values()
            for name, rule in direction["rules"].items()
            if name.partition(".")[0] == str(number)
        )

    # On nodes

    def _running(self, fault: Fault) -> list[str]:
        ranks = [rank for name in self._touched(fault) for rank in self._run.ranks_on(name)]
        return [rank for rank in ranks if not self._run.has_ended(rank)]

    def _crash(self, occurrence: Occurrence) -> Active:
        names = self._running(occurrence.fault)
        at_once = isinstance(occurrence.fault, Reset)
        returns = at_once or occurrence.end is not None
        for name in names:
            self._run.crash(name, returns=returns)
        if at_once:
            self._start_again(names)

        def lift(run_ended: bool) -> None:
            if not run_ended and returns and not at_once:
                self._start_again(names)

        counts = {"processes": len(names)}  # `crash` has waited for their end
        return Active(occurrence, lambda: counts, lift, reason="" if names else GONE)

    def _start_again(self, names: Collection[str]) -> None:
        for name in names:
            self._run.restart(name)

    def _pause(self, occurrence: Occurrence) -> Active:
        names = self._running(occurrence.fault)
        self._pauses.update(names)
        for name in names:
            self._run.pause(name)

        def lift(run_ended: bool) -> None:
            self._pauses.subtract(names)
            for name in names:
                if not run_ended and not self._pauses[name]:
                    self._run.resume(name)

        stopped: set[str] = set()

        def counted() -> Counts:
            stopped.update(name for name in names if state_of(self._run.pids.get(name, 0)) == "T")
            return {"nodes": len(stopped)}

        # A process stops when it next has a processor: on a busy machine a short pause could be over before.
        latest = time.monotonic() + _SOON
        while counted()["nodes"] < len(names) and time.monotonic() < latest:
            time.sleep(_POLL_INTERVAL)
        return Active(occurrence, counted, lift, reason="" if names else GONE)

    def _burn(self, node: str, share: float, seconds: float) -> fault_injection.Injected:
        return fault_injection.load_processor(self._store, self._name, node, share, seconds, self._least)

    def _send(self, senders: Sequence[str], receiver: str, rate: int, seconds: float) -> fault_injection.Injected:
        return fault_injection.load_link(self._store, self._name, senders, receiver, rate, seconds, self._least)

    def _load(self, occurrence: Occurrence, start: Sequence[Callable[[float], fault_injection.Injected]]) -> Active:
        """Start loads, measured by their processor time. start: each gets the seconds after which it ends by itself."""
        started: list[Injection] = []

        def lift(_run_ended: bool) -> None:
            self._heal([injection.number for injection in started])

        try:
            for begin in start:
                started.append(begin((self._until(occurrence) - time.monotonic_ns()) / 1e9).injection)
        except BaseException:
            lift(True)
            raise

        def counted() -> Counts:
            return {"cpu_ns": sum(schedstat(program.pid)[0] for injection in started for program in injection.programs)}

        return Active(occurrence, counted, lift)


def _of_relay(report: Mapping[str, Any] | None, key: DirectionKey) -> Mapping[str, Any]:
    link, direction = key
    counters: Mapping[str, Any] = (report or {}).get("links", {}).get(link, {}).get(direction, {})
    return counters

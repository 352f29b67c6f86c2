"""Faults in namespaces: injections on links, and signals to processes of nodes."""

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
from testbed.controller.scenarios.active import HOLD, NO_PROGRAM, ActiveFault, Counts, Programs
from testbed.controller.scenarios.targets import decisive_counters, injection_of, senders_of, touched_nodes
from testbed.controller.scenarios.timeline import Occurrence
from testbed.controller.verdict.counter_snapshots import read_counters, read_schedstat
from testbed.errors import KernelError, UnsupportedError
from testbed.kernel.processes import is_stopped
from testbed.spec.fault_models import Cpu, Crash, Fault, Impair, Incast, Partition, Pause, Reset, Restart, Traffic
from testbed.spec.layout import Layout
from testbed.spec.scenario import Scenario
from testbed.spec.selection import node_of

_CLASSIFIER_COUNTERS = ("loss", "gemodel", "loss_pattern")

_STOP_TIMEOUT = 0.2  # seconds for signalled processes to stop
_POLL_INTERVAL = 0.001  # seconds

_PROGRAM_FAULTS = (Crash, Restart, Reset, Pause)
"""Faults that do not change the cluster."""

_GRACE = 5.0
"""Seconds after the end of a fault, after which it ends by itself if it was not lifted."""


@contextlib.contextmanager
def hold(
    cluster: RunningCluster, scenario: Scenario, seconds: float, layout: Layout, number: int = 0
) -> Iterator[None]:
    """Keep the links with faults on the relay for the block, from before a run until after it. A link that changes its
    datapath during the run would lose frames beyond those of faults. The process that heals expired faults also runs
    meanwhile. seconds: maximum duration of the run. layout: layout of the complete cluster. number: minimum number of the
    injection.
    """
    store, state = Store(), cluster.state
    places = _held_directions(state, scenario, layout) if state.asked in ("auto", "relay") else []
    if not (places or scenario.random or any(not isinstance(fault, _PROGRAM_FAULTS) for fault in scenario.faults)):
        yield
        return
    rules = tuple((place, HOLD) for place in places)
    until = time.monotonic_ns() + round((seconds + _GRACE) * 1e9)
    holding = Injection(number, f"links held for {scenario.name}", rules=rules, until=until)
    applied = fault_injection.apply_injection(store, cluster.name, holding)
    try:
        yield
    finally:
        _heal(store, cluster.name, [applied.injection.number])


def _held_directions(state: State, scenario: Scenario, layout: Layout) -> list[DirectionKey]:
    """Return the directions that `hold` keeps on the relay."""
    faults = list(scenario.faults)
    random = scenario.random
    if random is not None and "partition" in random.kinds:
        faults.append(Partition(shape="halves", at=0))
    if random is not None and "impair" in random.kinds:
        faults.append(Impair(on=random.on, at=0, loss=1.0))
    links_with_faults = {
        link
        for fault in faults
        if (injection := injection_of(fault, layout)) is not None
        for link, _ in (*injection.places, *(place for place, _ in injection.rules))
    }
    relayed = [
        link.name
        for link in state.layout.links
        if link.name in links_with_faults and link.datapath in ("auto", "relay")
    ]
    return [(link, direction) for link in relayed for direction in BOTH]


def _heal(store: Store, name: str, numbers: Collection[int]) -> None:
    """Heal the injections with these numbers that are still in force, as a user may have healed some."""
    state = store.read(name)
    remaining = (
        [injection.number for injection in state.injected if injection.number in numbers] if state is not None else []
    )
    if remaining:
        fault_injection.heal(store, name, remaining)


class LiveInjector:
    """Injector of faults in namespaces. Implements `active.FaultInjector`."""

    def __init__(self, cluster: RunningCluster, run: Programs, seconds: float) -> None:
        """seconds: maximum duration of the run. Faults end by themselves _GRACE after their end, or after the run, in case
        this process is killed before it lifts them."""
        self._store = Store()
        self._max_duration = round(seconds * 1e9)
        self._name = cluster.name
        self._layout = cluster.state.layout
        self._run = run
        self._min_number = 0  # minimum number of the next injection
        self._pauses: Counter[str] = Counter()  # in force, by node

    def begin(self, occurrence: Occurrence) -> ActiveFault:
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
            return self._load(occurrence, [partial(self._load_processor, node, fault.share) for node in nodes])
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

    def _monotonic_time(self, when: int) -> int:
        """Convert a time since the programs began to monotonic nanoseconds."""
        return self._run.start_time + when

    # On links

    def _inject(self, occurrence: Occurrence, injection: Injection) -> ActiveFault:
        decisive = decisive_counters(occurrence.fault)
        until = self._expiry(occurrence)
        numbered = replace(injection, number=self._min_number, until=until)
        applied = fault_injection.apply_injection(self._store, self._name, numbered)
        number = applied.injection.number
        before = self._direction_counts(applied.state, injection.places)

        def read_counts() -> Counts:
            state = self._state()
            if injection.down:
                down = sum(not link.up for link in links(state, injection.down))
                return {"links down": down}
            counts: dict[str, int] = {}
            if injection.places:
                after = self._direction_counts(state, injection.places)
                counts = {name: max(0, after[name] - before[name]) for name in ("frames", *decisive) if name in after}
            if injection.rules:
                counts["decided"] = self._decided_by_rules(state, number)
            return counts

        return ActiveFault(occurrence, read_counts, lambda _run_ended: self._heal([number]), decisive)

    def _expiry(self, occurrence: Occurrence) -> int:
        """Return when a fault ends by itself, monotonic nanoseconds."""
        end = (
            self._run.start_time + self._max_duration
            if occurrence.end is None
            else self._monotonic_time(occurrence.end)
        )
        return max(end, time.monotonic_ns()) + round(_GRACE * 1e9)

    def _state(self) -> State:
        return self._store.choose(self._name)

    def _heal(self, numbers: Collection[int]) -> None:
        _heal(self._store, self._name, numbers)

    def _direction_counts(self, state: State, places: Collection[DirectionKey]) -> Mapping[str, int]:
        """Return the sums of counters of these directions, by name: of the kernel, the relay and the classifiers."""
        counts: Counter[str] = Counter()
        if not places:
            return counts
        for link in links(state, {link for link, _ in places}):
            for direction, traffic in zip(BOTH, (link.forward, link.backward), strict=True):
                if (link.link.name, direction) in places:
                    counts["frames"] += traffic.frames
        snapshot = read_counters(self._store, state)
        for key in places:
            if key in snapshot.classifiers:
                for name in _CLASSIFIER_COUNTERS:
                    counts[name] += getattr(snapshot.classifiers[key], name)
            counters = _relay_direction(snapshot.relay, key).get("counters")
            for name, count in (counters or {}).items():
                counts[name] += count
        return counts

    def _decided_by_rules(self, state: State, number: int) -> int:
        """Return the number of fates that an injection's rules have decided."""
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

    def _running_ranks(self, fault: Fault) -> list[str]:
        """Return the ranks of a fault's nodes whose programs run."""
        ranks = [rank for name in self._touched(fault) for rank in self._run.ranks_on(name)]
        return [rank for rank in ranks if not self._run.has_ended(rank)]

    def _crash(self, occurrence: Occurrence) -> ActiveFault:
        names = self._running_ranks(occurrence.fault)
        restarts_at_once = isinstance(occurrence.fault, Reset)
        restarts = restarts_at_once or occurrence.end is not None
        for name in names:
            self._run.crash(name, restarts=restarts)
        if restarts_at_once:
            self._restart(names)

        def lift(run_ended: bool) -> None:
            if not run_ended and restarts and not restarts_at_once:
                self._restart(names)

        counts = {"processes": len(names)}  # `crash` has waited until they ended
        return ActiveFault(occurrence, lambda: counts, lift, reason="" if names else NO_PROGRAM)

    def _restart(self, names: Collection[str]) -> None:
        for name in names:
            self._run.restart(name)

    def _pause(self, occurrence: Occurrence) -> ActiveFault:
        names = self._running_ranks(occurrence.fault)
        self._pauses.update(names)
        for name in names:
            self._run.pause(name)

        def lift(run_ended: bool) -> None:
            self._pauses.subtract(names)
            for name in names:
                if not run_ended and not self._pauses[name]:
                    self._run.resume(name)

        stopped: set[str] = set()

        def read_counts() -> Counts:
            stopped.update(name for name in names if is_stopped(self._run.pids.get(name, 0)))
            return {"nodes": len(stopped)}

        # A process stops when it next gets a processor: on a busy machine a short pause could end before that.
        deadline = time.monotonic() + _STOP_TIMEOUT
        while read_counts()["nodes"] < len(names) and time.monotonic() < deadline:
            time.sleep(_POLL_INTERVAL)
        return ActiveFault(occurrence, read_counts, lift, reason="" if names else NO_PROGRAM)

    def _load_processor(self, node: str, share: float, seconds: float) -> fault_injection.Injected:
        return fault_injection.load_processor(self._store, self._name, node, share, seconds, self._min_number)

    def _send(self, senders: Sequence[str], receiver: str, rate: int, seconds: float) -> fault_injection.Injected:
        return fault_injection.load_link(self._store, self._name, senders, receiver, rate, seconds, self._min_number)

    def _load(
        self, occurrence: Occurrence, starters: Sequence[Callable[[float], fault_injection.Injected]]
    ) -> ActiveFault:
        """Start loads, measured by their processor time. starters: called with the seconds after which a load ends by
        itself."""
        started: list[Injection] = []

        def lift(_run_ended: bool) -> None:
            self._heal([injection.number for injection in started])

        try:
            for start in starters:
                started.append(start((self._expiry(occurrence) - time.monotonic_ns()) / 1e9).injection)
        except BaseException:
            lift(True)
            raise

        def read_counts() -> Counts:
            return {
                "cpu_ns": sum(read_schedstat(program.pid)[0] for injection in started for program in injection.programs)
            }

        return ActiveFault(occurrence, read_counts, lift)


def _relay_direction(report: Mapping[str, Any] | None, key: DirectionKey) -> Mapping[str, Any]:
    link, direction = key
    direction_report: Mapping[str, Any] = (report or {}).get("links", {}).get(link, {}).get(direction, {})
    return direction_report

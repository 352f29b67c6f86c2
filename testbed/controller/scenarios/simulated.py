"""Faults in the simulation, at exact times and counted by the model."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from testbed.cluster.faults.injections import BOTH, DirectionKey, Injection, in_force, is_down
from testbed.controller.scenarios.active import NO_COSTS, NO_PROGRAM, ActiveFault, Counts
from testbed.controller.scenarios.loads import Sink, TrafficSender, datagram
from testbed.controller.scenarios.targets import decisive_counters, injection_of, senders_of, touched_nodes
from testbed.controller.scenarios.timeline import Occurrence
from testbed.engine.server import Server, load_cores
from testbed.errors import UnsupportedError
from testbed.fates.conditions import And, InDirection, OnLink, Or
from testbed.fates.rules import Handle, Rule, RuleSet
from testbed.nic.immediate import ImmediateNic
from testbed.sim.sim_host import SimHost
from testbed.sim.simulation import Simulation
from testbed.spec.fault_models import Cpu, Crash, Fault, Incast, Pause, Reset, Restart, Slow, Traffic
from testbed.spec.layout import End, Node
from testbed.spec.selection import node_of


class SimulatedInjector:
    """Injector of faults in the simulation. Implements `active.FaultInjector`. files: path -> text of the files that faults
    name."""

    def __init__(self, simulation: Simulation, rules: RuleSet, files: Mapping[str, str]) -> None:
        self._simulation = simulation
        self._rules = rules
        self._files = files
        self._layout = simulation.layout
        self._links = {link.name: link for link in simulation.layout.links}
        self._nodes = {node.name: node for node in simulation.layout.nodes}
        self._injected: list[Injection] = []
        self._last_number = 0  # of injections
        self._sinks: dict[str, Sink] = {}
        self._crashed: set[str] = set()  # nodes that have not been restarted
        self._pauses: Counter[ImmediateNic] = Counter()  # in force, by NIC
        self._paused_until: dict[Server, int] = {}  # by core
        self._slow_factors: defaultdict[str, list[float]] = defaultdict(list)  # in force, by node

    def begin(self, occurrence: Occurrence) -> ActiveFault:
        fault = occurrence.fault
        injection = injection_of(fault, self._layout)
        if injection is not None:
            return self._inject(occurrence, injection)
        if isinstance(fault, Crash | Restart | Reset):
            return self._crash(occurrence)
        if isinstance(fault, Pause):
            return self._pause(occurrence)
        if isinstance(fault, Slow):
            return self._slow(occurrence, fault)
        if isinstance(fault, Cpu):
            return self._load_cores(occurrence, fault)
        if isinstance(fault, Traffic | Incast):
            return self._send_traffic(occurrence, fault)
        raise UnsupportedError(f"{fault.kind} is not supported in the simulation")

    # On links

    def _inject(self, occurrence: Occurrence, injection: Injection) -> ActiveFault:
        self._last_number += 1
        injection = replace(injection, number=self._last_number)
        places = dict.fromkeys(
            [*injection.places, *((link, direction) for link in injection.down for direction in BOTH)]
        )
        before = {key: self._direction_counts(key) for key in places}
        self._injected.append(injection)
        self._apply(injection)
        handles = [self._rules.add(self._simulation.now(), rule) for rule in self._placed_rules(injection)]
        decisive = decisive_counters(occurrence.fault)

        def read_counts() -> Counts:
            since: Counter[str] = Counter()
            for key, earlier in before.items():
                for name, count in self._direction_counts(key).items():
                    since[name] += count - earlier[name]
            shown = ("lost",) if injection.down else ("frames", *decisive) if injection.places else ()
            counts = {name: since[name] for name in shown if name != "decided"}
            return {**counts, "decided": _decided_by_rules(handles)} if injection.rules else counts

        def lift(_run_ended: bool) -> None:
            self._injected.remove(injection)
            for handle in handles:
                handle.lift()
            self._apply(injection)

        return ActiveFault(occurrence, read_counts, lift, decisive)

    def _apply(self, injection: Injection) -> None:
        """Apply the impairments that are now in force to an injection's links."""
        simulation = self._simulation
        for link, direction in injection.places:
            impairment = in_force(self._links[link], direction, self._injected).impairment
            if simulation.network.link_directions[link, direction].impairment != impairment:
                simulation.change(link, impairment, direction, self._files)
        for name in injection.down:
            (simulation.cut if is_down(self._links[name], self._injected) else simulation.restore)(name)

    def _direction_counts(self, key: DirectionKey) -> Mapping[str, int]:
        link_direction = self._simulation.network.link_directions[key]
        return {
            **link_direction.counters.by_name(),
            "frames": link_direction.counters.offered,
            "lost": link_direction.lost,
        }

    def _placed_rules(self, injection: Injection) -> list[Rule]:
        """Parse an injection's rules, each restricted to the directions where it applies."""
        places: dict[str, list[DirectionKey]] = {}
        for place, text in injection.rules:
            places.setdefault(text, []).append(place)
        rules = []
        for text, directions in places.items():
            rule = Rule.parse(text, self._rules.fields, self._links)
            condition = Or(tuple(And((OnLink((link,)), InDirection(direction))) for link, direction in directions))
            rules.append(replace(rule, when=And((condition, rule.when))))
        return rules

    # On nodes

    def _running_nodes(self, fault: Fault) -> list[str]:
        """Return the nodes of a fault whose programs run."""
        programs = self._simulation.programs
        names = touched_nodes(self._layout, fault)
        return [name for name in names if any(not program.done for program in programs(name))]

    def _crash(self, occurrence: Occurrence) -> ActiveFault:
        names = self._running_nodes(occurrence.fault)
        restarts_at_once = isinstance(occurrence.fault, Reset)
        restarts = restarts_at_once or occurrence.end is not None
        restarters = [self._simulation.crash(name, restarts=restarts) for name in names]
        self._crashed.update(names)
        if restarts_at_once:
            self._restart(names, restarters)

        def lift(run_ended: bool) -> None:
            if not run_ended and restarts and not restarts_at_once:
                self._restart(names, restarters)

        counts = {"processes": len(names)}
        return ActiveFault(occurrence, lambda: counts, lift, reason="" if names else NO_PROGRAM)

    def _restart(self, names: Sequence[str], restarters: Sequence[Callable[[], object]]) -> None:
        for name, restart in zip(names, restarters, strict=True):
            restart()
            self._crashed.discard(name)
            if name in self._sinks:
                self._sinks[name].listen()

    def _pause(self, occurrence: Occurrence) -> ActiveFault:
        names = self._running_nodes(occurrence.fault)
        now = self._simulation.now()
        ranks = [rank for name in names for rank in self._simulation.hosts[name].ranks]
        nics = [rank.nic for rank in ranks]
        for rank in ranks:
            rank.nic.pause()
            self._pauses[rank.nic] += 1
            # Ranks may share a core, and pauses may overlap: reserve each span once.
            begin, end = max(now, self._paused_until.get(rank.core, 0)), occurrence.end
            if end is not None and end > begin:
                rank.core.reserve(begin, end - begin)
                self._paused_until[rank.core] = end

        def lift(_run_ended: bool) -> None:
            for nic in nics:
                self._pauses[nic] -= 1
                if not self._pauses[nic]:
                    nic.resume(self._simulation.now())

        return ActiveFault(
            occurrence,
            lambda: {"nodes": len(names), "held": sum(nic.queued_count for nic in nics)},
            lift,
            decisive=("nodes",),
            reason="" if names else NO_PROGRAM,
        )

    def _slow(self, occurrence: Occurrence, fault: Slow) -> ActiveFault:
        hosts = [self._simulation.hosts[name] for name in touched_nodes(self._layout, fault)]
        nics = [host.ranks[0].nic for host in hosts]  # functions of a NIC share its processors
        before = sum(nic.processor_time for nic in nics)
        for host in hosts:
            self._slow_factors[host.name].append(fault.factor)
            self._apply_slow_factor(host)

        def lift(_run_ended: bool) -> None:
            for host in hosts:
                self._slow_factors[host.name].remove(fault.factor)
                self._apply_slow_factor(host)

        def read_counts() -> Counts:
            busy = sum(nic.processor_time for nic in nics) - before
            return {"busy_ns": busy, "longer_ns": round(busy * (1 - 1 / fault.factor))}

        reason = NO_COSTS if all(host.profile.is_zero_cost for host in hosts) else ""
        return ActiveFault(occurrence, read_counts, lift, decisive=("longer_ns",), reason=reason)

    def _apply_slow_factor(self, host: SimHost) -> None:
        """Slow a node's NICs by the factor in force that began last, as a later impairment overrides an earlier one."""
        factors = self._slow_factors[host.name]
        host.set_costs(host.profile.slowed(factors[-1]) if factors else host.profile)

    def _load_cores(self, occurrence: Occurrence, fault: Cpu) -> ActiveFault:
        loop, hosts = self._simulation.loop, self._simulation.hosts
        names = touched_nodes(self._layout, fault)
        background_loads = [load for name in names for load in load_cores(loop, hosts[name].cores, fault.share)]

        def lift(_run_ended: bool) -> None:
            for load in background_loads:
                load.stop()

        return ActiveFault(
            occurrence,
            lambda: {"busy_ns": sum(load.busy for load in background_loads)},
            lift,
        )

    def _send_traffic(self, occurrence: Occurrence, fault: Traffic | Incast) -> ActiveFault:
        network, loop = self._simulation.network, self._simulation.loop
        receiver = self._nodes[node_of(self._layout, fault.receiver)]
        if receiver.name not in self._sinks:
            self._sinks[receiver.name] = Sink(network, _end(receiver), self._simulation.hosts[receiver.name])
        if receiver.name not in self._crashed:  # otherwise `_restart` calls it
            self._sinks[receiver.name].listen()
        senders = [
            TrafficSender(loop, network.outgoing(_end(sender)), datagram(sender, receiver), fault.rate)
            for sender in (self._nodes[name] for name in senders_of(self._layout, fault))
        ]

        def lift(_run_ended: bool) -> None:
            for sender in senders:
                sender.stop()

        return ActiveFault(
            occurrence,
            lambda: {"frames": sum(sender.sent for sender in senders)},
            lift,
        )


def _end(node: Node) -> End:
    return End(node.name, node.nics[0].name)


def _decided_by_rules(handles: Sequence[Handle]) -> int:
    return sum(handle.decided for handle in handles)

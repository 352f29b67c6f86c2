"""Clusters spread over machines: each machine holds its part as an ordinary cluster of that name.

Nothing is recorded where the commands are given: the machines know what they have, and `down` and `gc` also work on each
of them alone.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from testbed.errors import NotFoundError, TestbedError, UnsupportedError
from testbed.machines.machine_check import contradictions
from testbed.machines.machine_report import MachineReport
from testbed.machines.node_placement import Capacity, Constraints, Placement, place
from testbed.machines.parts import Pair, Underlays, pairs, parts
from testbed.machines.remote_workers import RemoteWorker, call_each, try_call_each
from testbed.spec.layout import ConfiguredDatapath, Layout
from testbed.spec.layout_json import nodes_to_json, to_json
from testbed.spec.machines import Machine

_ROUND_TRIPS: Final = 16
_ECHOES: Final = (3, 17)  # without a reply to the first, no more are sent

Workers = Mapping[str, RemoteWorker]


@dataclass(frozen=True, slots=True)
class Underlay:
    """The network between two machines, measured. round_trip: median, in ns. spread: spread of the round trips, longest less
    shortest, ns; both 0 where no echo request was answered. loss: share of unanswered ones."""

    machines: Pair
    round_trip: int
    spread: int
    loss: float


@dataclass(frozen=True, slots=True)
class SpreadPlan:
    """Where everything is to be, and each machine's part."""

    placement: Placement
    underlays: tuple[Underlay, ...]
    parts: Mapping[str, Layout]


def capacity(machine: Machine, report: MachineReport) -> Capacity:
    return Capacity(machine.cores or report.cores, machine.memory or report.memory)


def plan_spread(running: Workers, layout: Layout, name: str, constraints: Constraints) -> SpreadPlan:
    """Place a cluster, measure the network between machines that it is to cross, and make the parts. Nothing is changed.

    Raises UnsupportedError where the machines are not as their file says, or cannot carry the cluster.
    """
    machines = {machine: worker.machine for machine, worker in running.items()}
    underlays = {machine: found.underlay or "" for machine, found in machines.items()}
    surveys = call_each(running, "survey", name=dict.fromkeys(running, name), underlay=underlays)
    reports = {machine: MachineReport.from_json(survey["report"]) for machine, survey in surveys.items()}
    present = {machine: survey["present"] for machine, survey in surveys.items()}
    wrong = [
        f"machine {machine}: {sentence}"
        for machine, report in reports.items()
        for sentence in contradictions(machines[machine], report)
    ]
    if wrong:
        raise UnsupportedError("\n".join(wrong))
    capacities = {machine: capacity(machines[machine], report) for machine, report in reports.items()}
    placement = place(layout, capacities, _with_present_pinned(layout, present, constraints))
    crossed = pairs(layout, placement)
    for machine in dict.fromkeys(machine for pair in crossed for machine in pair):
        for needed in ("root", "vxlan"):
            if (lacking := reports[machine].missing(needed)) is not None:
                raise UnsupportedError(
                    f"machine {machine}: no links to other machines: {lacking.detail}; {lacking.remedy}"
                )
        if not underlays[machine]:
            raise UnsupportedError(
                f"machine {machine}: links of {name} lead to other machines, and the machines file has no 'underlay' for it"
            )
    measured = tuple(_measured(running, underlays, crossed))
    recorded = _recorded_delays(present, underlays)
    network = Underlays(
        underlays,
        {machine: machines[machine].underlay_mtu or report.underlay_mtu for machine, report in reports.items()},
        {underlay.machines: recorded.get(underlay.machines, underlay.round_trip // 2) for underlay in measured},
    )
    return SpreadPlan(placement, measured, parts(layout, name, placement, network))


def _with_present_pinned(layout: Layout, present: Mapping[str, Any], constraints: Constraints) -> Constraints:
    """Pin what is up to where it is, unless the constraints say otherwise: moving a node would end its programs."""
    known = {*(node.name for node in layout.nodes), *(switch.name for switch in layout.switches)}
    pins = {
        owner: machine
        for machine, part in present.items()
        for owner in part["owners"]
        if owner in known and machine not in constraints.exclusions.get(owner, ())
    }
    return Constraints({**pins, **constraints.pins}, constraints.exclusions)


def _recorded_delays(present: Mapping[str, Any], addresses: Mapping[str, str]) -> dict[Pair, int]:
    """Return, in both orders, the underlay's delays that a cluster that is up was made with: another `up` must not change
    its links because the measurement came out a little different."""
    machine_at = {address: machine for machine, address in addresses.items()}
    delays: dict[Pair, int] = {}
    for machine, part in present.items():
        for remote, delay in part["tunnels"]:
            if remote in machine_at:
                delays[machine, machine_at[remote]] = delays[machine_at[remote], machine] = delay
    return delays


def _measured(running: Workers, addresses: Mapping[str, str], between: Sequence[Pair]) -> list[Underlay]:
    """Measure the networks between pairs of machines. Raises UnsupportedError if no echo request is answered in one."""
    measured = _measure(running, addresses, between)
    for found in measured:
        if found.loss == 1:
            here, there = found.machines
            raise UnsupportedError(
                f"machine {here} gets no answer to ICMP echo requests from {there} ({addresses[there]}): the network "
                "between them must carry these, and VXLAN (UDP port 4789)"
            )
    return measured


def _measure(running: Workers, addresses: Mapping[str, str], between: Sequence[Pair]) -> list[Underlay]:
    """Measure the networks between pairs of machines: all machines at the same time, each its share of the pairs."""
    order = {
        machine: number for number, machine in enumerate(sorted({machine for pair in between for machine in pair}))
    }
    shares: dict[str, list[str]] = {machine: [] for machine in order}
    for pair in between:
        a, b = pair if sum(order[machine] for machine in pair) % 2 else pair[::-1]  # so that shares are equal
        here, there = (a, b) if a in running else (b, a)
        shares[here].append(there)
    measuring_machines = {machine: running[machine] for machine, others in shares.items() if others}
    replies = call_each(
        measuring_machines,
        "round_trips",
        source=addresses,
        destinations={machine: [addresses[other] for other in others] for machine, others in shares.items()},
        counts=dict.fromkeys(shares, _ECHOES),
    )
    return [
        _underlay((machine, other), replies[machine][addresses[other]])
        for machine, others in shares.items()
        for other in others
    ]


def _underlay(machines: Pair, round_trips: Sequence[int]) -> Underlay:
    if not round_trips:
        return Underlay(machines, 0, 0, 1.0)
    median = round(statistics.median(round_trips) / 1000) * 1000  # in whole microseconds
    return Underlay(machines, median, max(round_trips) - min(round_trips), 1 - len(round_trips) / sum(_ECHOES))


def measured_underlays(running: Workers, parts_of: Mapping[str, Layout], *, carry: bool) -> list[Underlay]:
    """Measure the network between the machines of a cluster that is up. parts_of: its parts, by machine. carry: raise
    UnsupportedError for one in which no echo request is answered."""
    tunnels = [
        (machine, tunnel)
        for machine, part in parts_of.items()
        for tunnel in (part.part.tunnels if part.part is not None else ())
    ]
    addresses = {tunnel.machine: tunnel.remote for _, tunnel in tunnels}
    crossed = sorted({(min(ends), max(ends)) for machine, tunnel in tunnels for ends in [(machine, tunnel.machine)]})
    return (_measured if carry else _measure)(running, addresses, crossed)


@dataclass(frozen=True, slots=True)
class MachineClock:
    """A machine's clock. ahead: nanoseconds that the controller's is ahead of it. error: the most by which that can be
    wrong."""

    ahead: int
    error: int


def clock_of(worker: RemoteWorker, call: str, now: Callable[[], int]) -> MachineClock:
    """Compare a machine's clock with this one's. call: "clock", the monotonic one, or "wall_clock". now: returns the same of
    this machine's clocks, in ns."""
    estimates = []
    for _ in range(_ROUND_TRIPS):
        start_time = now()
        remote_time = worker.call(call)
        ended = now()
        estimates.append(MachineClock((start_time + ended) // 2 - remote_time, (ended - start_time + 1) // 2))
    return min(estimates, key=lambda clock: clock.error)


@contextmanager
def brought_up(
    running: Workers,
    layout: Layout,
    name: str,
    constraints: Constraints,
    origin: str,
    asked: ConfiguredDatapath = "auto",
) -> Iterator[str]:
    """Spread a cluster until the end of the block; yield its name. It also ends with the workers, so that
    a controller that dies leaves nothing behind."""
    up(running, plan_spread(running, layout, name, constraints), name, origin, asked, lasting=False)
    try:
        yield name
    except BaseException:  # raised instead of later errors of a lost machine, which has not taken its part down
        try_call_each(running, "down", name=dict.fromkeys(running, name))
        raise
    down(running, name)


def up(
    running: Workers, plan: SpreadPlan, name: str, origin: str, asked: ConfiguredDatapath, *, lasting: bool = True
) -> dict[str, dict[str, Any]]:
    """Bring each machine's part up, or converge it; return by machine the number of its operations, and whether the part was
    up before, with another layout. lasting: it stays when the workers end.

    If a part fails, the parts that are new are taken down again, so that nothing is left; the first error is raised.
    """
    before = {machine: name in names for machine, names in call_each(running, "clusters").items()}
    concerned = {machine: running[machine] for machine in plan.parts}
    everywhere = next((nodes_to_json(part.part.nodes) for part in plan.parts.values() if part.part is not None), None)
    replies = try_call_each(
        concerned,
        "up",
        name=dict.fromkeys(concerned, name),
        layout={machine: to_json(part, everywhere) for machine, part in plan.parts.items()},
        origin=dict.fromkeys(concerned, origin),
        asked=dict.fromkeys(concerned, asked),
        lasting=dict.fromkeys(concerned, lasting),
    )
    failures = [reply for reply in replies.values() if isinstance(reply, TestbedError)]
    if failures:
        made = {m: running[m] for m, reply in replies.items() if not isinstance(reply, TestbedError) and not before[m]}
        present = [m for m, was_there in before.items() if was_there]
        unended = [
            r
            for r in try_call_each(made, "down", name=dict.fromkeys(made, name)).values()
            if isinstance(r, TestbedError)
        ]
        advice = [f"its parts on {', '.join(present)} stay: 'testbed up' changes them again"] if present else []
        failures[0].args = ("\n".join(map(str, [failures[0], *unended, *advice])),)
        raise failures[0]
    emptied = {
        machine: running[machine] for machine, was_there in before.items() if was_there and machine not in concerned
    }
    call_each(emptied, "down", name=dict.fromkeys(emptied, name))
    return replies


def down(running: Workers, name: str) -> list[str]:
    """Take a cluster down on every machine; return the machines that had a part. NotFoundError if none had."""
    replies = call_each(running, "down", name=dict.fromkeys(running, name))
    machines = [machine for machine, reply in replies.items() if reply["was_there"]]
    if not machines:
        raise NotFoundError(f"no machine has a cluster {name}")
    return machines


def collect(running: Workers) -> dict[str, list[dict[str, Any]]]:
    """Collect garbage on every machine, as `garbage.collect`, and parts of clusters whose other parts are all gone: a
    machine that was cut off while its cluster was taken down has one when it comes back. Return the findings by machine.

    A part is left alone if a machine that it has links to is not among these.
    """
    findings: dict[str, list[dict[str, Any]]] = call_each(running, "gc")
    names = call_each(running, "clusters")
    at = {worker.machine.underlay: machine for machine, worker in running.items() if worker.machine.underlay}
    for machine, worker in running.items():
        for name in names[machine]:
            remotes = {remote for remote, _ in worker.call("present", name=name)["tunnels"]}
            peers = {at.get(remote, "") for remote in remotes}
            if peers and "" not in peers and not any(name in names[peer] for peer in peers):
                worker.call("down", name=name)
                reason = f"its parts on {', '.join(sorted(peers))} are gone"
                findings[machine].append({"what": f"cluster {name}", "removed": True, "reason": reason})
    return findings


def workers_with(running: Workers, name: str) -> dict[str, RemoteWorker]:
    """Return the workers of the machines that have a part of a cluster. NotFoundError if none has."""
    names = call_each(running, "clusters")
    workers = {machine: running[machine] for machine in running if name in names[machine]}
    if not workers:
        raise NotFoundError(f"no machine has a cluster {name}")
    return workers


def status(running: Workers, name: str) -> dict[str, Any]:
    """Return the status of a cluster's part on each machine that has one."""
    workers = workers_with(running, name)
    return call_each(workers, "status", name=dict.fromkeys(workers, name))


def execute(running: Workers, name: str, node: str, command: Sequence[str]) -> tuple[int, str, str]:
    """Run a program in a node, wherever it is, for as long as it takes; return its exit code and its output."""
    parts_of = status(running, name)
    for machine, part in parts_of.items():
        if any(local_node["name"] == node for local_node in part["nodes"]):
            reply = running[machine].call("exec", None, name=name, node=node, command=list(command))
            return reply["code"], reply["stdout"], reply["stderr"]
    names = ", ".join(node["name"] for part in parts_of.values() for node in part["nodes"][:8])
    raise NotFoundError(f"cluster {name} has no node {node!r}; its nodes include {names}")

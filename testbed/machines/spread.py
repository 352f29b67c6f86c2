"""Clusters spread over machines: each machine has its part as an ordinary cluster with the name of the spread cluster.

The controller records nothing: each machine has the state of its part, and `down` and `gc` also work on each machine
alone.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from testbed.errors import ConflictError, NotFoundError, TestbedError, UnsupportedError
from testbed.machines.machine_check import contradictions
from testbed.machines.machine_report import MachineReport
from testbed.machines.node_placement import Capacity, Constraints, Placement, place
from testbed.machines.parts import Pair, Underlays, linked_machines, parts
from testbed.machines.remote_workers import RemoteWorker, call_each, try_call_each
from testbed.spec.layout import ConfiguredDatapath, Layout
from testbed.spec.layout_json import nodes_to_json, to_json
from testbed.spec.machines import Machine

_ROUND_TRIPS: Final = 16  # readings of a machine's clock
_ECHOES: Final = (3, 17)  # echo requests; the second batch is sent only if there is a reply to the first

Workers = Mapping[str, RemoteWorker]


@dataclass(frozen=True, slots=True)
class Underlay:
    """Measurements of the network between two machines. round_trip: median round trip, ns. spread: longest minus shortest
    round trip, ns. Both are 0 if no echo request was answered. loss: share of unanswered echo requests."""

    machines: Pair
    round_trip: int
    spread: int
    loss: float


@dataclass(frozen=True, slots=True)
class SpreadPlan:
    """Plan of a spread cluster: the placement, the measured underlays, and each machine's part."""

    placement: Placement
    underlays: tuple[Underlay, ...]
    parts: Mapping[str, Layout]


def capacity(machine: Machine, report: MachineReport) -> Capacity:
    """Return a machine's capacity: as in the machines file, or else as reported."""
    return Capacity(machine.cores or report.cores, machine.memory or report.memory)


def plan_spread(running: Workers, layout: Layout, name: str, constraints: Constraints) -> SpreadPlan:
    """Place a cluster, measure the networks that its links cross, and make the parts. Nothing is changed.

    Raises UnsupportedError if the machines contradict the machines file, or cannot run the cluster; ConflictError if the
    cluster has a part on a machine that is not in the file.
    """
    machines = {machine: worker.machine for machine, worker in running.items()}
    underlays = {machine: machine_entry.underlay or "" for machine, machine_entry in machines.items()}
    surveys = call_each(running, "survey", name=dict.fromkeys(running, name), underlay=underlays)
    reports = {machine: MachineReport.from_json(survey["report"]) for machine, survey in surveys.items()}
    present = {machine: survey["present"] for machine, survey in surveys.items()}
    problems = [
        f"machine {machine}: {sentence}"
        for machine, report in reports.items()
        for sentence in contradictions(machines[machine], report)
    ]
    if problems:
        raise UnsupportedError("\n".join(problems))
    _refuse_parts_elsewhere(name, present, underlays)
    capacities = {machine: capacity(machines[machine], report) for machine, report in reports.items()}
    placement = place(layout, capacities, _with_present_pinned(layout, present, constraints))
    crossed = linked_machines(layout, placement)
    for machine in dict.fromkeys(machine for pair in crossed for machine in pair):
        for needed in ("root", "vxlan"):
            if (lacking := reports[machine].missing(needed)) is not None:
                raise UnsupportedError(
                    f"machine {machine} cannot have links to other machines: {lacking.detail}; {lacking.remedy}"
                )
        if not underlays[machine]:
            raise UnsupportedError(
                f"machine {machine}: links of {name} lead to other machines, and the machines file has no 'underlay' for it"
            )
    measured = tuple(_measure_reachable(running, underlays, crossed))
    recorded = _recorded_delays(present, underlays)
    network = Underlays(
        underlays,
        {machine: machines[machine].underlay_mtu or report.underlay_mtu for machine, report in reports.items()},
        {underlay.machines: recorded.get(underlay.machines, underlay.round_trip // 2) for underlay in measured},
    )
    return SpreadPlan(placement, measured, parts(layout, name, placement, network))


def _refuse_parts_elsewhere(name: str, present: Mapping[str, Any], addresses: Mapping[str, str]) -> None:
    """Check that a running cluster has no links to machines that are not in the file, whose nodes would be made a second
    time. Raises ConflictError."""
    for part in present.values():
        for remote, _, machine in part["tunnels"]:
            if machine not in addresses and remote not in addresses.values():
                raise ConflictError(
                    f"cluster {name} has nodes on machine {machine} ({remote}), which is not in the machines file: add it, "
                    "or take the cluster down first"
                )


def _with_present_pinned(layout: Layout, present: Mapping[str, Any], constraints: Constraints) -> Constraints:
    """Pin elements that are up to their machines, unless the constraints exclude that, since moving a node would end its
    programs."""
    names = {*(node.name for node in layout.nodes), *(switch.name for switch in layout.switches)}
    pins = {
        owner: machine
        for machine, part in present.items()
        for owner in part["owners"]
        if owner in names and machine not in constraints.exclusions.get(owner, ())
    }
    return Constraints({**pins, **constraints.pins}, constraints.exclusions)


def _recorded_delays(present: Mapping[str, Any], addresses: Mapping[str, str]) -> dict[Pair, int]:
    """Return the underlay delays with which a running cluster was made, by pair of machines in both orders. They are
    kept, so that another `up` does not change the links because a new measurement differs slightly."""
    machine_at = {address: machine for machine, address in addresses.items()}
    delays: dict[Pair, int] = {}
    for machine, part in present.items():
        for remote, delay, _ in part["tunnels"]:
            if remote in machine_at:
                delays[machine, machine_at[remote]] = delays[machine_at[remote], machine] = delay
    return delays


def _measure_reachable(running: Workers, addresses: Mapping[str, str], between: Sequence[Pair]) -> list[Underlay]:
    """Measure the networks between pairs of machines. Raises UnsupportedError if no echo request is answered between a
    pair."""
    underlays = _measure(running, addresses, between)
    for underlay in underlays:
        if underlay.loss == 1:
            machine, peer = underlay.machines
            raise UnsupportedError(
                f"machine {machine} gets no answer to ICMP echo requests from {peer} ({addresses[peer]}): the network "
                "between them must carry these, and VXLAN (UDP port 4789)"
            )
    return underlays


def _measure(running: Workers, addresses: Mapping[str, str], between: Sequence[Pair]) -> list[Underlay]:
    """Measure the networks between pairs of machines concurrently. Each machine measures about the same number of pairs."""
    order = {
        machine: number for number, machine in enumerate(sorted({machine for pair in between for machine in pair}))
    }
    shares: dict[str, list[str]] = {machine: [] for machine in order}
    for pair in between:
        a, b = pair if sum(order[machine] for machine in pair) % 2 else pair[::-1]  # so that shares are about equal
        measuring, measured = (a, b) if a in running else (b, a)
        shares[measuring].append(measured)
    measuring_machines = {machine: running[machine] for machine, peers in shares.items() if peers}
    replies = call_each(
        measuring_machines,
        "round_trips",
        source=addresses,
        destinations={machine: [addresses[peer] for peer in peers] for machine, peers in shares.items()},
        counts=dict.fromkeys(shares, _ECHOES),
    )
    return [
        _underlay((machine, peer), replies[machine][addresses[peer]])
        for machine, peers in shares.items()
        for peer in peers
    ]


def _underlay(machines: Pair, round_trips: Sequence[int]) -> Underlay:
    if not round_trips:
        return Underlay(machines, 0, 0, 1.0)
    median = round(statistics.median(round_trips) / 1000) * 1000  # nanoseconds, rounded to microseconds
    return Underlay(machines, median, max(round_trips) - min(round_trips), 1 - len(round_trips) / sum(_ECHOES))


def measured_underlays(running: Workers, parts_of: Mapping[str, Layout], *, must_answer: bool) -> list[Underlay]:
    """Measure the networks between the machines of a running cluster. parts_of: its parts, by machine. must_answer: raise
    UnsupportedError if no echo request is answered between a pair."""
    tunnels = [
        (machine, tunnel)
        for machine, part in parts_of.items()
        for tunnel in (part.part.tunnels if part.part is not None else ())
    ]
    addresses = {tunnel.machine: tunnel.remote for _, tunnel in tunnels}
    crossed = sorted({(min(ends), max(ends)) for machine, tunnel in tunnels for ends in [(machine, tunnel.machine)]})
    return (_measure_reachable if must_answer else _measure)(running, addresses, crossed)


@dataclass(frozen=True, slots=True)
class MachineClock:
    """Offset of a machine's clock. ahead: nanoseconds by which the controller's clock is ahead of the machine's. error:
    maximum error of `ahead`, ns."""

    ahead: int
    error: int


def clock_of(worker: RemoteWorker, call: str, now: Callable[[], int]) -> MachineClock:
    """Measure the offset of a machine's clock. call: "clock" for the monotonic clock, or "wall_clock". now: reads the
    corresponding clock of the controller, ns."""
    estimates = []
    for _ in range(_ROUND_TRIPS):
        start_time = now()
        remote_time = worker.call(call)
        end_time = now()
        estimates.append(MachineClock((start_time + end_time) // 2 - remote_time, (end_time - start_time + 1) // 2))
    return min(estimates, key=lambda clock: clock.error)


@contextmanager
def brought_up(
    running: Workers,
    layout: Layout,
    name: str,
    constraints: Constraints,
    origin: str,
) -> Iterator[str]:
    """Bring a spread cluster up for the duration of the block; yield its name. The cluster also ends with the workers, so
    that a controller that dies leaves nothing behind."""
    up(running, plan_spread(running, layout, name, constraints), name, origin, "auto", lasting=False)
    try:
        yield name
    except BaseException:  # raised instead of later errors of a lost machine, which has not taken its part down
        try_call_each(running, "down", name=dict.fromkeys(running, name))
        raise
    down(running, name)


def up(
    running: Workers, plan: SpreadPlan, name: str, origin: str, asked: ConfiguredDatapath, *, lasting: bool = True
) -> dict[str, dict[str, Any]]:
    """Bring each machine's part up, or converge it; return, by machine, the number of operations, and whether the part was
    up before with another layout. asked: datapath that the user requests. lasting: whether the cluster stays when the
    workers end.

    If a part fails, new parts are taken down again, and the first error is raised.
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
        new_parts = {
            machine: running[machine]
            for machine, reply in replies.items()
            if not isinstance(reply, TestbedError) and not before[machine]
        }
        present = [machine for machine, was_there in before.items() if was_there]
        down_replies = try_call_each(new_parts, "down", name=dict.fromkeys(new_parts, name))
        down_failures = [reply for reply in down_replies.values() if isinstance(reply, TestbedError)]
        advice = [f"its parts on {', '.join(present)} stay: 'testbed up' changes them again"] if present else []
        failures[0].args = ("\n".join(map(str, [failures[0], *down_failures, *advice])),)
        raise failures[0]
    emptied = {
        machine: running[machine] for machine, was_there in before.items() if was_there and machine not in concerned
    }
    call_each(emptied, "down", name=dict.fromkeys(emptied, name))
    return replies


def down(running: Workers, name: str) -> list[str]:
    """Take a cluster down on every machine; return the machines that had a part. Raises NotFoundError if none had."""
    replies = call_each(running, "down", name=dict.fromkeys(running, name))
    machines = [machine for machine, reply in replies.items() if reply["was_there"]]
    if not machines:
        raise NotFoundError(f"no machine has a cluster {name}")
    return machines


def collect(running: Workers) -> dict[str, list[dict[str, Any]]]:
    """Collect garbage on every machine, as `garbage.collect`, and remove parts of clusters whose other parts are all gone.
    Return the findings by machine.

    Such a part remains if its machine was unreachable when the cluster was taken down. A part is kept if it has links to a
    machine that is not in `running`.
    """
    findings: dict[str, list[dict[str, Any]]] = call_each(running, "gc")
    names = call_each(running, "clusters")
    machine_at = {worker.machine.underlay: machine for machine, worker in running.items() if worker.machine.underlay}
    for machine, worker in running.items():
        for name in names[machine]:
            remotes = {remote for remote, *_ in worker.call("present", name=name)["tunnels"]}
            peers = {machine_at.get(remote, "") for remote in remotes}
            if peers and "" not in peers and not any(name in names[peer] for peer in peers):
                worker.call("down", name=name)
                reason = f"its parts on {', '.join(sorted(peers))} are gone"
                findings[machine].append({"what": f"cluster {name}", "removed": True, "reason": reason})
    return findings


def workers_with(running: Workers, name: str) -> dict[str, RemoteWorker]:
    """Return the workers of the machines that have a part of a cluster. Raises NotFoundError if none has."""
    names = call_each(running, "clusters")
    workers = {machine: running[machine] for machine in running if name in names[machine]}
    if not workers:
        raise NotFoundError(f"no machine has a cluster {name}")
    return workers


def status(running: Workers, name: str) -> dict[str, Any]:
    """Return the status of a cluster's part on each machine that has one. Raises NotFoundError if none has."""
    workers = workers_with(running, name)
    return call_each(workers, "status", name=dict.fromkeys(workers, name))


def execute(running: Workers, name: str, node: str, command: Sequence[str]) -> tuple[int, str, str]:
    """Run a program in a node on whichever machine it is, without a time limit; return its exit code, standard output and
    standard error. Raises NotFoundError."""
    parts_of = status(running, name)
    for machine, part in parts_of.items():
        if any(local_node["name"] == node for local_node in part["nodes"]):
            reply = running[machine].call("exec", None, name=name, node=node, command=list(command))
            return reply["code"], reply["stdout"], reply["stderr"]
    names = ", ".join(node["name"] for part in parts_of.values() for node in part["nodes"][:8])
    raise NotFoundError(f"cluster {name} has no node {node!r}; its nodes include {names}")

"""Check of the links of a cluster that is spread over machines.

Each machine probes the links within it, as `cluster_check.check` does. Then all together probe the links between them: the
machine where a direction begins says when each probe left, the one where it ends when it came. Their clocks are compared
before; the error of that is in the verdict, and the delays of these links can be wrong by the sum of two machines' errors.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from testbed.cluster.faults.injections import BOTH, DirectionName, in_force, is_down, links_of
from testbed.controller.cluster_check import NO_ACCOUNT, problem_of_seconds
from testbed.controller.probing.expectations import Expectation, expect
from testbed.controller.probing.half_probes import PROBE
from testbed.controller.probing.measurement import NOTHING_PROBED, mtu_of
from testbed.controller.probing.probe_findings import Subject, judge, judge_down
from testbed.controller.probing.probe_plan import ENOUGH, LONGEST, SHORTEST, Plan, plan_for
from testbed.controller.probing.probes import Probed
from testbed.controller.runs.spread_execution import clock_findings, machine_findings, underlay_findings
from testbed.controller.verdict.machine_outages import WatchedMachines
from testbed.controller.verdict.thresholds import TABLE, Table
from testbed.controller.verdict.verdicts import Finding, Verdict, verdict_of
from testbed.errors import TestbedError
from testbed.machines.joint_calls import in_step
from testbed.machines.remote_workers import call_each
from testbed.machines.spread import MachineClock, Workers, clock_of, measured_underlays, workers_with
from testbed.machines.spread_faults import SpreadState, spread_state
from testbed.spec.layout import End, Link

CHECK: Final = "check"
"""Name of the call that checks the links within a machine."""

LOOK_BACK: Final = "look_back"
"""Name of the call that looks back on a span."""

_LINGER: Final = 1.0  # s for probes under way, beyond their delay
_PATIENCE: Final = 60.0  # s for a stage, beyond the probing
_SECOND: Final = 1_000_000_000
_NO_RATE: Final = "the rate of links between machines is not measured"


@dataclass(frozen=True, slots=True)
class _Crossing:
    """A direction of a link between machines. source, sink: machines, each with the link's end there."""

    link: Link
    direction: DirectionName
    source: tuple[str, End]
    sink: tuple[str, End]
    expectation: Expectation
    plan: Plan
    has_rules: bool
    is_down: bool


def check(
    running: Workers, name: str, target: str | None = None, seconds: float | None = None, *, table: Table = TABLE
) -> Verdict:
    """Measure with probes what the links of a spread cluster do, and judge it. target, seconds: as for
    `cluster_check.check`. Raises NotFoundError, ConflictError, KernelError, and DescriptionError for the seconds."""
    problem_of_seconds(seconds)
    state = spread_state(running, name)
    links = None if target is None else [link.name for link in links_of(state.layout, target)]
    concerned = state.workers
    crossings = _crossings(state, links)
    clocks = {machine: clock_of(worker, "wall_clock", time.time_ns) for machine, worker in concerned.items()}
    replies = call_each(
        concerned,
        CHECK,
        name=dict.fromkeys(concerned, name),
        links=dict.fromkeys(concerned, links),
        seconds=dict.fromkeys(concerned, seconds),
        slow=dict.fromkeys(concerned, table.slow),
    )
    findings = machine_findings(replies)
    began = time.monotonic()
    if crossings:
        probed = _probe(state, name, crossings, clocks, seconds)
        for crossing, result in zip(crossings, probed, strict=True):
            findings += _judged(crossing, result, table)
        findings += underlay_findings(measured_underlays(concerned, state.parts, carry=False))
        findings += clock_findings(clocks)
    notes = [
        f"machine {machine}: {note}"
        for machine, reply in replies.items()
        for note in reply["notes"]
        if note != NOTHING_PROBED
    ]
    if not crossings and all(NOTHING_PROBED in reply["notes"] for reply in replies.values()):
        notes.append(NOTHING_PROBED)
    took = max(reply["seconds"] for reply in replies.values()) + time.monotonic() - began
    return verdict_of(findings, notes, took, table.slow)


def looked_back(running: Workers, name: str, since: int) -> Verdict:
    """Look back on a span, without probes, as `cluster_check.verdict` does on each machine, and at machines that did not
    answer others. since: monotonic nanoseconds of this machine."""
    concerned = workers_with(running, name)
    clocks = {machine: clock_of(worker, "clock", time.monotonic_ns) for machine, worker in concerned.items()}
    begins = {machine: since - clock.ahead for machine, clock in clocks.items()}
    replies = call_each(concerned, LOOK_BACK, name=dict.fromkeys(concerned, name), since=begins)
    verdicts = {machine: reply["verdict"] for machine, reply in replies.items()}
    findings = machine_findings(verdicts)
    watched = WatchedMachines(since)
    for machine, reply in replies.items():
        ahead = clocks[machine].ahead
        watched.heed(machine, [{**event, "clock": event["clock"] + ahead} for event in reply["events"]])
    notes = dict.fromkeys(
        note if note == NO_ACCOUNT else f"machine {machine}: {note}"
        for machine, found in verdicts.items()
        for note in found["notes"]
    )
    return verdict_of([*findings, *watched.silence_findings()], notes, (time.monotonic_ns() - since) / 1e9)


def _crossings(state: SpreadState, links: Sequence[str] | None) -> list[_Crossing]:
    """Choose directions of links between machines. links: names; None: those that are impaired or down."""
    at: dict[str, str] = {}
    for machine, part in state.parts.items():
        at |= dict.fromkeys([node.name for node in part.nodes], machine)
        at |= dict.fromkeys([switch.name for switch in part.switches], machine)
    chosen = []
    for link in state.layout.links:
        a, b = at[link.a.owner], at[link.b.owner]
        if a == b or (links is not None and link.name not in links):
            continue
        tunnel = state.parts[a].tunnel_of(link)
        assert tunnel is not None
        for direction in BOTH:
            force = in_force(link, direction, state.injected)
            down = is_down(link, state.injected)
            if links is None and not (down or force.whole):
                continue
            ends = ((a, link.a), (b, link.b)) if direction == "forward" else ((b, link.b), (a, link.a))
            impairment = replace(force.impairment, delay=max(force.impairment.delay, tunnel.delay))
            chosen.append((link, direction, ends, impairment, down))
    crossings = []
    for link, direction, ends, impairment, down in chosen:
        expectation = expect(impairment, {})
        plan = plan_for(impairment, expectation, len(chosen), mtu_of(state.layout, link))
        plan = replace(plan, train=None, no_train=_NO_RATE if impairment.rate else "")
        crossings.append(
            _Crossing(link, direction, *ends, expectation, plan, has_rules=bool(impairment.rules), is_down=down)
        )
    return crossings


def _probe(
    state: SpreadState,
    name: str,
    crossings: Sequence[_Crossing],
    clocks: Mapping[str, MachineClock],
    seconds: float | None,
) -> list[Probed]:
    """Let the machines probe the links between them. Raises TestbedError for a machine that fails or is lost."""
    lasting = seconds if seconds is not None else min(max(SHORTEST, *map(_needed, crossings)), LONGEST)
    linger = max(crossing.plan.latest for crossing in crossings) / _SECOND + _LINGER
    run = (os.getpid() << 16 ^ time.monotonic_ns()) & 0xFFFF_FFFF
    machines = {machine for crossing in crossings for machine, _ in (crossing.source, crossing.sink)}
    concerned = {machine: worker for machine, worker in state.workers.items() if machine in machines}
    numbers = {}
    for machine, worker in concerned.items():
        outgoing = [
            {**_end(number, crossing.source[1]), "interval": crossing.plan.interval, "burst": crossing.plan.burst}
            for number, crossing in enumerate(crossings)
            if crossing.source[0] == machine
        ]
        incoming = [
            _end(number, crossing.sink[1]) for number, crossing in enumerate(crossings) if crossing.sink[0] == machine
        ]
        numbers[machine] = worker.begin(
            PROBE, name=name, run=run, outgoing=outgoing, incoming=incoming, seconds=lasting, linger=linger
        )
    replies, lost = in_step(concerned, numbers, lasting + linger + _PATIENCE)
    if lost:
        raise TestbedError("; ".join(str(loss.error) for loss in lost.values()))
    found = []
    for number, crossing in enumerate(crossings):
        source, sink = crossing.source[0], crossing.sink[0]
        ahead = clocks[sink].ahead - clocks[source].ahead
        found.append(joined(str(number), crossing.plan, replies[source], replies[sink], ahead, lasting))
    return found


def _needed(crossing: _Crossing) -> float:
    """Return how long a direction has to be probed, seconds."""
    plan = crossing.plan
    return ENOUGH * max(plan.wanted / plan.burst, plan.samples) * plan.interval / _SECOND


def _end(number: int, end: End) -> dict[str, object]:
    return {"number": number, "owner": end.owner, "port": end.port}


def joined(
    number: str, plan: Plan, source: Mapping[str, Any], sink: Mapping[str, Any], ahead: int, seconds: float
) -> Probed:
    """Return the result of probing a direction from those of its two machines. number: of the direction. source, sink:
    replies of `half_probes.probe_part`. ahead: nanoseconds to add to the sink's times to get the source's clock."""
    left = source["left"][number]
    came: dict[int, int] = {}
    twice = corrupted = unreadable = overtaken = 0
    highest = -1
    for index, when, intact in sink["came"][number]:
        if index < 0:
            unreadable += 1
        elif index in came:
            twice += 1
        elif index < len(left):
            came[index] = when + ahead
            corrupted += not intact
            overtaken += index < highest
            highest = max(highest, index)
    delays = {index: when - left[index] for index, when in came.items() if left[index]}
    sent = sum(1 for when in left if when)
    timed = [delay for index, delay in delays.items() if index % plan.burst == 0 and delay >= plan.skip_below]
    others, other_bytes = sink["others"][number]
    return Probed(
        sent,
        min(sent, len(delays) + unreadable),
        tuple(sorted(timed)),
        sum(delay < plan.skip_below for delay in delays.values()),
        twice,
        corrupted + unreadable,
        overtaken,
        others,
        other_bytes,
        source["overrun"][number] + sink["overrun"][number],
        seconds,
    )


def _judged(crossing: _Crossing, probed: Probed, table: Table) -> Iterator[Finding]:
    subject = Subject(
        crossing.link.name, crossing.direction, crossing.expectation, crossing.plan, rules_active=crossing.has_rules
    )
    yield from judge_down(subject, probed, table) if crossing.is_down else judge(subject, probed, table)

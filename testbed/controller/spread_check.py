"""Check of the links of a cluster that is spread over machines.

Each machine probes its own links, as `cluster_check.check` does. Then the machines probe the links between them together:
the sending machine reports when each probe left, the receiving one when it arrived. Clock offsets are measured before. The
verdict has each offset's error; the delay of a link between machines can be wrong by the sum of two such errors.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from testbed.cluster.faults.injections import BOTH, DirectionName, in_force, is_down, links_of
from testbed.controller.cluster_check import NO_BASELINE, check_duration
from testbed.controller.probing.expectations import Expectation, expect
from testbed.controller.probing.half_probes import PROBE
from testbed.controller.probing.measurement import NOTHING_PROBED, mtu_of
from testbed.controller.probing.probe_findings import Subject, judge, judge_down
from testbed.controller.probing.probe_plan import MARGIN, MAX_SECONDS, MIN_SECONDS, ProbePlan, plan_for
from testbed.controller.probing.probes import ProbeResult, delay_of
from testbed.controller.runs.spread_execution import clock_findings, machine_findings, underlay_findings
from testbed.controller.verdict.machine_outages import MachineOutages
from testbed.controller.verdict.thresholds import TABLE, Table
from testbed.controller.verdict.verdicts import Finding, Verdict, verdict_of
from testbed.errors import TestbedError
from testbed.machines.joint_calls import run_joint_call
from testbed.machines.remote_workers import call_each
from testbed.machines.spread import MachineClock, Workers, clock_of, measured_underlays, workers_with
from testbed.machines.spread_faults import SpreadState, spread_state
from testbed.spec.layout import End, Link

CHECK: Final = "check"
"""Name of the call that checks the links within a machine."""

LOOK_BACK: Final = "look_back"
"""Name of the call that judges a past span."""

_LINGER: Final = 1.0  # s to receive probes in flight, beyond their delay
_STAGE_TIMEOUT: Final = 60.0  # s, beyond the duration of probing
_SECOND: Final = 1_000_000_000
_NO_RATE: Final = "the rate of links between machines is not measured"


@dataclass(frozen=True, slots=True)
class _ProbedDirection:
    """A direction of a link between machines. source, sink: sending and receiving machine, each with its end of the link."""

    link: Link
    direction: DirectionName
    source: tuple[str, End]
    sink: tuple[str, End]
    expectation: Expectation
    plan: ProbePlan
    has_rules: bool
    is_down: bool


def check(
    running: Workers, name: str, target: str | None = None, seconds: float | None = None, *, table: Table = TABLE
) -> Verdict:
    """Measure the links of a spread cluster with probes, and judge them. target, seconds: as for `cluster_check.check`.
    Raises NotFoundError, ConflictError, KernelError, and DescriptionError for `seconds`."""
    check_duration(seconds)
    state = spread_state(running, name)
    links = None if target is None else [link.name for link in links_of(state.layout, target)]
    holding_workers = state.workers
    directions = _probed_directions(state, links)
    clocks = {machine: clock_of(worker, "wall_clock", time.time_ns) for machine, worker in holding_workers.items()}
    replies = call_each(
        holding_workers,
        CHECK,
        name=dict.fromkeys(holding_workers, name),
        links=dict.fromkeys(holding_workers, links),
        seconds=dict.fromkeys(holding_workers, seconds),
        slow=dict.fromkeys(holding_workers, table.slow),
    )
    findings = machine_findings(replies)
    started = time.monotonic()
    if directions:
        results = _probe(state, name, directions, clocks, seconds)
        for direction, result in zip(directions, results, strict=True):
            findings += _judge_direction(direction, result, table)
        findings += underlay_findings(measured_underlays(holding_workers, state.parts, must_answer=False))
        findings += clock_findings(clocks)
    notes = [
        f"machine {machine}: {note}"
        for machine, reply in replies.items()
        for note in reply["notes"]
        if note != NOTHING_PROBED
    ]
    if not directions and all(NOTHING_PROBED in reply["notes"] for reply in replies.values()):
        notes.append(NOTHING_PROBED)
    elapsed = max(reply["seconds"] for reply in replies.values()) + time.monotonic() - started
    return verdict_of(findings, notes, elapsed, table.slow)


def spread_verdict(running: Workers, name: str, since: int) -> Verdict:
    """Judge a past span without probes: on each machine as `cluster_check.verdict` does, and spans in which a machine did
    not answer another one. since: monotonic nanoseconds of this machine."""
    holding_workers = workers_with(running, name)
    clocks = {machine: clock_of(worker, "clock", time.monotonic_ns) for machine, worker in holding_workers.items()}
    begins = {machine: since - clock.ahead for machine, clock in clocks.items()}
    replies = call_each(holding_workers, LOOK_BACK, name=dict.fromkeys(holding_workers, name), since=begins)
    verdicts = {machine: reply["verdict"] for machine, reply in replies.items()}
    findings = machine_findings(verdicts)
    outages = MachineOutages(since)
    for machine, reply in replies.items():
        ahead = clocks[machine].ahead
        outages.add_events(machine, [{**event, "clock": event["clock"] + ahead} for event in reply["events"]])
    notes = dict.fromkeys(
        note if note == NO_BASELINE else f"machine {machine}: {note}"
        for machine, verdict in verdicts.items()
        for note in verdict["notes"]
    )
    return verdict_of([*findings, *outages.silence_findings()], notes, (time.monotonic_ns() - since) / 1e9)


def _probed_directions(state: SpreadState, links: Sequence[str] | None) -> list[_ProbedDirection]:
    """Choose directions of links between machines. links: names; None: those that are impaired or down."""
    machine_of: dict[str, str] = {}
    for machine, part in state.parts.items():
        machine_of |= dict.fromkeys([node.name for node in part.nodes], machine)
        machine_of |= dict.fromkeys([switch.name for switch in part.switches], machine)
    tunnels = {machine: part.tunnels() for machine, part in state.parts.items()}
    chosen = []
    for link in state.layout.links:
        a, b = machine_of[link.a.owner], machine_of[link.b.owner]
        if a == b or (links is not None and link.name not in links):
            continue
        tunnel = tunnels[a][link.name]
        for direction in BOTH:
            current = in_force(link, direction, state.injected)
            down = is_down(link, state.injected)
            if links is None and not (down or current.complete):
                continue
            ends = ((a, link.a), (b, link.b)) if direction == "forward" else ((b, link.b), (a, link.a))
            impairment = replace(current.impairment, delay=max(current.impairment.delay, tunnel.delay))
            chosen.append((link, direction, ends, impairment, down))
    directions = []
    for link, direction, ends, impairment, down in chosen:
        expectation = expect(impairment, {})
        plan = plan_for(impairment, expectation, len(chosen), mtu_of(state.layout, link))
        plan = replace(plan, train=None, no_train=_NO_RATE if impairment.rate else "")
        directions.append(
            _ProbedDirection(link, direction, *ends, expectation, plan, has_rules=bool(impairment.rules), is_down=down)
        )
    return directions


def _probe(
    state: SpreadState,
    name: str,
    directions: Sequence[_ProbedDirection],
    clocks: Mapping[str, MachineClock],
    seconds: float | None,
) -> list[ProbeResult]:
    """Let the machines probe the links between them. Raises TestbedError for a machine that fails or is lost."""
    duration = seconds if seconds is not None else min(max(MIN_SECONDS, *map(_seconds_needed, directions)), MAX_SECONDS)
    linger = max(direction.plan.max_delay for direction in directions) / _SECOND + _LINGER
    run = (os.getpid() << 16 ^ time.monotonic_ns()) & 0xFFFF_FFFF
    machines = {machine for direction in directions for machine, _ in (direction.source, direction.sink)}
    probing_workers = {machine: worker for machine, worker in state.workers.items() if machine in machines}
    numbers = {}
    for machine, worker in probing_workers.items():
        outgoing = [
            {**_end(number, direction.source[1]), "interval": direction.plan.interval, "burst": direction.plan.burst}
            for number, direction in enumerate(directions)
            if direction.source[0] == machine
        ]
        incoming = [
            _end(number, direction.sink[1])
            for number, direction in enumerate(directions)
            if direction.sink[0] == machine
        ]
        numbers[machine] = worker.begin(
            PROBE, name=name, run=run, outgoing=outgoing, incoming=incoming, seconds=duration, linger=linger
        )
    replies, lost = run_joint_call(probing_workers, numbers, duration + linger + _STAGE_TIMEOUT)
    if lost:
        raise TestbedError("; ".join(str(loss.error) for loss in lost.values()))
    results = []
    for number, direction in enumerate(directions):
        source, sink = direction.source[0], direction.sink[0]
        ahead = clocks[sink].ahead - clocks[source].ahead
        results.append(join_replies(str(number), direction.plan, replies[source], replies[sink], ahead, duration))
    return results


def _seconds_needed(direction: _ProbedDirection) -> float:
    """Return the duration of probing that a direction needs, seconds."""
    plan = direction.plan
    return MARGIN * max(plan.min_probes / plan.burst, plan.min_samples) * plan.interval / _SECOND


def _end(number: int, end: End) -> dict[str, object]:
    return {"number": number, "owner": end.owner, "port": end.port}


def join_replies(
    number: str, plan: ProbePlan, source: Mapping[str, Any], sink: Mapping[str, Any], ahead: int, seconds: float
) -> ProbeResult:
    """Join the replies of a direction's two machines to its result. number: number of the direction. source, sink: replies
    of `half_probes.probe_part`. ahead: nanoseconds to add to the sink's times to get the source's clock."""
    sent_times = source["left"][number]
    arrival_times: dict[int, int] = {}
    duplicates = corrupted = unreadable = overtaken = 0
    highest = -1
    for index, when, intact in sink["came"][number]:
        if index < 0:
            unreadable += 1
        elif index in arrival_times:
            duplicates += 1
        elif index < len(sent_times):
            arrival_times[index] = when + ahead
            corrupted += not intact
            overtaken += index < highest
            highest = max(highest, index)
    delays = {index: delay_of(sent_times[index], when) for index, when in arrival_times.items() if sent_times[index]}
    sent = sum(1 for when in sent_times if when)
    timed = [delay for index, delay in delays.items() if index % plan.burst == 0 and delay >= plan.skip_below]
    other_frames, other_bytes = sink["others"][number]
    return ProbeResult(
        sent,
        min(sent, len(delays) + unreadable),
        tuple(sorted(timed)),
        sum(delay < plan.skip_below for delay in delays.values()),
        duplicates,
        corrupted + unreadable,
        overtaken,
        other_frames,
        other_bytes,
        source["overrun"][number] + sink["overrun"][number],
        seconds,
    )


def _judge_direction(direction: _ProbedDirection, result: ProbeResult, table: Table) -> Iterator[Finding]:
    subject = Subject(
        direction.link.name,
        direction.direction,
        direction.expectation,
        direction.plan,
        rules_active=direction.has_rules,
    )
    yield from judge_down(subject, result, table) if direction.is_down else judge(subject, result, table)

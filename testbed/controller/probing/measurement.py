"""Measure links with probes, and judge the results by the links' impairments."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from testbed.cluster.faults.injections import BOTH, DirectionName, in_force, is_down, links_of
from testbed.cluster.plan.switch_ports import patch_of
from testbed.cluster.plan.veth_wiring import Wiring
from testbed.cluster.records.state import State, Store
from testbed.controller.probing.expectations import expect
from testbed.controller.probing.probe_findings import Subject, judge, judge_down
from testbed.controller.probing.probe_plan import MAX_SECONDS, MIN_SECONDS, plan_for
from testbed.controller.probing.probes import Measurement, ProbePath, ProbePort, probe
from testbed.controller.probing.routed_paths import combine, plan_on_path, routed_links, routed_paths
from testbed.controller.verdict import spans
from testbed.controller.verdict.counter_snapshots import read_counters
from testbed.controller.verdict.thresholds import Table
from testbed.controller.verdict.verdicts import Finding, Grade, Verdict, verdict_of
from testbed.errors import ConflictError, KernelError, NotFoundError
from testbed.kernel import userns
from testbed.kernel.children import in_child
from testbed.kernel.datapaths import Fit
from testbed.kernel.datapaths import assess as assess_datapath
from testbed.kernel.filesystem import read_text
from testbed.runtime import event_log
from testbed.runtime.relay.orders import RelayPaths
from testbed.spec.layout import Datapath, End, Impairment, Layout, Link

Target = str | Sequence[str] | None
"""Links to probe: a user's target, names of links, or None for every impaired direction."""

NOTHING_PROBED: Final = "no link is impaired, so nothing was probed: name a link, a node or 'all' to probe it"


def measure(store: Store, state: State, target: Target, seconds: float | None, table: Table) -> Verdict:
    """Measure a running cluster. The arguments and errors are those of `cluster_check.check`."""
    before = read_counters(store, state)
    chosen = [*_choose_directions(store, state, target), *_choose_routed(state, target)]
    measurement = _measure(state, [probed.path for probed in chosen], seconds, table.slow)
    after = read_counters(store, state)
    events = list(event_log.read(store.directory(state.name)))
    present = store.read(state.name)
    changes = spans.describe_changes(events, before.clock)
    if present is None or (present.layout, present.injected, present.datapaths) != (
        state.layout,
        state.injected,
        state.datapaths,
    ):
        raise ConflictError(f"cluster {state.name} was changed while it was measured: check it again")
    findings: list[Finding] = []
    if measurement is not None:
        for path, result in zip(chosen, measurement.paths, strict=True):
            if path.is_down:
                findings += judge_down(path.subject, result, table)
                continue
            overflow_count = sum(spans.count_overflowed(before, after, *key) for key in path.crossed)
            rules_active = path.subject.rules_active or any(
                spans.had_active_rules(before, after, *key) for key in path.crossed
            )
            findings += judge(
                replace(path.subject, overflow_count=overflow_count, rules_active=rules_active), result, table
            )
        findings += spans.sleeper_findings(measurement.floor, measurement.lag, table)
        findings.append(_wall_clock_finding(measurement.wall_clock_step, table))
    findings += spans.relay_findings(state, before, after, events, table)
    findings += spans.agent_findings(before, after, events, table)
    findings += spans.classifier_findings(before, after, table)
    findings += spans.replug_findings(events, before.clock, table)
    findings += spans.machine_findings(before, after, table)
    notes = [*spans.idle_rules(after), *(f"in the span, {change}" for change in changes)]
    notes += _notes_on_models(state.layout, chosen)
    if not (chosen or any(link.model for link in state.layout.links)):
        notes.append(NOTHING_PROBED)
    return verdict_of(findings, notes, (after.clock - before.clock) / 1e9, table.slow)


def _wall_clock_finding(nanoseconds: int, table: Table) -> Finding:
    grade = table.grade("wall clock", nanoseconds)
    reason = "" if grade is Grade.TRUSTED else "the wall clock was set during the measurement, so delays are wrong"
    return Finding("wall clock", "", "", 0.0, nanoseconds, "ns", grade, reason)


# Paths to probe


@dataclass(frozen=True, slots=True)
class _ProbedPath:
    """A path to probe. crossed: directions of links on the path. is_down: whether one of these links is down."""

    subject: Subject
    path: ProbePath
    crossed: tuple[tuple[str, DirectionName], ...]
    is_down: bool


def _choose_directions(store: Store, state: State, target: Target) -> list[_ProbedPath]:
    """Choose the directions of links that have interfaces at both ends."""
    layout = state.layout
    links = [link for link in _target_links(state, target) if not link.model]
    directions = [
        (link, direction) for link in links for direction in BOTH if _is_probed(state, target, link, direction)
    ]
    texts = _read_files(store, state, directions)
    wiring = Wiring.from_datapaths(layout, state.datapaths)
    chosen = []
    for link, direction in directions:
        current = in_force(link, direction, state.injected)
        datapath = state.datapaths.get(link.name, "direct")
        # Datapath tc limits the rate by a token bucket (TBF); all others serialize frames.
        expectation = expect(current.impairment, texts, bucket=datapath == "tc")
        plan = plan_for(current.impairment, expectation, len(directions), mtu_of(layout, link))
        source, sink = (link.a, link.b) if direction == "forward" else (link.b, link.a)
        approximations, rules_active = _approximations(datapath, current.impairment), bool(current.impairment.rules)
        subject = Subject(link.name, direction, expectation, plan, approximations, rules_active)
        path = ProbePath(probe_port(state, wiring, source), probe_port(state, wiring, sink), plan)
        chosen.append(_ProbedPath(subject, path, ((link.name, direction),), is_down(link, state.injected)))
    return chosen


def _choose_routed(state: State, target: Target) -> list[_ProbedPath]:
    """Choose paths, in both directions, across the links of modelled networks."""
    layout = state.layout
    routed = routed_links(layout)
    probed_links = {
        link.name
        for link in _target_links(state, target)
        if any(_is_probed(state, target, link, direction) for direction in BOTH)
    }
    paths = routed_paths(layout, [link for link in routed if link.name in probed_links])
    wiring = Wiring.from_datapaths(layout, state.datapaths)
    chosen = []
    for path in paths:
        impairments = [in_force(link, direction, state.injected).impairment for link, direction in path.crossed]
        expectation = combine([(impairment, expect(impairment, {})) for impairment in impairments])
        plan = plan_on_path(expectation, len(paths), min(mtu_of(layout, link) for link, _ in path.crossed))
        rules_active = any(impairment.rules for impairment in impairments)
        chosen.append(
            _ProbedPath(
                Subject(path.link, path.direction, expectation, plan, rules_active=rules_active),
                ProbePath(
                    probe_port(state, wiring, path.source), probe_port(state, wiring, path.sink), plan, path.to_frame
                ),
                tuple((link.name, direction) for link, direction in path.crossed),
                any(is_down(link, state.injected) for link, _ in path.crossed),
            )
        )
    return chosen


def _target_links(state: State, target: Target) -> list[Link]:
    """Return the links of the target, without links to other machines."""
    if target is None or isinstance(target, str):
        links = links_of(state.layout, "all" if target is None else target)
    else:
        links = [link for link in state.layout.links if link.name in target]
    tunnels = state.layout.tunnels()
    return [link for link in links if link.name not in tunnels]


def _is_probed(state: State, target: Target, link: Link, direction: DirectionName) -> bool:
    """Whether a direction of one of the target's links is to be probed."""
    if target is not None or is_down(link, state.injected):
        return True
    return bool(in_force(link, direction, state.injected).complete)


def _notes_on_models(layout: Layout, chosen: Sequence[_ProbedPath]) -> list[str]:
    """Return notes on whether and how links of modelled networks were probed."""
    notes = []
    routed = routed_links(layout)
    for kind, is_probed in {(kind, link in routed): None for link in layout.links if (kind := link.model)}:
        if not is_probed:
            framing = f"frames there need {kind.framing}"
            reason = framing if kind.framing else "the switch is a model, and only one end of each link is an interface"
            notes.append(f"{kind.title} links were not probed: {reason}")
        elif chosen:
            notes.append(
                f"{kind.title} links were probed from NIC to NIC: a finding covers all links of the path and "
                "their combined impairments"
            )
    return notes


def probe_port(state: State, wiring: Wiring, end: End) -> ProbePort:
    """Return the interface at an end of a link: a node's NIC or a bridge port. For a diverted port, or a port with a stage,
    return the peer of the patch, where frames of the switch leave and frames of the relay enter."""
    port = ""
    if end.owner in wiring.ports:
        key, device = wiring.ports[end.owner][int(end.port)]
        for stage in wiring.stages.values():
            if stage.port == (key, device):
                _, device = patch_of(stage.port)
        for detour in wiring.detours.values():
            if detour.ends == ((key, device),):
                port, device = device, detour.near[1]
    else:
        key, device = end.owner, end.port
    if key not in state.namespaces:
        raise KernelError(f"the namespace of {end.owner} is unknown: repair the cluster by 'testbed up'")
    return ProbePort(state.namespaces[key], device, port)


def mtu_of(layout: Layout, link: Link) -> int:
    """Return the MTU of a link, bytes; a cable between switches takes the largest of all NICs."""
    nics = {(node.name, nic.name): nic.mtu for node in layout.nodes for nic in node.nics}
    ends = [nics[end.owner, end.port] for end in (link.a, link.b) if (end.owner, end.port) in nics]
    return min(ends) if ends else max(nics.values(), default=1500)


def _approximations(datapath: str, impairment: Impairment) -> str:
    """Return the features that the datapath implements only approximately, as text; empty if there are none."""
    if datapath not in ("netem", "tc"):
        return ""
    carrier: Datapath = "netem" if datapath == "netem" else "tc"
    judgements = assess_datapath(carrier, impairment)
    return "; ".join(judgement.feature for judgement in judgements if judgement.fit is Fit.APPROXIMATE)


def _read_files(store: Store, state: State, directions: Iterable[tuple[Link, DirectionName]]) -> Mapping[str, str]:
    """Return the text of the files that impairments name, by path: the relay's copy, or else the current file."""
    orders = RelayPaths(store.directory(state.name)).read_orders()
    texts = dict(orders.files) if orders is not None else {}
    base = Path(state.origin).parent if os.path.isfile(state.origin) else Path()
    for link, direction in directions:
        path = in_force(link, direction, state.injected).impairment.jitter_file
        if path and path not in texts:
            try:
                texts[path] = read_text(base / path)
            except (OSError, UnicodeDecodeError):
                continue  # the expectation reports the unreadable file
    return texts


def _measure(state: State, paths: Sequence[ProbePath], seconds: float | None, slow: float) -> Measurement | None:
    """Probe in a child process; without root, in the cluster's user namespace."""
    if not paths:
        return None
    min_seconds, max_seconds = (seconds, seconds) if seconds is not None else (MIN_SECONDS, MAX_SECONDS)
    run = (os.getpid() << 16 ^ time.monotonic_ns()) & 0xFFFF_FFFF
    probe_paths = partial(_probe, paths, min_seconds, max_seconds, run, slow)
    if userns.is_root():
        return in_child(probe_paths)
    if state.holder is None or not state.holder.is_alive:
        raise NotFoundError(f"cluster {state.name} is gone: 'testbed gc' removes what is left of it")
    return userns.call_inside(state.holder.pid, probe_paths)


def _probe(paths: Sequence[ProbePath], min_seconds: float, max_seconds: float, run: int, slow: float) -> Measurement:
    try:
        return probe(paths, min_seconds, max_seconds, run, slow)
    except FileNotFoundError as error:
        raise KernelError(f"a namespace of the cluster is gone: {error.filename}") from error
    except OSError as error:
        raise KernelError(f"probes cannot be sent or received: {error.strerror or error}") from error

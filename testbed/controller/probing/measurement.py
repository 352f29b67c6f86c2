"""Measure with probes what links do, and judge it against their impairments."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from testbed.cluster.faults.injections import BOTH, DirectionName, in_force, is_down, links_of
from testbed.cluster.plan.switch_ports import patch_of
from testbed.cluster.plan.veth_wiring import Wiring
from testbed.cluster.records.state import State, Store
from testbed.controller.probing.expectations import expect
from testbed.controller.probing.probe_findings import Subject, judge, judge_down
from testbed.controller.probing.probe_plan import LONGEST, SHORTEST, plan_for
from testbed.controller.probing.probes import Measured, ProbePath, ProbePort, probe
from testbed.controller.verdict import spans
from testbed.controller.verdict.accounts import take_account
from testbed.controller.verdict.thresholds import Table
from testbed.controller.verdict.verdicts import Finding, Grade, Verdict, verdict_of
from testbed.errors import ConflictError, KernelError, NotFoundError
from testbed.kernel import userns
from testbed.kernel.children import in_child
from testbed.kernel.datapaths import Fit
from testbed.kernel.datapaths import judge as judge_datapath
from testbed.kernel.filesystem import read_text
from testbed.runtime import event_log
from testbed.runtime.relay.orders import RelayPaths
from testbed.spec.layout import Datapath, End, Impairment, Layout, Link


def measure(store: Store, state: State, target: str | None, seconds: float | None, table: Table) -> Verdict:
    """Measure a cluster that is up; for arguments and errors see `cluster_check.check`."""
    before = take_account(store, state)
    subjects, paths = _chosen(store, state, target)
    measured = _measure(state, paths, seconds, table.slow)
    after = take_account(store, state)
    events = list(event_log.read(store.directory(state.name)))
    now = store.read(state.name)
    changed = spans.changes(events, before.clock)
    if now is None or (now.layout, now.injected, now.datapaths) != (state.layout, state.injected, state.datapaths):
        raise ConflictError(f"cluster {state.name} was changed while it was measured: check it again")
    findings: list[Finding] = []
    if measured is not None:
        for (subject, down), probed in zip(subjects, measured.paths, strict=True):
            if down:
                findings += judge_down(subject, probed, table)
                continue
            place = subject.link, subject.direction
            lost, ruled = spans.overflowed(before, after, *place), spans.ruled(before, after, *place)
            findings += judge(replace(subject, overflowed=lost, ruled=subject.ruled or ruled), probed, table)
        findings += spans.sleeper_findings(measured.floor, measured.lag, table)
        findings.append(_stepped(measured.stepped, table))
    findings += spans.relay_findings(state, before, after, events, table)
    findings += spans.agent_findings(before, after, events, table)
    findings += spans.classifier_findings(before, after, table)
    findings += spans.replug_findings(events, before.clock, table)
    findings += spans.machine_findings(before, after, table)
    notes = [*spans.idle_rules(after), *(f"in the span, {words}" for words in changed)]
    modelled = list(dict.fromkeys(state.layout.modelled().values()))
    for kind in modelled:
        why = (
            f"no frame passes there without {kind.framing}"
            if kind.framing
            else "they are a model, with one end of a cable here"
        )
        notes.append(f"links at {kind.title}'s switches were not probed: {why}")
    if not (modelled or subjects):
        notes.append("no link is impaired: nothing was probed (name a link, a node or 'all' to probe it)")
    return verdict_of(findings, notes, (after.clock - before.clock) / 1e9, table.slow)


def _stepped(nanoseconds: int, table: Table) -> Finding:
    grade = table.grade("wall clock", nanoseconds)
    reason = "" if grade is Grade.TRUSTED else "the wall clock was set: delays measured meanwhile are wrong"
    return Finding("wall clock", "", "", 0.0, nanoseconds, "ns", grade, reason)


# What is probed, and from where to where


def _chosen(store: Store, state: State, target: str | None) -> tuple[list[tuple[Subject, bool]], list[ProbePath]]:
    """Choose the directions to probe, and say for each whether its link is down."""
    layout = state.layout
    modelled = layout.modelled().keys()
    links = links_of(layout, target) if target is not None else list(layout.links)
    links = [link for link in links if not modelled & {link.a.owner, link.b.owner}]
    directions: list[tuple[Link, DirectionName]] = [
        (link, direction)
        for link in links
        for direction in BOTH
        if target is not None or in_force(link, direction, state.injected).whole or is_down(link, state.injected)
    ]
    texts = _texts(store, state, directions)
    wiring = Wiring.of(layout, state.datapaths)
    subjects, paths = [], []
    for link, direction in directions:
        force = in_force(link, direction, state.injected)
        datapath = state.datapaths.get(link.name, "direct")
        # tc shapes by TBF, a token bucket; all other datapaths serialise.
        expectation = expect(force.impairment, texts, bucket=datapath == "tc")
        plan = plan_for(force.impairment, expectation, len(directions), _mtu(layout, link))
        source, sink = (link.a, link.b) if direction == "forward" else (link.b, link.a)
        subject = Subject(
            link.name,
            direction,
            expectation,
            plan,
            _approximate(datapath, force.impairment),
            bool(force.impairment.rules),
        )
        subjects.append((subject, is_down(link, state.injected)))
        paths.append(ProbePath(_place(state, wiring, source), _place(state, wiring, sink), plan))
    return subjects, paths


def _place(state: State, wiring: Wiring, end: End) -> ProbePort:
    """Return where a link ends: a node's NIC, or the interface plugged into a switch. Where that is diverted or has a
    stage, the end of its patch that stands for it: the switch's frames leave there, and returned frames enter it there."""
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
        raise KernelError(f"the namespace of {end.owner} is not known: 'testbed up' puts the cluster right")
    return ProbePort(state.namespaces[key], device, port)


def _mtu(layout: Layout, link: Link) -> int:
    """Return the MTU of a link, bytes; a cable between switches takes the largest of all NICs."""
    nics = {(node.name, nic.name): nic.mtu for node in layout.nodes for nic in node.nics}
    ends = [nics[end.owner, end.port] for end in (link.a, link.b) if (end.owner, end.port) in nics]
    return min(ends) if ends else max(nics.values(), default=1500)


def _approximate(datapath: str, impairment: Impairment) -> str:
    """Name the features that the datapath implements only approximately."""
    if datapath not in ("netem", "tc"):
        return ""
    carrier: Datapath = "netem" if datapath == "netem" else "tc"
    judgements = judge_datapath(carrier, impairment)
    return "; ".join(judgement.feature for judgement in judgements if judgement.fit is Fit.APPROXIMATE)


def _texts(store: Store, state: State, directions: Iterable[tuple[Link, DirectionName]]) -> Mapping[str, str]:
    """Read the files that impairments name: as the relay was given them, otherwise as they are now."""
    orders = RelayPaths(store.directory(state.name)).read_orders()
    texts = dict(orders.files) if orders is not None else {}
    base = Path(state.origin).parent if os.path.isfile(state.origin) else Path.cwd()
    for link, direction in directions:
        path = in_force(link, direction, state.injected).impairment.jitter_file
        if path and path not in texts:
            try:
                texts[path] = read_text(base / path)
            except (OSError, UnicodeDecodeError):
                continue  # the expectation reports that it cannot be read
    return texts


def _measure(state: State, paths: Sequence[ProbePath], seconds: float | None, slow: float) -> Measured | None:
    """Probe in a process of its own: without root, inside the cluster's user namespace."""
    if not paths:
        return None
    shortest, longest = (seconds, seconds) if seconds is not None else (SHORTEST, LONGEST)
    run = (os.getpid() << 16 ^ time.monotonic_ns()) & 0xFFFF_FFFF
    act = partial(_probe, paths, shortest, longest, run, slow)
    if userns.is_root():
        return in_child(act)
    if state.holder is None or not state.holder.alive:
        raise NotFoundError(f"cluster {state.name} is gone: 'testbed gc' removes what is left of it")
    return userns.call_inside(state.holder.pid, act)


def _probe(paths: Sequence[ProbePath], seconds: float, longest: float, run: int, slow: float) -> Measured:
    try:
        return probe(paths, seconds, longest, run, slow)
    except FileNotFoundError as error:
        raise KernelError(f"a namespace of the cluster is gone: {error.filename}") from error
    except OSError as error:
        raise KernelError(f"probes cannot be sent or heard: {error.strerror or error}") from error

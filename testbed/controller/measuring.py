"""Measuring with probes what links do, and judging it against what was asked of them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from testbed.cluster.injections import BOTH, DirectionName, in_force, is_down, links_of
from testbed.cluster.state import State, Store
from testbed.cluster.wiring import Wiring
from testbed.controller import spans
from testbed.controller.accounts import account
from testbed.controller.expecting import expect
from testbed.controller.judging import Subject, judge, judge_down
from testbed.controller.planning import LONGEST, SHORTEST, plan_for
from testbed.controller.probing import Measured, Place, Way, probe
from testbed.controller.thresholds import Table
from testbed.controller.verdicts import Finding, Grade, Verdict, verdict_of
from testbed.errors import ConflictError, KernelError, NotFoundError
from testbed.kernel import userns
from testbed.kernel.children import in_child
from testbed.kernel.datapaths import Datapath, Fit
from testbed.kernel.datapaths import judge as judge_datapath
from testbed.runtime import events
from testbed.runtime.orders import Places
from testbed.spec.layout import End, Impairment, Layout, Link


def measure(store: Store, state: State, target: str | None, seconds: float | None, table: Table) -> Verdict:
    """Of a cluster that is up; the arguments and errors are those of `checking.check`."""
    before = account(store, state)
    subjects, ways = _chosen(store, state, target)
    measured = _measure(state, ways, seconds, table.slow)
    after = account(store, state)
    told = list(events.read(store.directory(state.name)))
    now = store.read(state.name)
    changed = spans.changes(told, before.clock)
    if now is None or (now.layout, now.injected, now.datapaths) != (state.layout, state.injected, state.datapaths):
        raise ConflictError(f"cluster {state.name} was changed while it was measured: check it again")
    findings: list[Finding] = []
    if measured is not None:
        for (subject, down), probed in zip(subjects, measured.ways, strict=True):
            if down:
                findings += judge_down(subject, probed, table)
                continue
            place = subject.link, subject.direction
            lost, ruled = spans.overflowed(before, after, *place), spans.ruled(before, after, *place)
            findings += judge(replace(subject, overflowed=lost, ruled=subject.ruled or ruled), probed, table)
        findings += spans.sleeper_findings(measured.floor, measured.lag, table)
        findings.append(_stepped(measured.stepped, table))
    findings += spans.relay_findings(state, before, after, told, table)
    findings += spans.agent_findings(before, after, told, table)
    findings += spans.classifier_findings(before, after, table)
    findings += spans.replug_findings(told, before.clock, table)
    findings += spans.machine_findings(before, after, table)
    notes = [*spans.idle_rules(after), *(f"in the span, {words}" for words in changed)]
    if state.layout.crossbars():
        notes.append("links at Myrinet's switches were not probed: no frame passes there without a route")
    elif not subjects:
        notes.append("no link is impaired: nothing was probed (name a link, a node or 'all' to probe it)")
    return verdict_of(findings, notes, (after.clock - before.clock) / 1e9, table.slow)


def _stepped(nanoseconds: int, table: Table) -> Finding:
    grade = table.grade("wall clock", nanoseconds)
    reason = "" if grade is Grade.TRUSTED else "the wall clock was set: delays measured meanwhile are wrong"
    return Finding("wall clock", "", "", 0.0, nanoseconds, "ns", grade, reason)


# What is probed, and from where to where


def _chosen(store: Store, state: State, target: str | None) -> tuple[list[tuple[Subject, bool]], list[Way]]:
    """Every direction that is to be probed, and whether its link is down."""
    layout = state.layout
    crossbars = layout.crossbars()
    links = links_of(layout, target) if target is not None else list(layout.links)
    links = [link for link in links if not crossbars & {link.a.owner, link.b.owner}]
    directions: list[tuple[Link, DirectionName]] = [
        (link, direction)
        for link in links
        for direction in BOTH
        if target is not None or in_force(link, direction, state.injected).whole or is_down(link, state.injected)
    ]
    texts = _texts(store, state, directions)
    wiring = Wiring(layout, list(state.datapaths))
    subjects, ways = [], []
    for link, direction in directions:
        force = in_force(link, direction, state.injected)
        datapath = state.datapaths.get(link.name, "direct")
        # TBF is what tc shapes with; all other datapaths serialise.
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
        ways.append(Way(_place(state, wiring, source), _place(state, wiring, sink), plan))
    return subjects, ways


def _place(state: State, wiring: Wiring, end: End) -> Place:
    """Where a link ends: a node's NIC, or the interface that is plugged into a switch."""
    if end.owner in wiring.ports:
        key, device = wiring.ports[end.owner][int(end.port)]
    else:
        key, device = end.owner, end.port
    if key not in state.namespaces:
        raise KernelError(f"the namespace of {end.owner} is not known: 'testbed up' puts the cluster right")
    return Place(state.namespaces[key], device)


def _mtu(layout: Layout, link: Link) -> int:
    """The largest frame's payload that passes the link; a cable between switches takes what any NIC sends."""
    nics = {(node.name, nic.name): nic.mtu for node in layout.nodes for nic in node.nics}
    ends = [nics[end.owner, end.port] for end in (link.a, link.b) if (end.owner, end.port) in nics]
    return min(ends) if ends else max(nics.values(), default=1500)


def _approximate(datapath: str, impairment: Impairment) -> str:
    """What the datapath does approximately of what is asked for."""
    if datapath not in ("netem", "tc"):
        return ""
    carrier: Datapath = "netem" if datapath == "netem" else "tc"
    judgements = judge_datapath(carrier, impairment)
    return "; ".join(judgement.feature for judgement in judgements if judgement.fit is Fit.APPROXIMATE)


def _texts(store: Store, state: State, directions: Iterable[tuple[Link, DirectionName]]) -> Mapping[str, str]:
    """The files that impairments name: as the relay was given them, or as they are now."""
    orders = Places(store.directory(state.name)).read_orders()
    texts = dict(orders.files) if orders is not None else {}
    base = Path(state.origin).parent if os.path.isfile(state.origin) else Path.cwd()
    for link, direction in directions:
        path = in_force(link, direction, state.injected).impairment.jitter_file
        if path and path not in texts:
            try:
                texts[path] = (base / path).read_text()
            except (OSError, UnicodeDecodeError):
                continue  # the expectation says that it cannot be read
    return texts


def _measure(state: State, ways: Sequence[Way], seconds: float | None, slow: float) -> Measured | None:
    """Probe in a process of its own: where there is no root, inside the cluster's user namespace."""
    if not ways:
        return None
    shortest, longest = (seconds, seconds) if seconds is not None else (SHORTEST, LONGEST)
    run = (os.getpid() << 16 ^ time.monotonic_ns()) & 0xFFFF_FFFF
    act = partial(_probe, ways, shortest, longest, run, slow)
    if userns.is_root():
        return in_child(act)
    if state.keeper is None or not state.keeper.alive:
        raise NotFoundError(f"cluster {state.name} is gone: 'testbed gc' removes what is left of it")
    return userns.call_inside(state.keeper.pid, act)


def _probe(ways: Sequence[Way], seconds: float, longest: float, run: int, slow: float) -> Measured:
    try:
        return probe(ways, seconds, longest, run, slow)
    except FileNotFoundError as error:
        raise KernelError(f"a namespace of the cluster is gone: {error.filename}") from error
    except OSError as error:
        raise KernelError(f"probes cannot be sent or heard: {error.strerror or error}") from error

"""Whether a running cluster does what was asked of it: `check` measures with probes, `verdict` looks back on a span.

::

    before = baseline(cluster)
    ...                                  # a run
    told = verdict(cluster, since=before)
    if told.grade is Grade.INVALID: ...
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from testbed.cluster.injections import BOTH, DirectionName, in_force, is_down, links_of
from testbed.cluster.running import RunningCluster
from testbed.cluster.state import State, Store
from testbed.cluster.wiring import Wiring
from testbed.controller import spans
from testbed.controller.accounts import Account, account
from testbed.controller.expecting import expect
from testbed.controller.judging import Subject, judge, judge_down
from testbed.controller.planning import LONGEST, SHORTEST, plan_for
from testbed.controller.probing import Measured, Place, Way, probe
from testbed.controller.thresholds import TABLE, Table
from testbed.controller.verdicts import Finding, Grade, Verdict, verdict_of
from testbed.errors import ConflictError, DescriptionError, KernelError, NotFoundError, Problem
from testbed.kernel import userns
from testbed.kernel.children import in_child
from testbed.kernel.datapaths import Datapath, Fit
from testbed.kernel.datapaths import judge as judge_datapath
from testbed.runtime import events
from testbed.runtime.orders import Places
from testbed.spec.layout import End, Impairment, Layout, Link

Target = RunningCluster | str | None
"""A running cluster, its name, or None for the only one there is."""

_LONGEST: Final = 3600.0
_SMALLEST_MTU: Final = 68
_TOUCHING: Final = 50_000_000  # ns: an event is written a moment after what it tells of


def baseline(cluster: Target = None, store: Store | None = None) -> Account:
    """What the emulator and the machine have counted until now: taken before a run, for its `verdict`."""
    found = store or Store()
    return account(found, _state(found, cluster))


def verdict(
    cluster: Target = None, since: Account | int = 0, *, table: Table = TABLE, store: Store | None = None
) -> Verdict:
    """Look back on a span, without probes: events, the relay's report, the classifiers' and the kernel's counters.

    since: a `baseline`, or a time on the monotonic clock in nanoseconds. With a mere time nothing is known of the machine's
    counters then, and of the relay's lateness only what it was since the relay began. Raises NotFoundError.
    """
    found = store or Store()
    state = _state(found, cluster)
    before = since if isinstance(since, Account) else Account(since)
    after = account(found, state)
    told = list(events.read(found.directory(state.name)))
    changed = spans.changes(told, before.clock)
    findings = [
        *spans.relay_findings(state, before, after, told, table),
        *spans.classifier_findings(before, after, table),
        *spans.replug_findings(told, before.clock, table),
    ]
    notes = [*_idle_rules(after), *(f"in the span, {words}" for words in changed)]
    if isinstance(since, Account):
        findings += spans.counted_losses(state, before, after, table, changed=bool(changed))
        findings += spans.machine_findings(before, after, table)
    else:
        notes.append("without an account of its beginning nothing is said of the machine, nor of losses asked for")
    return verdict_of(findings, notes, (after.clock - before.clock) / 1e9, table.slow)


def nodes_taken_down(cluster: Target, since: int, store: Store | None = None) -> set[str]:
    """The nodes with a link that somebody had taken down at some time from then on (monotonic ns). NotFoundError."""
    found = store or Store()
    state = _state(found, cluster)
    cut = spans.taken_down(state, list(events.read(found.directory(state.name))), since)
    return {end.owner for link in state.layout.links if link.name in cut for end in (link.a, link.b)}


def check(
    cluster: Target = None,
    target: str | None = None,
    seconds: float | None = None,
    *,
    table: Table = TABLE,
    store: Store | None = None,
) -> Verdict:
    """Measure with probes what links do, and judge it.

    target: as for injections ("all", a link, a node): both directions of these links, impaired or not; without it, every
    direction that is impaired. seconds: how long probes are sent; without it, as long as what is asked for needs, 2 to 20.
    Raises NotFoundError, ConflictError for a cluster that is not up, KernelError for an interface that is not there.
    """
    if seconds is not None and not 0 < seconds <= _LONGEST:
        raise DescriptionError("the check", [Problem("seconds", f"{seconds:g}", f"more than 0, at most {_LONGEST:g}")])
    found = store or Store()
    state = _state(found, cluster)
    if state.abandoned or state.phase != "up":
        raise ConflictError(f"cluster {state.name} is not up: 'testbed status' says what is the matter")
    before = account(found, state)
    subjects, ways = _chosen(found, state, target)
    measured = _measure(state, ways, seconds, table.slow)
    after = account(found, state)
    told = list(events.read(found.directory(state.name)))
    now = found.read(state.name)
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
    findings += spans.classifier_findings(before, after, table)
    findings += spans.replug_findings(told, before.clock, table)
    findings += spans.machine_findings(before, after, table)
    notes = [*_idle_rules(after), *(f"in the span, {words}" for words in changed)]
    if not subjects:
        notes.append("no link is impaired: nothing was probed (name a link, a node or 'all' to probe it)")
    return verdict_of(findings, notes, (after.clock - before.clock) / 1e9, table.slow)


def _state(store: Store, cluster: Target) -> State:
    return store.choose(cluster.name if isinstance(cluster, RunningCluster) else cluster)


def _stepped(nanoseconds: int, table: Table) -> Finding:
    grade = table.grade("wall clock", nanoseconds)
    reason = "" if grade is Grade.TRUSTED else "the wall clock was set: delays measured meanwhile are wrong"
    return Finding("wall clock", "", "", 0.0, nanoseconds, "ns", grade, reason)


def _idle_rules(after: Account) -> list[str]:
    """Both directions of a link mostly have the same."""
    return list(dict.fromkeys(after.relay["idle_rules"])) if after.relay is not None else []


# What is probed, and from where to where


def _chosen(store: Store, state: State, target: str | None) -> tuple[list[tuple[Subject, bool]], list[Way]]:
    """Every direction that is to be probed, and whether its link is down."""
    layout = state.layout
    links = links_of(layout, target) if target is not None else list(layout.links)
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

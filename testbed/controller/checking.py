"""Whether a running cluster does what was asked of it: `check` measures with probes, `verdict` looks back on a span.

::

    before = baseline(cluster)
    ...                                  # a run
    told = verdict(cluster, since=before)
    if told.grade is Grade.INVALID: ...
"""

from __future__ import annotations

from typing import Final

from testbed.cluster.running import RunningCluster
from testbed.cluster.state import State, Store
from testbed.controller import spans
from testbed.controller.accounts import Account, account
from testbed.controller.thresholds import TABLE, Table
from testbed.controller.verdicts import Verdict, verdict_of
from testbed.errors import ConflictError, DescriptionError, Problem
from testbed.runtime import events

Target = RunningCluster | str | None
"""A running cluster, its name, or None for the only one there is."""

_LONGEST: Final = 3600.0


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
        *spans.agent_findings(before, after, told, table),
        *spans.classifier_findings(before, after, table),
        *spans.replug_findings(told, before.clock, table),
    ]
    notes = [*spans.idle_rules(after), *(f"in the span, {words}" for words in changed)]
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
    from testbed.controller.measuring import measure  # with all of probing, which a run does not need

    return measure(found, state, target, seconds, table)


def _state(store: Store, cluster: Target) -> State:
    return store.choose(cluster.name if isinstance(cluster, RunningCluster) else cluster)

"""Check that a running cluster's links behave as configured: `check` measures them with probes, `verdict` judges a past
span by events and counters.

::

    before = baseline(cluster)
    ...                                  # a run
    result = verdict(cluster, since=before)
    if result.grade is Grade.INVALID: ...
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from testbed.cluster.records.state import State, Store
from testbed.cluster.running_cluster import RunningCluster
from testbed.controller.runs.run_recorder import verdict_to_json
from testbed.controller.verdict import spans
from testbed.controller.verdict.counter_snapshots import CounterSnapshot, read_counters
from testbed.controller.verdict.outages import ProcessOutages, await_supervisor, supervisor_findings
from testbed.controller.verdict.thresholds import TABLE, Table
from testbed.controller.verdict.verdicts import Verdict, verdict_of
from testbed.errors import ConflictError, DescriptionError, Problem
from testbed.runtime import event_log

ClusterOrName = RunningCluster | str | None
"""A running cluster, its name, or None for the only running cluster."""

NO_BASELINE: Final = "no counters were read at the beginning of the span: machine and configured losses are not judged"

_MAX_SECONDS: Final = 3600.0


def baseline(cluster: ClusterOrName = None) -> CounterSnapshot:
    """Read the counters of the emulator and the machine before a run, for its `verdict`. Raises NotFoundError, KernelError
    for a damaged cluster."""
    store = Store()
    return read_counters(store, _state(store, cluster))


def verdict(cluster: ClusterOrName = None, since: CounterSnapshot | int = 0, *, table: Table = TABLE) -> Verdict:
    """Judge a past span by events, the relay's report, and counters of the classifiers and the kernel, without probes.

    since: a `baseline`, or a time on the monotonic clock in nanoseconds. With only a time, the machine and configured losses
    are not judged, and the relay's lateness counts from the relay's start. Raises NotFoundError, KernelError for a damaged
    cluster.
    """
    store = Store()
    state = _state(store, cluster)
    before = since if isinstance(since, CounterSnapshot) else CounterSnapshot(since)
    if state.end_reason:
        return verdict_of(
            ProcessOutages(state.name, before.clock).findings(), seconds=(time.monotonic_ns() - before.clock) / 1e9
        )
    await_supervisor(state, store.directory(state.name), before.clock)
    after = read_counters(store, state)
    events = list(event_log.read(store.directory(state.name)))
    changes = spans.describe_changes(events, before.clock)
    findings = [
        *spans.relay_findings(state, before, after, events, table),
        *spans.agent_findings(before, after, events, table),
        *spans.classifier_findings(before, after, table),
        *spans.replug_findings(events, before.clock, table),
        *supervisor_findings(state, store.directory(state.name), events, before.clock),
    ]
    notes = [*spans.idle_rules(after), *(f"in the span, {change}" for change in changes)]
    if isinstance(since, CounterSnapshot):
        findings += spans.counted_losses(state, before, after, table, changed=bool(changes))
        findings += spans.machine_findings(before, after, table)
    else:
        notes.append(NO_BASELINE)
    return verdict_of(findings, notes, (after.clock - before.clock) / 1e9, table.slow)


def nodes_taken_down(cluster: ClusterOrName, since: int) -> set[str]:
    """Return the nodes with a link that was taken down at or after `since`, monotonic nanoseconds. Raises NotFoundError."""
    store = Store()
    state = _state(store, cluster)
    cut = spans.links_taken_down(state, list(event_log.read(store.directory(state.name))), since)
    return {end.owner for link in state.layout.links if link.name in cut for end in (link.a, link.b)}


def check(
    cluster: ClusterOrName = None,
    target: str | None = None,
    seconds: float | None = None,
    *,
    table: Table = TABLE,
    store: Store | None = None,
) -> Verdict:
    """Measure links with probes, and judge them by their impairments.

    target: as for injections ("all", a link, a node): both directions of these links, impaired or not; by default every
    impaired direction. seconds: duration of probing; by default 2 to 20, as the impairments require. Raises
    NotFoundError, ConflictError for a cluster that is not up, KernelError for a missing interface.
    """
    check_duration(seconds)
    store = store or Store()
    state = _state(store, cluster)
    if state.abandoned or state.phase != "up":
        raise ConflictError(f"cluster {state.name} is not up: 'testbed status' shows the reason")
    from testbed.controller.probing.measurement import measure  # imports all of probing, which a run does not need

    return measure(store, state, target, seconds, table)


def check_links(name: str, links: Sequence[str] | None, seconds: float | None, slow: float) -> Mapping[str, object]:
    """Measure the links within this machine's part of a cluster, for a worker; return the verdict as in JSON. links: names
    of links, also of other machines; None: all impaired ones. slow: the slow-machine factor."""
    from testbed.controller.probing.measurement import measure

    store = Store()
    state = store.choose(name)
    if state.abandoned or state.phase != "up":
        raise ConflictError(f"cluster {name} is not up: 'testbed status' shows the reason")
    return verdict_to_json(measure(store, state, links, seconds, Table(slow=slow)))


def look_back(name: str, since: int) -> Mapping[str, object]:
    """Return the `verdict` on this machine's part of a cluster, as in JSON, and its events, for a worker. since: monotonic
    nanoseconds."""
    return {"verdict": verdict_to_json(verdict(name, since)), "events": events_since(name, since)}


def events_since(name: str, since: int) -> list[Mapping[str, Any]]:
    """Return the events of a cluster at or after `since`, monotonic nanoseconds."""
    return [event for event in event_log.read(Store().directory(name)) if event["clock"] >= since]


def check_duration(seconds: float | None) -> None:
    """Check a duration of probing; None: the default. Raises DescriptionError."""
    if seconds is not None and not 0 < seconds <= _MAX_SECONDS:
        raise DescriptionError(
            "the check", [Problem("seconds", f"{seconds:g}", f"more than 0, at most {_MAX_SECONDS:g}")]
        )


def _state(store: Store, cluster: ClusterOrName) -> State:
    return store.choose(cluster.name if isinstance(cluster, RunningCluster) else cluster)

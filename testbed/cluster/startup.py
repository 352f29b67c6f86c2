"""Startup of a cluster with the caller's rights: directly as root, otherwise in a user namespace."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import get_args

from testbed.cluster import lifecycle, removal
from testbed.cluster.lifecycle import ApplyResult
from testbed.cluster.plan.host_requirements import check_supported
from testbed.cluster.records.state import State, Store
from testbed.cluster.services import namespace_holder
from testbed.cluster.transitions import DesiredState, Progress, no_progress
from testbed.errors import DescriptionError, OtherPidNamespaceError, Problem, UnreadableStateError
from testbed.kernel import processes, userns
from testbed.kernel.processes import identity
from testbed.spec.layout import ConfiguredDatapath, Impairment, Layout


def bring_up(
    store: Store,
    layout: Layout,
    *,
    name: str,
    origin: str,
    lasting: bool,
    replace_other: bool = False,
    dry_run: bool = False,
    progress: Progress = no_progress,
    asked: ConfiguredDatapath = "auto",
    log: str = "",
) -> ApplyResult:
    """Bring a cluster up or converge it.

    For arguments see `DesiredState` and `lifecycle.up`; `progress` is only called as root. Raises the errors of
    `lifecycle.up`, and DescriptionError for an unknown datapath.
    """
    if asked not in get_args(ConfiguredDatapath):
        raise DescriptionError(name, [Problem("datapath", repr(asked), ", ".join(get_args(ConfiguredDatapath)))])
    if not os.path.isfile(origin):
        layout = _with_absolute_files(layout)
    desired = DesiredState(name, layout, origin, lasting, identity(), asked=asked, log=log)
    up = partial(lifecycle.up, store, replace_other=replace_other, dry_run=dry_run)
    if userns.is_root():
        return up(desired, progress=progress)
    state = store.read(name)
    running = state if state is not None and not state.abandoned else None
    may_replace = replace_other and lasting and not dry_run
    if running is not None and running.lasting and running.origin != origin and may_replace:
        check_supported(layout, asked)  # fail before the other cluster is removed
        removal.down(store, name)
        running = None
    if running is not None and running.holder is not None:
        return userns.call_inside(running.holder.pid, partial(up, replace(desired, holder=running.holder)))
    if dry_run:
        return up(desired)
    holder = namespace_holder.hold_user_namespace(store.root, name, lasting=lasting)
    try:
        return userns.call_inside(holder.pid, partial(up, replace(desired, holder=holder)))
    except BaseException:
        processes.end(holder)
        raise


def former_names(store: Store, layout: Layout, origin: str) -> list[str]:
    """List the running clusters that a file brought up under an earlier name of its description.

    origin: path of the file. Clusters whose name was chosen on the command line are not included.
    """
    if not os.path.isfile(origin):
        return []
    states = (read_if_possible(store, name) for name in store.names())
    return [
        state.name
        for state in states
        if state is not None
        and (state.origin, state.name) == (origin, state.layout.name)
        and state.name != layout.name
        and state.lasting
    ]


def read_if_possible(store: Store, name: str) -> State | None:
    """Read a cluster's state; None if there is none, it is unreadable or it is of another pid namespace."""
    with contextlib.suppress(UnreadableStateError, OtherPidNamespaceError):
        return store.read(name)
    return None


def _with_absolute_files(layout: Layout) -> Layout:
    """Make the paths of jitter tables and rate traces absolute.

    In a description made in Python, paths are relative to the working directory, and later changes, such as those of the
    supervisor, are made by processes with other working directories.
    """

    def with_absolute_paths(impairment: Impairment) -> Impairment:
        jitter_file, rate_trace = (
            path and str(Path(path).absolute()) for path in (impairment.jitter_file, impairment.rate_trace)
        )
        return replace(impairment, jitter_file=jitter_file, rate_trace=rate_trace)

    if not any(side.jitter_file or side.rate_trace for link in layout.links for side in (link.forward, link.backward)):
        return layout
    links = [
        replace(link, forward=with_absolute_paths(link.forward), backward=with_absolute_paths(link.backward))
        for link in layout.links
    ]
    return replace(layout, links=tuple(links))

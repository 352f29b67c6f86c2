"""Bring a cluster up with the caller's rights: directly as root, otherwise in a user namespace."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from functools import partial
from pathlib import Path

from testbed.cluster import lifecycle, removal
from testbed.cluster.lifecycle import ApplyResult
from testbed.cluster.plan.host_requirements import check_supported
from testbed.cluster.records.state import State, Store
from testbed.cluster.services import namespace_holder
from testbed.cluster.transitions import DesiredState, Progress, silent
from testbed.errors import UnreadableStateError
from testbed.kernel import processes, userns
from testbed.kernel.processes import identity
from testbed.spec.layout import Asked, Impairment, Layout


def bring_up(
    store: Store,
    layout: Layout,
    *,
    name: str,
    origin: str,
    lasting: bool,
    replace_other: bool = False,
    dry_run: bool = False,
    progress: Progress = silent,
    asked: Asked = "auto",
    log: str = "",
) -> ApplyResult:
    """Bring a cluster up or converge it; arguments and errors are those of `lifecycle.up`."""
    if not os.path.isfile(origin):
        layout = _with_files_from(Path.cwd(), layout)
    desired = DesiredState(name, layout, origin, lasting, identity(), asked=asked, log=log)
    act = partial(lifecycle.up, store, replace_other=replace_other, dry_run=dry_run)
    if userns.is_root():
        return act(desired, progress=progress)
    state = store.read(name)
    running = state if state is not None and not state.abandoned else None
    if running is not None and running.origin != origin and replace_other and not dry_run:
        check_supported(layout)  # fail before the other cluster is removed
        removal.down(store, name)
        running = None
    if running is not None and running.holder is not None:
        return userns.call_inside(running.holder.pid, partial(act, replace(desired, holder=running.holder)))
    if dry_run:
        return act(desired)
    holder = namespace_holder.hold_user_namespace(store.root, name, lasting=lasting)
    try:
        return userns.call_inside(holder.pid, partial(act, replace(desired, holder=holder)))
    except BaseException:
        processes.end(holder)
        raise


def former_names(store: Store, layout: Layout, origin: str) -> list[str]:
    """List running clusters of this file under a name that the file used to have.

    Clusters whose name was chosen on the command line are not included.
    """
    if not os.path.isfile(origin):
        return []
    states = (readable(store, name) for name in store.names())
    return [
        state.name
        for state in states
        if state is not None
        and (state.origin, state.name) == (origin, state.layout.name)
        and state.name != layout.name
        and state.lasting
    ]


def readable(store: Store, name: str) -> State | None:
    with contextlib.suppress(UnreadableStateError):
        return store.read(name)
    return None


def _with_files_from(base: Path, layout: Layout) -> Layout:
    """Make the paths of tables and traces absolute.

    A description that is no file has paths relative to its author's working directory; later changes, such as the
    supervisor's, run elsewhere.
    """

    def placed(impairment: Impairment) -> Impairment:
        jitter_file, rate_trace = (
            path and str(base / path) for path in (impairment.jitter_file, impairment.rate_trace)
        )
        return replace(impairment, jitter_file=jitter_file, rate_trace=rate_trace)

    if not any(side.jitter_file or side.rate_trace for link in layout.links for side in (link.forward, link.backward)):
        return layout
    links = (replace(link, forward=placed(link.forward), backward=placed(link.backward)) for link in layout.links)
    return replace(layout, links=tuple(links))

"""Bringing a cluster up as whoever asks: as root here and now, without root inside a user namespace of its own."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.cluster import keeper, lifecycle, removal
from testbed.cluster.lifecycle import Outcome, Progress, Wish, silent
from testbed.cluster.requirements import check_supported
from testbed.cluster.state import Store
from testbed.kernel import processes, userns
from testbed.kernel.processes import identity
from testbed.spec.layout import Impairment, Layout

if TYPE_CHECKING:
    from testbed.kernel.datapaths import Asked


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
) -> Outcome:
    """Bring a cluster up or converge it; the arguments and errors are those of `lifecycle.up`."""
    if not os.path.isfile(origin):
        layout = _with_files_from(Path.cwd(), layout)
    wish = Wish(name, layout, origin, lasting, identity(), asked=asked, log=log)
    act = partial(lifecycle.up, store, replace_other=replace_other, dry_run=dry_run)
    if userns.is_root():
        return act(wish, progress=progress)
    state = store.read(name)
    running = state if state is not None and not state.abandoned else None
    if running is not None and running.origin != origin and replace_other and not dry_run:
        check_supported(layout)  # what cannot be brought up does not cost the other its life
        removal.down(store, name)
        running = None
    if running is not None and running.keeper is not None:
        return userns.call_inside(running.keeper.pid, partial(act, replace(wish, keeper=running.keeper)))
    if dry_run:
        return act(wish)
    holder = keeper.hold_user_namespace(store.root, name, lasting=lasting)
    try:
        return userns.call_inside(holder.pid, partial(act, replace(wish, keeper=holder)))
    except BaseException:
        processes.end(holder)
        raise


def _with_files_from(base: Path, layout: Layout) -> Layout:
    """With whole paths of tables and traces. Where a description is no file its relative paths begin where its author is
    now; whoever changes the cluster later, the steward for one, is elsewhere."""

    def placed(impairment: Impairment) -> Impairment:
        jitter_file, rate_trace = (
            path and str(base / path) for path in (impairment.jitter_file, impairment.rate_trace)
        )
        return replace(impairment, jitter_file=jitter_file, rate_trace=rate_trace)

    links = (replace(link, forward=placed(link.forward), backward=placed(link.backward)) for link in layout.links)
    return replace(layout, links=tuple(links))

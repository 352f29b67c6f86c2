"""Target of a run: a description in the simulation, a cluster that is up, or one that is brought up for the run."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from testbed.errors import ConflictError, NotFoundError, UnsupportedError
from testbed.observe.recorded import FATES
from testbed.spec.layout import Layout

if TYPE_CHECKING:
    from testbed.cluster.running_cluster import RunningCluster
    from testbed.controller.runs.execution import Follow
    from testbed.controller.runs.run_recorder import KeptFolder
    from testbed.controller.runs.spread_execution import SpreadCluster
    from testbed.spec.model import Description

_SILENT: Final = ("netem", "tc")
_MAX_SHOWN: Final = 4  # links
_NOT_FROM_THE_BEGINNING: Final = (
    "the cluster was up before the run: 'testbed up --fates' says where its fates are written"
)
_numbers: Final = itertools.count(1)


@dataclass(frozen=True, slots=True)
class RunTarget:
    """Target of a run. name: the description's, or the running cluster's. origin: a file's path, ``topology:NAME`` or
    ``python``. base: directory of the files that impairments name. toml: the description, empty where only its layout
    is known. up: the running cluster, which stays. live: whether a cluster is to be brought up otherwise. spread: the
    running cluster, if it is one on several machines."""

    name: str
    origin: str
    base: Path
    layout: Layout
    toml: str
    up: RunningCluster | None
    live: bool
    spread: SpreadCluster | None = None

    @contextlib.contextmanager
    def ready(
        self, follow: Follow, folder: KeptFolder, *, fates: bool = False, log: bool = True, slow: int = 1
    ) -> Iterator[RunningCluster | None]:
        """Yield the cluster, up and locked for this run, until the end of the block; None in the simulation, and for a
        cluster on several machines, which lock their parts.

        The cluster's events are added to the folder's. log: also log the fates of frames in the folder, as far as the
        datapaths report them; the result says how far. fates: let the relay, which reports fates, carry all impaired
        links. slow: factor by which its links are slowed. Raises the errors of `bring_up`, and ConflictError.
        """
        if not self.live or self.spread is not None:
            yield None
            return
        from testbed.cluster.records.state import Store
        from testbed.cluster.running_cluster import RunningCluster
        from testbed.runtime import event_log

        with contextlib.ExitStack() as stack:
            store, begun = Store(), time.monotonic_ns()
            running = self.up
            if running is not None and fates:
                raise UnsupportedError(
                    f"{self.name} is up already: 'testbed up --fates' says where its fates are written"
                )
            if running is None:
                from testbed.cluster.startup import bring_up
                from testbed.spec.dilation import slow_layout

                follow(f"bringing up {self.name}")
                layout, name = slow_layout(self.layout, slow), f"{self.name[:36]}-run-{os.getpid()}-{next(_numbers)}"
                outcome = bring_up(store, layout, name=name, origin=self.origin, lasting=False,
                                   asked="relay" if fates else "auto",
                                   log=str(folder.path / FATES) if log else "")  # fmt: skip
                running = stack.enter_context(RunningCluster(store, outcome.state))
            stack.enter_context(locked(store, running.name))
            state = running.state

            def tell() -> None:
                events = [
                    event
                    for event in event_log.read(store.directory(state.name))
                    if int(event.get("clock", 0)) >= begun
                ]
                folder.events(events)
                if log:
                    gaps = [_NOT_FROM_THE_BEGINNING] if self.up is not None else fate_log_gaps(state.datapaths, events)
                    folder.say(fates={"whole": not gaps, "untold": gaps})

            stack.callback(tell)
            folder.event("the cluster is up", cluster=running.name, datapaths=dict(running.state.datapaths))
            yield running
            follow(f"taking down {self.name}" if self.up is None else "")


def fate_log_gaps(datapaths: Mapping[str, str], events: Iterable[Mapping[str, Any]]) -> list[str]:
    """the cluster, from then on."""
    carriers = {(link, carrier) for link, carrier in datapaths.items()}
    gaps = []
    for event in events:
        if event["event"] == "replugged":
            carriers |= {(event["link"], event["before"]), (event["link"], event["after"])}
        elif event["event"] == "fates untold":
            gaps.append(f"it ends before the run: {event['reason']}")
    silent = sorted({link for link, carrier in carriers if carrier in _SILENT})
    if silent:
        more = f" and {len(silent) - _MAX_SHOWN} more" if len(silent) > _MAX_SHOWN else ""
        links = ", ".join(silent[:_MAX_SHOWN]) + more
        gaps.append(f"the kernel forwards {links} and logs no fates: --fates lets the relay forward and log them")
    return gaps


def find_target(
    cluster: str | Path | Description | Layout | RunningCluster | SpreadCluster, mode: str, seed: int | None
) -> RunTarget:
    """Find the target of a run, see `runner.run`. Raises NotFoundError, DescriptionError, and the errors of loading."""
    live = mode != "sim"
    if isinstance(cluster, Layout):
        layout = cluster if seed is None else replace(cluster, seed=seed)
        return RunTarget(layout.name, "python", Path.cwd(), layout, "", None, live)
    if not isinstance(cluster, str | Path):
        from testbed.spec.model import Description

        if isinstance(cluster, Description):
            return _described(cluster, "python", live, seed)
        from testbed.cluster.running_cluster import RunningCluster

        return _running(cluster, live) if isinstance(cluster, RunningCluster) else _spread(cluster, live, seed)
    if live and (running := _up(str(cluster))) is not None:
        return _running(running, live)
    from testbed.spec.loader import load

    loaded = load(cluster)
    if live and (running := _up(loaded.description.name)) is not None and running.state.origin == loaded.origin:
        return _running(running, live)
    return _described(loaded.description, loaded.origin, live, seed)


def _described(description: Description, origin: str, live: bool, seed: int | None) -> RunTarget:
    from testbed.spec.resolver import resolve
    from testbed.spec.toml_writer import to_toml

    layout = resolve(description)
    if seed is not None:
        layout = replace(layout, seed=seed)
    base = Path(origin).parent if os.path.isfile(origin) else Path.cwd()
    return RunTarget(layout.name, origin, base, layout, to_toml(description), None, live)


def _spread(cluster: SpreadCluster, live: bool, seed: int | None) -> RunTarget:
    layout = cluster.state().layout
    layout = layout if seed is None else replace(layout, seed=seed)
    return RunTarget(cluster.name, "machines", Path.cwd(), layout, "", None, live, cluster)


def _running(cluster: RunningCluster, live: bool) -> RunTarget:
    state = cluster.state
    if live and state.end_reason:
        raise NotFoundError(state.end_reason)
    base = Path(state.origin).parent if os.path.isfile(state.origin) else Path.cwd()
    return RunTarget(cluster.name, state.origin, base, state.layout, "", cluster if live else None, live)


def _up(name: str) -> RunningCluster | None:
    """Return the cluster of this name if it is up."""
    from testbed.cluster.records.state import Store
    from testbed.cluster.running_cluster import RunningCluster

    store = Store()
    if name not in store.names():
        return None
    with contextlib.suppress(NotFoundError):
        state = store.choose(name)
        if state.phase == "up":
            return RunningCluster(store, state)
    return None


@contextlib.contextmanager
def locked(store: object, name: str) -> Iterator[None]:
    """Lock the cluster for one run: two runs would take each other's frames."""
    from testbed.cluster.records.state import Store

    assert isinstance(store, Store)
    with store.hosts(name).open("rb") as file:  # written in place while the cluster lives
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConflictError(
                f"another run is at work on cluster {name}: wait for its end, or use another name"
            ) from None
        yield

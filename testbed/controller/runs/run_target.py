"""Target of a run: a description in the simulation, a running cluster, or a cluster that is brought up for the run."""

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
    from testbed.cluster.records.state import Store
    from testbed.cluster.running_cluster import RunningCluster
    from testbed.controller.runs.execution import ProgressCallback
    from testbed.controller.runs.run_recorder import RunRecorder
    from testbed.controller.runs.spread_execution import SpreadCluster
    from testbed.spec.model import Description

_WITHOUT_FATE_LOG: Final = ("netem", "tc")  # datapaths
_MAX_SHOWN: Final = 4  # links
_UP_BEFORE_RUN: Final = (
    "the cluster was up before the run: its fates are in the log that 'testbed up --fates' started, if any"
)
_numbers: Final = itertools.count(1)


@dataclass(frozen=True, slots=True)
class RunTarget:
    """Target of a run. name: the description's, or the running cluster's. origin: a file's path, ``topology:NAME``,
    ``python`` or ``machines``. base: directory of the files that impairments name. toml: the description; empty if only its
    layout is known. running: a running cluster, which stays up. live: whether the run is in namespaces, where a cluster is
    brought up unless one is running. spread: a running cluster on several machines."""

    name: str
    origin: str
    base: Path
    layout: Layout
    toml: str
    running: RunningCluster | None
    live: bool
    spread: SpreadCluster | None = None

    @contextlib.contextmanager
    def ready(
        self,
        on_progress: ProgressCallback,
        recorder: RunRecorder,
        *,
        fates: bool = False,
        log: bool = True,
        factor: int = 1,
    ) -> Iterator[RunningCluster | None]:
        """Yield the cluster, up and locked for this run, until the end of the block; None in the simulation, and for a
        cluster on several machines, which lock their parts.

        The cluster's events are added to those of the run. log: log the fates of frames in the folder; the result names
        gaps of the log. fates: let the relay, which logs fates, carry all impaired links. factor: factor by which links
        are slowed. Raises the errors of `bring_up`, ConflictError if another run uses the cluster, and UnsupportedError for
        `fates` on a cluster that was up before.
        """
        if not self.live or self.spread is not None:
            yield None
            return
        from testbed.cluster.records.state import Store
        from testbed.cluster.running_cluster import RunningCluster
        from testbed.runtime import event_log

        with contextlib.ExitStack() as stack:
            store, started = Store(), time.monotonic_ns()
            running = self.running
            if running is not None and fates:
                raise UnsupportedError(
                    f"{self.name} is up already: --fates of a run needs a cluster that the run brings up; use 'testbed up "
                    "--fates'"
                )
            if running is None:
                from testbed.cluster.startup import bring_up
                from testbed.spec.dilation import slow_layout

                on_progress(f"bringing up {self.name}")
                layout, name = slow_layout(self.layout, factor), f"{self.name[:36]}-run-{os.getpid()}-{next(_numbers)}"
                outcome = bring_up(store, layout, name=name, origin=self.origin, lasting=False,
                                   asked="relay" if fates else "auto",
                                   log=str(recorder.path / FATES) if log else "")  # fmt: skip
                running = stack.enter_context(RunningCluster(store, outcome.state))
            stack.enter_context(locked(store, running.name))
            state = running.state

            def record_events() -> None:
                events = [
                    event
                    for event in event_log.read(store.directory(state.name))
                    if int(event.get("clock", 0)) >= started
                ]
                recorder.add_events(events)
                if log:
                    gaps = [_UP_BEFORE_RUN] if self.running is not None else fate_log_gaps(state.datapaths, events)
                    recorder.add_result(fates={"whole": not gaps, "untold": gaps})

            stack.callback(record_events)
            recorder.add_event("the cluster is up", cluster=running.name, datapaths=dict(running.state.datapaths))
            yield running
            on_progress(f"taking down {self.name}" if self.running is None else "")


def fate_log_gaps(datapaths: Mapping[str, str], events: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the reasons why the fate log of a cluster is incomplete, as sentences. datapaths: datapaths of links at the
    beginning. events: events of the cluster since then."""
    carriers = {(link, carrier) for link, carrier in datapaths.items()}
    gaps = []
    for event in events:
        if event["event"] == "replugged":
            carriers |= {(event["link"], event["before"]), (event["link"], event["after"])}
        elif event["event"] == "fates untold":
            gaps.append(f"it ends before the run: {event['reason']}")
    unlogged = sorted({link for link, carrier in carriers if carrier in _WITHOUT_FATE_LOG})
    if unlogged:
        more = f" and {len(unlogged) - _MAX_SHOWN} more" if len(unlogged) > _MAX_SHOWN else ""
        links = ", ".join(unlogged[:_MAX_SHOWN]) + more
        gaps.append(f"the kernel forwards {links} and logs no fates: --fates lets the relay forward and log them")
    return gaps


def find_target(
    cluster: str | Path | Description | Layout | RunningCluster | SpreadCluster, mode: str, seed: int | None
) -> RunTarget:
    """Find the target of a run, see `runner.run`. seed: seed of the links of a cluster that is not up; None: the
    description's. Raises NotFoundError, DescriptionError, and the errors of loading."""
    live = mode != "sim"
    if isinstance(cluster, Layout):
        layout = cluster if seed is None else replace(cluster, seed=seed)
        return RunTarget(layout.name, "python", Path.cwd(), layout, "", None, live)
    if not isinstance(cluster, str | Path):
        from testbed.spec.model import Description

        if isinstance(cluster, Description):
            return _description_target(cluster, "python", live, seed)
        from testbed.cluster.running_cluster import RunningCluster

        if isinstance(cluster, RunningCluster):
            return _running_target(cluster, live)
        return _spread_target(cluster, live, seed)
    if live and (running := _running_cluster(str(cluster))) is not None:
        return _running_target(running, live)
    from testbed.spec.loader import load

    loaded = load(cluster)
    running = _running_cluster(loaded.description.name) if live else None
    if running is not None and running.state.origin == loaded.origin:
        return _running_target(running, live)
    return _description_target(loaded.description, loaded.origin, live, seed)


def _description_target(description: Description, origin: str, live: bool, seed: int | None) -> RunTarget:
    from testbed.spec.resolver import resolve
    from testbed.spec.toml_writer import to_toml

    layout = resolve(description)
    if seed is not None:
        layout = replace(layout, seed=seed)
    base = Path(origin).parent if os.path.isfile(origin) else Path()
    return RunTarget(layout.name, origin, base, layout, to_toml(description), None, live)


def _spread_target(cluster: SpreadCluster, live: bool, seed: int | None) -> RunTarget:
    layout = cluster.state().layout
    layout = layout if seed is None else replace(layout, seed=seed)
    return RunTarget(cluster.name, "machines", Path.cwd(), layout, "", None, live, cluster)


def _running_target(cluster: RunningCluster, live: bool) -> RunTarget:
    state = cluster.state
    if live and state.end_reason:
        from testbed.cluster.records.state import Store

        is_down = cluster.name not in Store().names()
        raise NotFoundError(f"cluster {cluster.name} has been taken down" if is_down else state.end_reason)
    base = Path(state.origin).parent if os.path.isfile(state.origin) else Path()
    return RunTarget(cluster.name, state.origin, base, state.layout, "", cluster if live else None, live)


def _running_cluster(name: str) -> RunningCluster | None:
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
def locked(store: Store, name: str) -> Iterator[None]:
    """Lock the cluster for a run. Two runs on one cluster would receive each other's frames."""
    with store.hosts_file(name).open("rb") as file:  # never replaced while the cluster is up, so its lock stays valid
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConflictError(
                f"another run uses cluster {name}: wait for its end, or bring up a cluster of another name"
            ) from None
        yield

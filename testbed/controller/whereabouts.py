"""Where a run takes place: a description in the simulation, a cluster that is up, or one that is brought up for it."""

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
    from testbed.cluster.running import RunningCluster
    from testbed.controller.executing import Follow
    from testbed.controller.recording import KeptFolder
    from testbed.spec.model import Description

_SILENT: Final = ("netem", "tc")
_SHOWN: Final = 4  # links
_NOT_FROM_THE_BEGINNING: Final = (
    "the cluster was up before the run: 'testbed up --fates' says where its fates are written"
)
_numbers: Final = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """name: the description's, or the running cluster's. origin: a file's path, ``topology:NAME`` or ``python``. base: where
    the files are that impairments name. toml: the description, empty where only its layout is known. up: the cluster that is
    used and stays. live: whether there is to be one."""

    name: str
    origin: str
    base: Path
    layout: Layout
    toml: str
    up: RunningCluster | None
    live: bool

    @contextlib.contextmanager
    def ready(
        self, follow: Follow, folder: KeptFolder, *, fates: bool = False, log: bool = True, slow: int = 1
    ) -> Iterator[RunningCluster | None]:
        """The cluster, up and in nobody else's use, until the end of the block; None in the simulation. What happens to it
        is noted among the folder's events. log: what frames met is written there, too, as far as somebody can tell; the
        result says how far. fates: the relay, which can, carries all that is impaired. slow: how many times its links
        are slowed. Raises what `bring_up` does, and ConflictError."""
        if not self.live:
            yield None
            return
        from testbed.cluster.running import RunningCluster
        from testbed.cluster.state import Store
        from testbed.runtime import events

        with contextlib.ExitStack() as stack:
            store, begun = Store(), time.monotonic_ns()
            running = self.up
            if running is not None and fates:
                raise UnsupportedError(
                    f"{self.name} is up already: 'testbed up --fates' says where its fates are written"
                )
            if running is None:
                from testbed.cluster.bringing_up import bring_up
                from testbed.spec.slowing import slowed

                follow(f"bringing up {self.name}")
                layout, name = slowed(self.layout, slow), f"{self.name[:36]}-run-{os.getpid()}-{next(_numbers)}"
                outcome = bring_up(store, layout, name=name, origin=self.origin, lasting=False,
                                   asked="relay" if fates else "auto",
                                   log=str(folder.path / FATES) if log else "")  # fmt: skip
                running = stack.enter_context(RunningCluster(store, outcome.state))
            stack.enter_context(_alone(store, running.name))
            state = running.state

            def tell() -> None:
                told = [one for one in events.read(store.directory(state.name)) if int(one.get("clock", 0)) >= begun]
                folder.events(told)
                if log:
                    untold = [_NOT_FROM_THE_BEGINNING] if self.up is not None else untold_fates(state.datapaths, told)
                    folder.say(fates={"whole": not untold, "untold": untold})

            stack.callback(tell)
            folder.event("the cluster is up", cluster=running.name, datapaths=dict(running.state.datapaths))
            yield running
            follow(f"taking down {self.name}" if self.up is None else "")


def untold_fates(datapaths: Mapping[str, str], events: Iterable[Mapping[str, Any]]) -> list[str]:
    """Why a run's log of fates lacks some, in sentences. datapaths: who carried which link at its beginning. events: of the
    cluster, from then on."""
    carriers = {(link, carrier) for link, carrier in datapaths.items()}
    untold = []
    for event in events:
        if event["event"] == "replugged":
            carriers |= {(event["link"], event["before"]), (event["link"], event["after"])}
        elif event["event"] == "fates untold":
            untold.append(f"it ends before the run: {event['reason']}")
    silent = sorted({link for link, carrier in carriers if carrier in _SILENT})
    if silent:
        links = ", ".join(silent[:_SHOWN]) + (f" and {len(silent) - _SHOWN} more" if len(silent) > _SHOWN else "")
        untold.append(f"the kernel carries {links} and tells no fates: with --fates the relay does, which tells them")
    return untold


def find(cluster: str | Path | Description | Layout | RunningCluster, mode: str, seed: int | None) -> Whereabouts:
    """See `running.run`. Raises NotFoundError, DescriptionError, and what loading does."""
    live = mode != "sim"
    if isinstance(cluster, Layout):
        layout = cluster if seed is None else replace(cluster, seed=seed)
        return Whereabouts(layout.name, "python", Path.cwd(), layout, "", None, live)
    if not isinstance(cluster, str | Path):
        from testbed.spec.model import Description

        if isinstance(cluster, Description):
            return _described(cluster, "python", live, seed)
        return _running(cluster, live)
    if live and (running := _up(str(cluster))) is not None:
        return _running(running, live)
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # looking for them costs as much as 20 nodes
    from testbed.spec.loading import load

    loaded = load(cluster)
    if live and (running := _up(loaded.description.name)) is not None and running.state.origin == loaded.origin:
        return _running(running, live)
    return _described(loaded.description, loaded.origin, live, seed)


def _described(description: Description, origin: str, live: bool, seed: int | None) -> Whereabouts:
    from testbed.spec.resolving import resolve
    from testbed.spec.writing import to_toml

    layout = resolve(description)
    if seed is not None:
        layout = replace(layout, seed=seed)
    base = Path(origin).parent if os.path.isfile(origin) else Path.cwd()
    return Whereabouts(layout.name, origin, base, layout, to_toml(description), None, live)


def _running(cluster: RunningCluster, live: bool) -> Whereabouts:
    state = cluster.state
    base = Path(state.origin).parent if os.path.isfile(state.origin) else Path.cwd()
    return Whereabouts(cluster.name, state.origin, base, state.layout, "", cluster if live else None, live)


def _up(name: str) -> RunningCluster | None:
    """The cluster of that name, if it is up."""
    from testbed.cluster.running import RunningCluster
    from testbed.cluster.state import Store

    store = Store()
    if name not in store.names():
        return None
    with contextlib.suppress(NotFoundError):
        state = store.choose(name)
        if state.phase == "up":
            return RunningCluster(store, state)
    return None


@contextlib.contextmanager
def _alone(store: object, name: str) -> Iterator[None]:
    """One run at a time on a cluster: two would take each other's frames."""
    from testbed.cluster.state import Store

    assert isinstance(store, Store)
    with store.hosts(name).open("rb") as file:  # written in place while the cluster lives
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConflictError(
                f"another run is at work on cluster {name}: wait for its end, or use another name"
            ) from None
        yield

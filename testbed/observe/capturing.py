"""Captures of a running cluster's links: frames as they pass, with what they met, until somebody says stop.

::

    with cluster.capture("n1", "n1.pcapng") as capture:
        ...
    print(capture.result.frames, capture.result.met["loss"])

Nothing of it disturbs the links: frames are heard where they pass, and the relay tells of what they meet meanwhile,
whether it writes a log of fates or not.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from testbed.cluster.state import Store
from testbed.errors import NotFoundError, TestbedError, reason_of
from testbed.kernel import userns
from testbed.kernel.children import Companion
from testbed.kernel.entering import enter_keeper
from testbed.observe.joining import Seen
from testbed.observe.listening import Listening
from testbed.observe.writing import CaptureFile, Sink


@dataclass(frozen=True, slots=True)
class Captured:
    """What a capture has come to.

    frames: how many, by end of a link. met: frames that met something, by cause (see `wire.fates`, and "queue full").
    dropped: by end, frames that the kernel dropped since we had not read in time. cut: frames of which the end is lacking.
    untold: fates of which the relay could not tell in time, or of frames that are lacking. undecided: frames of which it is
    not known whether a loss classifier dropped them. late: frames out of order. gone: the cluster was taken down.
    """

    seconds: float = 0.0
    frames: Mapping[str, int] = field(default_factory=dict)
    met: Mapping[str, int] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)
    cut: int = 0
    untold: int = 0
    undecided: int = 0
    late: int = 0
    gone: bool = False

    @property
    def whole(self) -> bool:
        """Every frame is there, with all that it met."""
        return not (any(self.dropped.values()) or self.cut or self.untold or self.undecided)


def enter(store: Store, cluster: str) -> None:
    """Without root, move this process, which must have one thread, into the cluster's user namespace for good."""
    if userns.is_root():
        return
    state = store.choose(cluster)
    if state.keeper is None or not state.keeper.alive:
        raise NotFoundError(f"cluster {cluster} is gone: 'testbed gc' removes what is left of it")
    enter_keeper(state.keeper.pid)


def capture(
    store: Store,
    cluster: str,
    target: str,
    sink: Sink,
    stop: int,
    *,
    seconds: float = 0,
    count: int = 0,
    begun: Callable[[], object] = lambda: None,
) -> Captured:
    """Give the sink all frames of the target's links until the descriptor `stop` can be read, or for so many seconds, or
    until there are so many; 0 is no limit.

    target: a link, a node or a switch (all its links), or "all". begun: called when every frame from then on is heard.
    Raises NotFoundError, KernelError; OSError of the sink, once what came before is written.
    """
    listening = Listening(store, cluster, target)
    frames: Counter[str] = Counter()
    met: Counter[str] = Counter()
    left = count or None

    def give(ready: list[Seen]) -> bool:
        """Whether there are enough now."""
        nonlocal left
        ready = ready[:left]
        sink.take(ready)
        for seen in ready:
            frames[str(seen.point.end)] += 1
            met.update(seen.causes)
        if left is not None:
            left -= len(ready)
        return left == 0

    try:
        listening.begin()
        sink.know(listening.points)
        begun()
        until = time.monotonic() + seconds if seconds else float("inf")
        enough = False
        while not (enough or listening.gone or listening.wait(stop) or time.monotonic() >= until):
            enough = give(listening.frames())
        if not enough:
            for ready in listening.rest():
                if give(ready):
                    break
        listening.account()
        ended = time.time_ns()
        sink.end(listening.begun, ended, listening.dropped)
        return Captured(
            (ended - listening.begun) / 1e9,
            dict(frames),
            dict(met),
            {end: lacking for end, lacking in listening.dropped.items() if lacking},
            listening.cut,
            listening.untold,
            listening.undecided,
            listening.late,
            listening.gone,
        )
    finally:
        listening.close()


class Capture:
    """A capture into a file, in a process of its own, for the time of a block. When the block begins every frame is heard;
    when it has ended the file is complete, and `result` says what is in it."""

    def __init__(self, store: Store, cluster: str, target: str, path: str | Path) -> None:
        self.path = Path(path)
        self.result = Captured()
        self._store = store
        self._cluster = cluster
        self._target = target

    def __enter__(self) -> Capture:
        """TestbedError where there is nothing to hear, or the file cannot be written."""
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise TestbedError(f"the capture cannot be written: {reason_of(error)}") from error

        def act(begun: Callable[[], None], stop: int) -> Captured:
            enter(self._store, self._cluster)
            sink = CaptureFile(descriptor, str(self.path))
            return capture(self._store, self._cluster, self._target, sink, stop, begun=begun)

        try:
            self._companion = Companion(act)
        finally:
            os.close(descriptor)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.result = self._companion.end()

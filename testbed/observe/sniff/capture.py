"""Captures of a running cluster's links: frames as they pass, with their fates, until stopped.

::

    with cluster.capture("n1", "n1.pcapng") as capture:
        ...
    print(capture.result.frames, capture.result.fates["loss"])

A capture does not change the links: frames are captured at the interfaces that they pass. During the capture the relay
reports the frames' fates, whether or not it writes a log of fates.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from testbed.cluster.faults.injections import links_of
from testbed.cluster.records.state import Store
from testbed.errors import NotFoundError, TestbedError, reason_of
from testbed.kernel import userns
from testbed.kernel.children import ChildFunction
from testbed.kernel.setns import enter_holder
from testbed.observe.sniff.capture_sinks import CaptureFile, Sink
from testbed.observe.sniff.frame_merge import CapturedFrame
from testbed.observe.sniff.sniffer import Sniffer


@dataclass(frozen=True, slots=True)
class CaptureResult:
    """Result of a capture.

    seconds: duration. The counts are numbers of frames. frames: by end of a link. fates: frames with a fate, by cause: those
    of `fates.records`, and "queue full". dropped: by end, frames that the kernel dropped because the ring was full. cut:
    truncated frames. unknown_fates: fates that the relay could not report in time, or whose frames are missing from the
    capture. undecided: frames for which it is unknown whether a loss classifier dropped them. late: frames that were
    released out of order. gone: whether the cluster was taken down.
    """

    seconds: float = 0.0
    frames: Mapping[str, int] = field(default_factory=dict)
    fates: Mapping[str, int] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)
    cut: int = 0
    unknown_fates: int = 0
    undecided: int = 0
    late: int = 0
    gone: bool = False

    @property
    def complete(self) -> bool:
        """Whether every frame was captured with its fate."""
        return not (any(self.dropped.values()) or self.cut or self.unknown_fates or self.undecided)


def enter(store: Store, cluster: str) -> None:
    """Move this process into the cluster's user namespace, unless it has root. The process must have a single thread, and
    cannot leave the namespace. Raises NotFoundError."""
    if userns.is_root():
        return
    state = store.choose(cluster)
    if state.holder is None or not state.holder.is_alive:
        raise NotFoundError(f"cluster {cluster} is gone: 'testbed gc' removes what is left of it")
    enter_holder(state.holder.pid)


def open_capture_file(store: Store, cluster: str, target: str, path: str | Path) -> int:
    """Open the file of a capture for writing; return its descriptor. The target is checked first, so that a misspelt name
    does not truncate an earlier capture. Raises NotFoundError, TestbedError."""
    links_of(store.choose(cluster).layout, target)
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise TestbedError(f"the capture cannot be written: {reason_of(error)}") from error


def capture(
    store: Store,
    cluster: str,
    target: str,
    sink: Sink,
    stop: int,
    *,
    seconds: float = 0,
    count: int = 0,
    on_start: Callable[[], object] = lambda: None,
) -> CaptureResult:
    """Pass all frames of the target's links to the sink until the descriptor `stop` is readable, `seconds` have passed,
    `count` frames were captured, or the cluster is gone; 0 is no limit.

    target: a link, a node or a switch (all its links), or "all". on_start: called when the capture is active: every later
    frame is captured. Raises NotFoundError, ConflictError, KernelError; OSError of the sink, after earlier frames were
    written.
    """
    sniffer = Sniffer(store, cluster, target)
    frames: Counter[str] = Counter()
    fates: Counter[str] = Counter()
    remaining = count or None

    def pass_to_sink(ready: list[CapturedFrame]) -> bool:
        """Pass frames to the sink; return whether the limit is reached."""
        nonlocal remaining
        ready = ready[:remaining]
        sink.take(ready)
        for frame in ready:
            frames[str(frame.point.end)] += 1
            fates.update(frame.causes)
        if remaining is not None:
            remaining -= len(ready)
        return remaining == 0

    try:
        sniffer.begin()
        sink.announce(sniffer.points)
        on_start()
        deadline = time.monotonic() + seconds if seconds else float("inf")
        is_done = False
        while not (is_done or sniffer.gone or sniffer.wait(stop) or time.monotonic() >= deadline):
            is_done = pass_to_sink(sniffer.frames())
        if not is_done:
            for ready in sniffer.drain():
                if pass_to_sink(ready):
                    break
        sniffer.update_counts()
        ended = time.time_ns()
        sink.end(sniffer.begun, ended, sniffer.dropped)
        return CaptureResult(
            (ended - sniffer.begun) / 1e9,
            dict(frames),
            dict(fates),
            {end: missing for end, missing in sniffer.dropped.items() if missing},
            sniffer.cut,
            sniffer.unknown_fates,
            sniffer.undecided,
            sniffer.late,
            sniffer.gone,
        )
    finally:
        sniffer.close()


class Capture:
    """Capture into a file, in a separate process; a context manager.

    Every frame that passes during the block is captured. After the block the file is complete, and `result` summarizes it.
    """

    def __init__(self, store: Store, cluster: str, target: str, path: str | Path) -> None:
        self.path = Path(path)
        self.result = CaptureResult()
        self._store = store
        self._cluster = cluster
        self._target = target

    def __enter__(self) -> Capture:
        """Start the capture. Raises TestbedError if the target does not exist, or the file cannot be written."""
        descriptor = open_capture_file(self._store, self._cluster, self._target, self.path)

        def run_capture(on_start: Callable[[], None], stop: int) -> CaptureResult:
            enter(self._store, self._cluster)
            sink = CaptureFile(descriptor, str(self.path))
            return capture(self._store, self._cluster, self._target, sink, stop, on_start=on_start)

        try:
            self._child = ChildFunction(run_capture)
        finally:
            os.close(descriptor)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.result = self._child.end()

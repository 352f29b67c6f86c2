"""Forked children of the test process, so that starting and killing a hundred of them takes a few seconds."""

from __future__ import annotations

import os
import pickle
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from testbed.kernel.changes import observed_by
from testbed.kernel.children import in_child

Action = Callable[[], object]
LONG = bool(os.environ.get("TESTBED_LONG"))
STRIDE = 3


def changes_of(action: Action) -> list[str]:
    """Run the action in a child and return the changes that it announces, in order, without those of its children."""

    def observed() -> list[str]:
        pid, changes = os.getpid(), list[str]()
        with observed_by(lambda change: changes.append(change) if os.getpid() == pid else None):
            action()
        return changes

    return in_child(observed)


def kill_points(changes: Sequence[str], done: int = 0) -> list[tuple[int, str]]:
    """Return the changes after which a test kills, each with its number from 1, without the first `done` ones: with
    TESTBED_LONG=1 all, otherwise every third and the last."""
    points = list(enumerate(changes, 1))[done:]
    return points if LONG else [*points[:-1:STRIDE], *points[-1:]]


def kill_after(count: int, action: Action) -> None:
    """Perform the action in a child that is killed (SIGKILL) right after its change number `count`."""
    child = os.fork()
    if child == 0:
        pid, left = os.getpid(), count

        def kill(_: str) -> None:
            nonlocal left
            if os.getpid() == pid:
                left -= 1
                if not left:
                    os.kill(pid, signal.SIGKILL)

        try:
            with observed_by(kill):
                action()
        except BaseException:  # noqa: BLE001  nothing of the test's code may run on in the child
            traceback.print_exc()
        os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), f"the action ended before its change {count}"
    assert os.WTERMSIG(status) == signal.SIGKILL


class Background:
    """Child process that runs concurrently with the test."""

    def __init__(self, pid: int, reports: int) -> None:
        self.pid = pid
        self._reports = os.fdopen(reports, "rb")
        self._running = True

    def next_report(self) -> object:
        """Wait for the child's next report."""
        return pickle.load(self._reports)

    def wait(self) -> int:
        """Wait for the child's end; return its exit code, negative for a signal."""
        if not self._running:
            return 0
        _, status = os.waitpid(self.pid, 0)
        self._running = False
        return os.waitstatus_to_exitcode(status)

    def kill(self) -> None:
        if self._running:
            os.kill(self.pid, signal.SIGKILL)
            self.wait()

    def close(self) -> None:
        self.kill()
        self._reports.close()


@contextmanager
def background(action: Callable[[Callable[[object], None]], object]) -> Iterator[Background]:
    """Perform `action(report)` in a child, killed at the end. `next_report` returns the values passed to `report`."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(reader)
            action(lambda value: _write(writer, pickle.dumps(value)))
            status = 0
        except BaseException:  # noqa: BLE001  nothing of the test's code may run on in the child
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(writer)
    child = Background(pid, reader)
    try:
        yield child
    finally:
        child.close()


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]

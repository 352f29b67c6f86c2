"""Calls of functions in forked children, so that changes of namespaces end with the child. Signal handling for forks, for
critical sections, and for programs to be executed."""

from __future__ import annotations

import contextlib
import os
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Generic, TypeVar

from testbed.errors import TestbedError

T = TypeVar("T")

_STARTED: Final = b"\n"  # no pickle begins with it
_END: Final = b"\n"


def in_child(function: Callable[[], T]) -> T:
    """Call a function in a child process; return its result, or raise its TestbedError or OSError (both by pickle)."""
    reader, writer = os.pipe()
    child = fork()
    if child == 0:
        os.close(reader)
        _answer(writer, function)
    os.close(writer)
    with open(reader, "rb") as answers:
        answer = answers.read()
    _, status = os.waitpid(child, 0)
    result: T = _result(answer, status)
    return result


class ChildFunction(Generic[T]):
    """A function that runs in a child process until `end` is called, or this process ends."""

    def __init__(self, function: Callable[[Callable[[], None], int], T]) -> None:
        """Start function(begun, stop) and return once it has called begun(); it must end when the descriptor `stop` is
        readable. Raises its TestbedError or OSError if it fails before that."""
        stop, self._stop = os.pipe()
        self._answers, answer = os.pipe()
        self._child = fork()
        if self._child == 0:
            os.close(self._stop)
            os.close(self._answers)
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the parent, which ends this process

            def ready() -> None:
                os.write(answer, _STARTED)

            _answer(answer, lambda: function(ready, stop))
        os.close(stop)
        os.close(answer)
        try:
            prefix = os.read(self._answers, len(_STARTED))
        except BaseException:
            self._close()
            raise
        if prefix != _STARTED:
            with open(self._answers, "rb", closefd=False) as answers:
                answer_bytes = prefix + answers.read()
            _result(answer_bytes, self._close())
            raise TestbedError("a child process ended before it was ready")

    def end(self) -> T:
        """Request the function to end, and wait for its result. Raises the function's TestbedError or OSError."""
        with contextlib.suppress(BrokenPipeError):  # it has ended already
            os.write(self._stop, _END)  # closing is not sufficient: a forked process may have this end open, too
        try:
            with open(self._answers, "rb", closefd=False) as answers:
                answer = answers.read()
        finally:
            status = self._close()
        result: T = _result(answer, status)
        return result

    def _close(self) -> int:
        """Return the child's wait status."""
        os.close(self._stop)
        os.close(self._answers)
        return os.waitpid(self._child, 0)[1]


def _result(answer: bytes, status: int) -> Any:
    if not answer:
        code = os.waitstatus_to_exitcode(status)
        reason = f"was ended by signal {-code}" if code < 0 else "failed; its output is above"
        raise TestbedError(f"a child process {reason}")
    import pickle

    succeeded, value = pickle.loads(answer)  # written by our own child
    if not succeeded:
        raise value
    return value


def _answer(writer: int, function: Callable[[], T]) -> None:
    """Call the function in the child and write its answer; does not return."""
    import pickle
    import traceback

    try:
        try:
            answer = pickle.dumps((True, function()))
        except (TestbedError, OSError) as error:
            answer = pickle.dumps((False, error))
        with open(writer, "wb") as answers:
            answers.write(answer)
    except BaseException:  # noqa: BLE001  the parent's code must not run in the child
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


_INTERRUPTING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Block Ctrl-C and the termination signals in the calling thread until the body is done."""
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def fork() -> int:
    """Fork as `os.fork` does, with signals blocked: an exception raised by a signal handler in a callback of
    `os.register_at_fork` (logging has one) would be lost.

    Python warns if other threads run, since a lock that one holds stays locked in the child. The children of this package
    take no lock that those threads know. If the warning was an error, the child would go on without its parent's knowledge.
    """
    with signals_blocked(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def restore_signals() -> None:
    """Restore the default signal actions that Python has changed: an executed program would inherit them, and not end at a
    closed pipe."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)

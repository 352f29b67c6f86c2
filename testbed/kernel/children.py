"""Calls of functions in forked children, so that a change of namespaces ends with the child.

Also the handling of signals around forks, critical sections and executed programs.
"""

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

_STARTED: Final = b"\n"  # differs from the first byte of a pickle
_END: Final = b"\n"


def in_child(function: Callable[[], T]) -> T:
    """Call a function in a child process; return its result, or raise its TestbedError or OSError. Both must be picklable.

    Raises TestbedError if the child is killed, or fails with another exception, whose traceback it prints.
    """
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
        """Start function(ready, stop), and return once it has called ready(). The function must end when the descriptor
        `stop` becomes readable. Raises the function's TestbedError or OSError if it fails before, and TestbedError if it
        ends before."""
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
        """Request the end of the function, and return its result. Raises errors as `in_child` does."""
        with contextlib.suppress(BrokenPipeError):  # it has ended already
            os.write(self._stop, _END)  # closing is not sufficient: another forked process may have this end open
        try:
            with open(self._answers, "rb", closefd=False) as answers:
                answer = answers.read()
        finally:
            status = self._close()
        result: T = _result(answer, status)
        return result

    def _close(self) -> int:
        """Close the pipes and wait for the child; return its wait status."""
        os.close(self._stop)
        os.close(self._answers)
        return os.waitpid(self._child, 0)[1]


def _result(answer: bytes, status: int) -> Any:
    """Decode a child's answer. status: the child's wait status, for the error if there is no answer."""
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
    """Call the function in the child, and write its result or error; does not return."""
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
    """Block Ctrl-C and the termination signals in the calling thread until the end of the block."""
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def fork() -> int:
    """Fork as `os.fork` does, with signals blocked: an exception that a signal handler raises in a callback of
    `os.register_at_fork` (logging has one) would be lost.

    Python warns if other threads run, since a lock that one of them holds stays locked in the child. The warning is ignored:
    the children of this package take none of these locks. As an error, it would be raised in the parent while the child
    already runs.
    """
    with signals_blocked(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def restore_signals() -> None:
    """Restore the default actions of signals that Python ignores: a program executed by this process would inherit that,
    and would not end when it writes to a closed pipe."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)

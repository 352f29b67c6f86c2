"""Functions in forked children: what one does to its own namespaces ends with it."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import traceback
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from testbed.errors import TestbedError

T = TypeVar("T")

_BEGUN: Final = b"\n"  # no pickle begins with it
_END: Final = b"\n"


def in_child(function: Callable[[], T]) -> T:
    """Call `function` in a child process. Its result, or its TestbedError or OSError, comes back by pickle."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _answer(writer, function)
    os.close(writer)
    with open(reader, "rb") as answers:
        answer = answers.read()
    os.waitpid(child, 0)
    result: T = _result(answer)
    return result


class Companion(Generic[T]):
    """A function that runs beside this process, in a child, until it is told to end, or this process ends."""

    def __init__(self, function: Callable[[Callable[[], None], int], T]) -> None:
        """function(begun, stop): it calls begun() when it is ready, which is when this returns, and ends when the descriptor
        `stop` can be read. Raises its TestbedError or OSError if it ends by one before it is ready."""
        stop, self._stop = os.pipe()
        self._answers, answer = os.pipe()
        self._child = os.fork()
        if self._child == 0:
            os.close(self._stop)
            os.close(self._answers)
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for our parent, who tells us

            def begun() -> None:
                os.write(answer, _BEGUN)

            _answer(answer, lambda: function(begun, stop))
        os.close(stop)
        os.close(answer)
        try:
            said = os.read(self._answers, len(_BEGUN))
        except BaseException:
            self._close()
            raise
        if said != _BEGUN:
            with open(self._answers, "rb", closefd=False) as rest:
                answered = said + rest.read()
            self._close()
            _result(answered)
            raise TestbedError("a child process ended before it was ready")

    def end(self) -> T:
        """Tell it to end, and wait for its result; its TestbedError or OSError is raised."""
        with contextlib.suppress(BrokenPipeError):  # it has ended already
            os.write(self._stop, _END)  # a forked process may have this end, too: closing it would not tell
        try:
            with open(self._answers, "rb", closefd=False) as answers:
                answered = answers.read()
        finally:
            self._close()
        result: T = _result(answered)
        return result

    def _close(self) -> None:
        os.close(self._stop)
        os.close(self._answers)
        os.waitpid(self._child, 0)


def _result(answer: bytes) -> Any:
    if not answer:
        raise TestbedError("a helper process died; what it said is above")
    good, value = pickle.loads(answer)  # written by our own child
    if not good:
        raise value
    return value


def _answer(writer: int, function: Callable[[], T]) -> None:
    """The child's side; does not return."""
    try:
        try:
            answer = pickle.dumps((True, function()))
        except (TestbedError, OSError) as error:
            answer = pickle.dumps((False, error))
        with open(writer, "wb") as answers:
            answers.write(answer)
    except BaseException:  # noqa: BLE001  whatever it is, nothing of the parent's code may run on in the child
        traceback.print_exc()
        os._exit(1)
    os._exit(0)

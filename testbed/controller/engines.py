"""Engines: where independent points of a study are computed, side by side.

An engine opens a `concurrent.futures.Executor`. Those here compute in this process, or in several on this machine; another
one, such as an executor of a site's scheduler, takes their place by the same two members.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, ProcessPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, TypeVar

from testbed.errors import TestbedError
from testbed.kernel.syscalls import end_with_parent

Item = TypeVar("Item")
Result = TypeVar("Result")


class EngineError(TestbedError):
    """An engine cannot compute any more points."""


class Engine(Protocol):
    """Source of an executor. What is submitted to it can be pickled: a function of a module, its arguments and result."""

    @property
    def width(self) -> int:
        """Points that it computes at a time: as many are submitted before the first result is awaited."""

    def open(self) -> AbstractContextManager[Executor]:
        """Open the executor; at the end of the context nothing is left of it, after an error without waiting."""


class OwnProcess:
    """Engine that computes in this process, one point after another."""

    width = 1

    @contextmanager
    def open(self) -> Iterator[Executor]:
        yield _Immediate()


class Processes:
    """Engine that computes in processes of its own, which end with this one."""

    def __init__(self, width: int | None = None) -> None:
        """width: processes; by default as many as there are processors for us."""
        self.width = width or len(os.sched_getaffinity(0))

    @contextmanager
    def open(self) -> Iterator[Executor]:
        others = multiprocessing.active_children()
        context = multiprocessing.get_context("spawn")  # a fork would copy what this process has open
        executor = ProcessPoolExecutor(self.width, mp_context=context, initializer=_begin_worker)
        try:
            yield executor
        except BaseException:
            executor.shutdown(wait=False, cancel_futures=True)
            for child in multiprocessing.active_children():
                if child not in others:
                    child.terminate()
            raise
        finally:
            executor.shutdown()


def completed(
    engine: Engine, function: Callable[[Item], Result], items: Iterable[Item]
) -> Generator[tuple[Item, Result], None, None]:
    """Compute the function of each item; yield items with their results as they are completed. An exception of the function
    is raised with a note that names its item; what has not begun is not computed then. Raises EngineError where a process
    died."""
    pending: dict[Future[Result], Item] = {}
    with engine.open() as executor:
        for item in items:
            pending[executor.submit(function, item)] = item
            while len(pending) >= engine.width:
                yield from _finished(pending)
        while pending:
            yield from _finished(pending)


def _finished(pending: dict[Future[Result], Item]) -> Iterator[tuple[Item, Result]]:
    """Wait for the next results, and remove them from the pending ones."""
    for future in wait(pending, return_when=FIRST_COMPLETED).done:
        item = pending.pop(future)
        try:
            result = future.result()
        except BrokenExecutor as error:
            raise EngineError(f"a process that computed points has died, of {item} or of one beside it") from error
        except Exception as error:
            error.add_note(str(item))
            raise
        yield item, result


def _begin_worker() -> None:
    """Leave the terminal's Ctrl-C to the process that waits for the points, and end with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with_parent(signal.SIGKILL)


class _Immediate(Executor):
    """Executor that computes at once."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*arguments, **options))
        except Exception as error:  # noqa: BLE001  as any executor, which hands on what the function raises
            future.set_exception(error)
        return future

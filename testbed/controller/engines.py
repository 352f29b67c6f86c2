"""Engines that compute independent points of a study in parallel.

An engine opens a `concurrent.futures.Executor`. The engines here compute in this process or in several processes of this
machine. Any class with the two members of `Engine` can replace them, such as one for a cluster scheduler.
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
    """An engine cannot compute further points."""


class Engine(Protocol):
    """Source of an executor. Functions submitted to it, their arguments and their results must be picklable."""

    @property
    def width(self) -> int:
        """Maximum number of points in progress at a time."""

    def open(self) -> AbstractContextManager[Executor]:
        """Open the executor, and shut it down at the end of the context; after an error without waiting for pending
        points."""


class SerialEngine:
    """Engine that computes one point after another in this process."""

    width = 1

    @contextmanager
    def open(self) -> Iterator[Executor]:
        yield _SerialExecutor()


class ProcessEngine:
    """Engine that computes in child processes, which end with this process."""

    def __init__(self, width: int | None = None) -> None:
        """width: number of child processes; by default the number of processors that this process may use."""
        self.width = width or len(os.sched_getaffinity(0))

    @contextmanager
    def open(self) -> Iterator[Executor]:
        earlier_children = multiprocessing.active_children()
        # A fork would copy this process's descriptors and the locks of its threads.
        context = multiprocessing.get_context("spawn")
        executor = ProcessPoolExecutor(
            self.width, mp_context=context, initializer=_initialize_worker, initargs=(os.getpid(),)
        )
        try:
            yield executor
        except BaseException:
            for child in multiprocessing.active_children():
                if child not in earlier_children:
                    child.terminate()
            raise
        finally:
            # Waits for the executor's thread: at the interpreter's exit, the thread could close its wake-up pipe just as
            # concurrent.futures writes to that pipe.
            executor.shutdown(cancel_futures=True)


def map_unordered(
    engine: Engine, function: Callable[[Item], Result], items: Iterable[Item]
) -> Generator[tuple[Item, Result], None, None]:
    """Apply a function to each item; yield items with their results in the order of completion. An exception of the
    function is raised with a note that names the item, and items that have not started are dropped. Raises EngineError if
    a child process died."""
    pending: dict[Future[Result], Item] = {}
    with engine.open() as executor:
        for item in items:
            pending[executor.submit(function, item)] = item
            while len(pending) >= engine.width:
                yield from _next_results(pending)
        while pending:
            yield from _next_results(pending)


def _next_results(pending: dict[Future[Result], Item]) -> Iterator[tuple[Item, Result]]:
    """Wait for the next results, and remove them from the pending ones."""
    for future in wait(pending, return_when=FIRST_COMPLETED).done:
        item = pending.pop(future)
        try:
            result = future.result()
        except BrokenExecutor as error:
            raise EngineError(f"a child process died while it computed {item} or a point in parallel to it") from error
        except Exception as error:
            error.add_note(str(item))
            raise
        yield item, result


def _initialize_worker(parent: int) -> None:
    """Ignore Ctrl-C, which the parent handles, and end with the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with_parent(signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before the signal was set
        os._exit(1)


class _SerialExecutor(Executor):
    """Executor that calls each function within `submit`."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*arguments, **options))
        except Exception as error:  # noqa: BLE001  an executor returns any exception through the future
            future.set_exception(error)
        return future

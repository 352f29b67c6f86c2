"""Completions: the awaitables of host programs, each for one operation of a NIC.

A completion needs no event loop. When a coroutine yields a completion, its driver calls
``completion.add_callback(resume)`` to resume the coroutine when the completion is done.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import Final, Generic, TypeVar

from protocols.core.compiled_build import mypyc_attr

Value = TypeVar("Value")


@mypyc_attr(allow_interpreted_subclasses=True)
class Completion(Generic[Value]):
    """Future result of an operation. It completes once, with a value or an error. done: whether it has completed."""

    __slots__ = ("_callbacks", "_description", "_error", "_value", "done")

    def __init__(self, what: str = "", *arguments: object) -> None:
        """what: %-format that describes the operation, for reports of stalls. arguments: of the format, which is
        applied only on demand."""
        self.done = False
        self._description = (what, arguments)
        self._error: Exception | None = None
        self._value: Value
        self._callbacks: list[Callable[[Completion[Value]], object]] | None = None

    @property
    def what(self) -> str:
        """Description of the operation; may be empty."""
        what, arguments = self._description
        return what % arguments if arguments else what

    def __repr__(self) -> str:
        state = "waiting" if not self.done else f"failed: {self._error}" if self._error else "done"
        return f"<Completion of {self.what or 'something'}: {state}>"

    def __str__(self) -> str:
        """Return the description, for a sentence "it waits for ..."."""
        return self.what or "something"

    def __await__(self) -> Generator[Completion[Value], None, Value]:
        if not self.done:
            yield self
        if self._error is not None:
            raise self._error
        return self._value

    def complete(self, value: Value) -> None:
        """Complete with a value. Raises RuntimeError if already done."""
        if self.done:
            raise RuntimeError(f"{self.what or 'the operation'} was done already")
        self._value = value
        self.done = True
        callbacks = self._callbacks
        if callbacks is not None:
            self._callbacks = None
            for callback in callbacks:
                callback(self)

    def fail(self, error: Exception) -> None:
        """Complete with an error, which is raised where the completion is awaited. Raises RuntimeError if already
        done."""
        if self.done:
            raise RuntimeError(f"{self.what or 'the operation'} was done already")
        self._error = error
        self.done = True
        callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            callback(self)

    def result(self) -> Value:
        """Return the value. Raises the operation's error, or RuntimeError while it is not done."""
        if not self.done:
            raise RuntimeError(f"{self.what or 'the operation'} is not done yet")
        if self._error is not None:
            raise self._error
        return self._value

    def add_callback(self, callback: Callable[[Completion[Value]], object]) -> None:
        """Call `callback` with this completion when it is done, at once if it is already."""
        if self.done:
            callback(self)
        elif self._callbacks is None:
            self._callbacks = [callback]
        else:
            self._callbacks.append(callback)


_DONE: Final[Completion[None]] = Completion("its turn: it polls")
_DONE.complete(None)


class Yield:
    """Awaitable that lets all other ready tasks run, including the NIC. An unsuccessful poll awaits this."""

    __slots__ = ()

    def __await__(self) -> Generator[Completion[None], None, None]:
        yield _DONE


def drive(coroutine: Coroutine[Completion[None], None, None]) -> None:
    """Run a coroutine to its first await, and resume it whenever the completion that it awaits is done."""

    def resume(_: object = None) -> None:
        try:
            completion = coroutine.send(None)
        except StopIteration:
            return
        completion.add_callback(resume)

    resume()

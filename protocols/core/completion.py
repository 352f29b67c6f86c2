"""The one thing that a host program awaits: something that a NIC will have done.

A completion belongs to no loop. Whoever drives coroutines resumes one that has yielded a completion once that is done:
``completion.add_callback(resume)``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Completion(Generic[Value]):
    """Done once, with a value or an error."""

    __slots__ = ("_about", "_callbacks", "_error", "_value", "done")

    def __init__(self, what: str = "", *about: object) -> None:
        """what: what is waited for, for whoever asks why nothing goes on; about: what its %-places stand for. It is put into
        words only for who asks."""
        self.done = False
        self._about = (what, about)
        self._error: Exception | None = None
        self._value: Value
        self._callbacks: list[Callable[[Completion[Value]], object]] | None = None

    @property
    def what(self) -> str:
        """What is waited for; may be empty."""
        what, about = self._about
        return what % about if about else what

    def __repr__(self) -> str:
        state = "waiting" if not self.done else f"failed: {self._error}" if self._error else "done"
        return f"<Completion of {self.what or 'something'}: {state}>"

    def __str__(self) -> str:
        """The end of the sentence "it waits for ..."."""
        return self.what or "something"

    def __await__(self) -> Generator[Completion[Value], None, Value]:
        if not self.done:
            yield self
        if self._error is not None:
            raise self._error
        return self._value

    def complete(self, value: Value) -> None:
        """It is done. Raises RuntimeError if it was."""
        if self.done:
            raise RuntimeError(f"{self.what or 'this'} was done already")
        self._value = value
        self.done = True
        callbacks = self._callbacks
        if callbacks is not None:
            self._callbacks = None
            for callback in callbacks:
                callback(self)

    def fail(self, error: Exception) -> None:
        """It is done, and whoever awaits it gets this error. Raises RuntimeError if it was."""
        if self.done:
            raise RuntimeError(f"{self.what or 'this'} was done already")
        self._error = error
        self.done = True
        callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            callback(self)

    def result(self) -> Value:
        """Its value; raises its error, or RuntimeError while it is not done."""
        if not self.done:
            raise RuntimeError(f"{self.what or 'this'} is not done yet")
        if self._error is not None:
            raise self._error
        return self._value

    def add_callback(self, callback: Callable[[Completion[Value]], object]) -> None:
        """Call callback(self) when it is done; at once if it is."""
        if self.done:
            callback(self)
        elif self._callbacks is None:
            self._callbacks = [callback]
        else:
            self._callbacks.append(callback)

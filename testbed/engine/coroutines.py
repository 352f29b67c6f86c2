"""Coroutines of tasks: pauses, and what a coroutine that waits awaits.

Not compiled. A compiled module has no generators that can be awaited, and awaiting one costs half of awaiting an object
with `__await__`, which matters for pauses: a task does nothing more often. And what a compiled coroutine awaits cannot be
read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from types import FrameType, coroutine
from typing import TypeVar

T = TypeVar("T")


@coroutine
def until(when: int) -> Generator[int, None, None]:
    """Wait until a time: ``await until(when)``, in nanoseconds of the loop's clock."""
    yield when


def sleeper(now: Callable[[], int]) -> Callable[[int], Awaitable[None]]:
    """Return a clock's function ``sleep(nanoseconds)``, which a task awaits."""

    @coroutine
    def sleep(nanoseconds: int) -> Generator[int, None, None]:
        yield now() + nanoseconds

    return sleep


def suspended_frames(awaited: Awaitable[object] | None) -> list[FrameType]:
    """Return the frames of a coroutine that waits, or has not started, the innermost last."""
    kinds = ("cr_frame", "gi_frame", "ag_frame")
    frames = [getattr(coroutine, kind, None) for coroutine in await_chain(awaited) for kind in kinds]
    return [frame for frame in frames if isinstance(frame, FrameType)]


def await_chain(awaited: Awaitable[object] | None) -> list[object]:
    """Return a waiting coroutine, the coroutine that it awaits, and so on."""
    chain: list[object] = []
    coroutine: object = awaited
    while coroutine is not None:
        chain.append(coroutine)
        inner = (getattr(coroutine, name, None) for name in ("cr_await", "gi_yieldfrom", "ag_await"))
        coroutine = next(filter(None, inner), None)
    return chain


async def with_readable_stack(start: Callable[[], Awaitable[T]], ended: Callable[[], object]) -> T:
    """Run a program: await what `start` returns, and call `ended` when it has ended. The program's stack can be read through
    this coroutine, since this module is not compiled; a compiled coroutine hides what it awaits."""
    try:
        return await start()
    finally:
        ended()

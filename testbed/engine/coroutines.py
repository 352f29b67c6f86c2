"""Pauses of tasks, and inspection of suspended coroutines.

This module is not compiled, for two reasons. Awaiting a generator costs half as much as awaiting an object with
`__await__`, which matters for pauses, the most frequent action of a task; but a generator of a compiled module cannot be
awaited. And a compiled coroutine hides the object that it awaits.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from types import FrameType, coroutine
from typing import TypeVar

T = TypeVar("T")


@coroutine
def until(when: int) -> Generator[int, None, None]:
    """Wait until time `when`, in nanoseconds of the loop's clock: ``await until(when)``."""
    yield when


def make_sleep(now: Callable[[], int]) -> Callable[[int], Awaitable[None]]:
    """Make the function ``sleep(nanoseconds)`` for the tasks of a loop. now: returns the time of the loop's clock, ns."""

    @coroutine
    def sleep(nanoseconds: int) -> Generator[int, None, None]:
        yield now() + nanoseconds

    return sleep


def suspended_frames(awaited: Awaitable[object] | None) -> list[FrameType]:
    """Return the frames of a coroutine that waits, or has not started, the innermost last."""
    attributes = ("cr_frame", "gi_frame", "ag_frame")
    frames = [getattr(link, attribute, None) for link in await_chain(awaited) for attribute in attributes]
    return [frame for frame in frames if isinstance(frame, FrameType)]


def await_chain(awaited: Awaitable[object] | None) -> list[object]:
    """Return a waiting coroutine, the object that it awaits, the object that this one awaits, and so on."""
    chain: list[object] = []
    link: object = awaited
    while link is not None:
        chain.append(link)
        next_links = (getattr(link, attribute, None) for attribute in ("cr_await", "gi_yieldfrom", "ag_await"))
        link = next(filter(None, next_links), None)
    return chain


async def with_readable_stack(start: Callable[[], Awaitable[T]], on_end: Callable[[], object]) -> T:
    """Run a program so that its stack can be read: await the object that `start` returns, and call `on_end` when the program
    has ended.

    The stack is read through this coroutine, which is interpreted; a compiled one would hide the object that it awaits.
    """
    try:
        return await start()
    finally:
        on_end()

"""Traceback filter: tracebacks and source lines of a user's program, without our own frames.

A traceback begins with the program's own first line: the frames above, which run the program, do not help its author; logs
have all of them. The line of a program that waits or runs is its own innermost one, before it calls us, Python's library
or an installed package.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Awaitable, Callable, Sequence
from types import FrameType
from typing import Final, Protocol, TypeVar, runtime_checkable

from testbed.errors import FirmwareError, TestbedError

T = TypeVar("T")

_HOME: Final = __file__.removesuffix("testbed/engine/tracebacks.py")
_OURS: Final = (f"{_HOME}testbed/", f"{_HOME}protocols/", "testbed/", "protocols/")
"""Where our files are; compiled functions have file names relative to the folder of both packages."""

_WORKLOADS: Final = f"{_HOME}testbed/workloads/"
"""Programs like a user's, but for the modules that find, call and observe users' programs."""

_CALLERS: Final = tuple(
    f"{_WORKLOADS}{name}.py" for name in ("form", "lookup", "script", "history", "active_messages/request_history")
)
_PYTHONS: Final = ("<", f"{sys.base_prefix}/{sys.platlibdir}/python{sys.version_info[0]}.{sys.version_info[1]}/")
_INSTALLED: Final = ("/site-packages/", "/dist-packages/")


@runtime_checkable
class Stacked(Protocol):
    """An awaited object behind which a program runs on a stack of its own."""

    def frames(self) -> list[FrameType]:
        """Return the program's stack, the innermost frame last."""
        ...


def program_traceback(error: BaseException) -> str:
    """Format an error's traceback from the program's first line on; without a line of a program, all of it. That of an
    error whose class says `is_about_a_call` (MPI's) has the program's lines alone: it says what is wrong with a call, and
    not where we have noticed it.

    A FirmwareError, and a TestbedError without a line of a program, give only their message.
    """
    formatted = traceback.TracebackException.from_exception(error)
    is_programs = _begins_with_program(formatted)
    if isinstance(error, FirmwareError) or (not is_programs and isinstance(error, TestbedError)):
        return str(error)
    return "".join(formatted.format()).strip()


def complete_traceback(error: BaseException) -> str:
    """Format the complete traceback, for a log."""
    return "".join(traceback.format_exception(error))


def stack(innermost: FrameType | None) -> list[FrameType]:
    """Return the frames of a stack, given by its innermost one, the innermost last."""
    frames = []
    while innermost is not None:
        frames.append(innermost)
        innermost = innermost.f_back
    return frames[::-1]


def suspended(awaited: Awaitable[object] | None) -> list[FrameType]:
    """Return the frames of a coroutine that waits, or has not begun, the innermost last."""
    kinds = ("cr_frame", "gi_frame", "ag_frame")
    frames = [getattr(coroutine, kind, None) for coroutine in chain_of(awaited) for kind in kinds]
    return [frame for frame in frames if isinstance(frame, FrameType)]


def chain_of(awaited: Awaitable[object] | None) -> list[object]:
    """Return a coroutine that waits, the one that it awaits, and so on."""
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


def program_line(frames: Sequence[FrameType]) -> str:
    """Return "FILE:LINE in FUNCTION" of the program in a stack, the innermost frame last; empty where none is in it."""
    files = [frame.f_code.co_filename for frame in frames]
    begin = next((place for place, file in enumerate(files) if not _is_foreign(file)), len(files))
    end = next((place for place in range(begin, len(files)) if _is_ours(files[place])), len(files))
    own = [place for place in range(begin, end) if not _is_foreign(files[place])]
    best = [place for place in own if not any(part in files[place] for part in _INSTALLED)] or own
    return line_of(frames[best[-1]]) if best else ""


def line_of(frame: FrameType) -> str:
    """Format a frame as "FILE:LINE in FUNCTION"."""
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


def _begins_with_program(formatted: traceback.TracebackException) -> bool:
    """Remove the frames before the program's first, in causes and contexts too; return whether there is a program's."""
    for origin in (formatted.__cause__, formatted.__context__):
        if origin is not None:
            _begins_with_program(origin)
    first = next((place for place, frame in enumerate(formatted.stack) if not _is_ours(frame.filename)), None)
    if first is None:
        return False
    del formatted.stack[:first]
    if getattr(formatted.exc_type, "is_about_a_call", False):
        if formatted.__context__ is not None and all(_is_ours(frame.filename) for frame in formatted.__context__.stack):
            formatted.__context__ = None  # how we have noticed it
        own = [frame for frame in formatted.stack if not _is_ours(frame.filename)]
        # A task's error that another one awaits has passed the same line twice.
        formatted.stack[:] = [frame for place, frame in enumerate(own) if place == 0 or frame != own[place - 1]]
    return True


def _is_ours(file: str) -> bool:
    return file.startswith(_OURS) and (file in _CALLERS or not file.startswith(_WORKLOADS))


def _is_foreign(file: str) -> bool:
    """Whether a file is no program's: ours, Python's own library, or none at all."""
    return _is_ours(file) or (file.startswith(_PYTHONS) and not any(part in file for part in _INSTALLED))

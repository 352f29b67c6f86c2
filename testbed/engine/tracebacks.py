"""Traceback filter: tracebacks and source lines of a user's program, without internal frames.

A traceback starts with the first frame of the program: the frames above, which run the program, do not help its author. Logs
have all frames. The reported line of a program is the innermost one that is outside the testbed, Python's standard library
and installed packages.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from types import FrameType
from typing import Final, Protocol, runtime_checkable

from testbed.errors import FirmwareError, ScriptError, TestbedError

_ROOT: Final = __file__.removesuffix("testbed/engine/tracebacks.py")
_PACKAGE_FOLDERS: Final = (f"{_ROOT}testbed/", f"{_ROOT}protocols/", "testbed/", "protocols/")
"""Prefixes of the testbed's own files. The file names of compiled functions are relative paths."""

_WORKLOADS: Final = f"{_ROOT}testbed/workloads/"
"""Modules that count as a user's programs, except those in `_WORKLOAD_CALLERS`, which load, call and observe programs."""

_WORKLOAD_CALLERS: Final = tuple(
    f"{_WORKLOADS}{name}.py" for name in ("form", "lookup", "script", "history", "active_messages/request_history")
)
_STANDARD_LIBRARY: Final = (
    "<",
    f"{sys.base_prefix}/{sys.platlibdir}/python{sys.version_info[0]}.{sys.version_info[1]}/",
)
_SITE_PACKAGES: Final = ("/site-packages/", "/dist-packages/")


@runtime_checkable
class HasStack(Protocol):
    """An awaited object for a program that runs on a separate stack."""

    def frames(self) -> list[FrameType]:
        """Return the program's stack, the innermost frame last."""
        ...


def program_traceback(error: BaseException) -> str:
    """Format an error's traceback, starting with the program's first frame; without such a frame, all of it.

    If the error is a TypeError, or its class has a true `is_caller_error` (MPI errors), only the program's frames are
    shown: the error is in the call, not in the code that detected it. A FirmwareError, or a TestbedError without a frame of
    a program, gives only its message.
    """
    formatted = traceback.TracebackException.from_exception(error)
    has_program_line = _trim_to_program(formatted, error)
    if isinstance(error, FirmwareError) or (not has_program_line and isinstance(error, TestbedError)):
        return str(error)
    return "".join(formatted.format()).strip()


def complete_traceback(error: BaseException) -> str:
    """Format the complete traceback, for a log. Empty for a ScriptError, as Python prints no traceback of SystemExit."""
    if isinstance(error, ScriptError):
        return ""
    return "".join(traceback.format_exception(error))


def stack_frames(innermost: FrameType | None) -> list[FrameType]:
    """Return the frames of a stack, the innermost last. innermost: the stack's innermost frame."""
    frames = []
    while innermost is not None:
        frames.append(innermost)
        innermost = innermost.f_back
    return frames[::-1]


def program_line(frames: Sequence[FrameType]) -> str:
    """Return "FILE:LINE in FUNCTION" of the program in a stack; empty if no frame is the program's. frames: the innermost
    last."""
    files = [frame.f_code.co_filename for frame in frames]
    begin = next((index for index, file in enumerate(files) if not _is_foreign(file)), len(files))
    end = next((index for index in range(begin, len(files)) if _is_internal(files[index])), len(files))
    program_frames = [index for index in range(begin, end) if not _is_foreign(files[index])]
    preferred = [
        index for index in program_frames if not any(part in files[index] for part in _SITE_PACKAGES)
    ] or program_frames
    return format_frame(frames[preferred[-1]]) if preferred else ""


def format_frame(frame: FrameType) -> str:
    """Format a frame as "FILE:LINE in FUNCTION"."""
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


def _trim_to_program(formatted: traceback.TracebackException, error: BaseException) -> bool:
    """Remove the frames of an error before the program's first one, also in causes and contexts; return whether there is
    such a frame."""
    for formatted_cause, cause in (
        (formatted.__cause__, error.__cause__),
        (formatted.__context__, error.__context__),
    ):
        if formatted_cause is not None and cause is not None:
            _trim_to_program(formatted_cause, cause)
    files = [frame.filename for frame in formatted.stack]
    first = next((index for index, file in enumerate(files) if not _is_foreign(file)), None)
    if first is None:  # code typed into an interpreter has no file, for example
        first = next((index for index, file in enumerate(files) if not _is_internal(file)), None)
    if first is None:
        return False
    del formatted.stack[:first]
    if isinstance(error, TypeError) or getattr(error, "is_caller_error", False):
        if formatted.__context__ is not None and all(
            _is_internal(frame.filename) for frame in formatted.__context__.stack
        ):
            formatted.__context__ = None  # an internal exception by which the error was detected
        program_frames = [frame for frame in formatted.stack if not _is_internal(frame.filename)]
        # The error of a task that another task awaits passes the awaiting line twice.
        formatted.stack[:] = [
            frame for index, frame in enumerate(program_frames) if index == 0 or frame != program_frames[index - 1]
        ]
    return True


def _is_internal(file: str) -> bool:
    return file.startswith(_PACKAGE_FOLDERS) and (file in _WORKLOAD_CALLERS or not file.startswith(_WORKLOADS))


def _is_foreign(file: str) -> bool:
    """Whether a file name is not that of a program: internal, of Python's standard library, or like "<string>"."""
    return _is_internal(file) or (
        file.startswith(_STANDARD_LIBRARY) and not any(part in file for part in _SITE_PACKAGES)
    )

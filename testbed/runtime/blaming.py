"""What a program has raised, as its author reads it: a traceback from the program's own first line on. What runs it stands
before that, and says nothing to whoever looks for a mistake of his; logs have all of it."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Final

from testbed.errors import TestbedError

_HOME: Final = Path(__file__).parents[2]
_OURS: Final = (f"{_HOME / 'testbed'}/", f"{_HOME / 'protocols'}/")
_WORKLOADS: Final = f"{_HOME / 'testbed' / 'workloads'}/"
"""They are programs as any other, but for what finds and calls those of users."""

_CALLERS: Final = tuple(f"{_WORKLOADS}{name}.py" for name in ("finding", "form", "script"))


def blamed(error: BaseException) -> str:
    """A traceback in text; of a TestbedError that no line of a program has to do with, its sentence. Where nothing else is
    to blame we are, and nothing is left out."""
    found = traceback.TracebackException.from_exception(error)
    if not _begins_with_program(found) and isinstance(error, TestbedError):
        return str(error)
    return "".join(found.format()).strip()


def whole(error: BaseException) -> str:
    """The traceback with all that ran the program, for a log."""
    return "".join(traceback.format_exception(error))


def _begins_with_program(found: traceback.TracebackException) -> bool:
    """Whether a program has anything to do with it; then what stands before that is gone, of what caused it, too."""
    for other in (found.__cause__, found.__context__):
        if other is not None:
            _begins_with_program(other)
    first = next((place for place, frame in enumerate(found.stack) if not _is_ours(frame.filename)), None)
    if first is None:
        return False
    del found.stack[:first]
    return True


def _is_ours(file: str) -> bool:
    return file.startswith(_OURS) and (file in _CALLERS or not file.startswith(_WORKLOADS))

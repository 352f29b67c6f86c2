"""How programs have ended, with the ends of the logs to which they print, for the errors of runs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from testbed.engine.tracebacks import program_traceback
from testbed.errors import ScriptError

_MAX_END: Final = 4_000  # bytes of a log's end
_MAX_DEATH: Final = 2_000  # and of that of a process that has died
_MAX_CRASH: Final = 32_000  # with the list of extension modules, below, that Python writes when it crashes
_EXTENSION_MODULES: Final = "Extension modules: "
_MAX_NODE_LINES: Final = 10
_MAX_LINES: Final = 100  # of all nodes


def last_output(logs: Path, nodes: Iterable[str]) -> list[str]:
    """Read the last lines that each node has printed; return a heading and the lines with their nodes, nothing if there are
    none."""
    lines = []
    for node in nodes:
        end = _read_end(logs / f"{node}.log", _MAX_END)
        lines += [f"  {node}: {line}" for line in end.splitlines()[-_MAX_NODE_LINES:]]
    if len(lines) > _MAX_LINES:
        lines[_MAX_LINES:] = [f"  and {len(lines) - _MAX_LINES:,} lines more in {logs}"]
    return ["the last output of the programs:", *lines] if lines else []


def _read_end(log: Path, size: int) -> str:
    """Read the text of at most `size` bytes at the end of a file; empty if there is no file."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - size))  # the file may be large
            return file.read(size).decode(errors="replace").strip()
    except OSError:
        return ""


def describe_failure(error: BaseException, logs: Path, node: str) -> str:
    """Describe the error that has ended a node's program: its traceback, or, where a script has exited, what it printed
    before, such as the usage of its arguments. The node's log must be flushed."""
    reason = program_traceback(error)
    return "\n".join([reason, *last_output(logs, [node])]) if isinstance(error, ScriptError) else reason


def describe_death(status: int, logs: Path, node: str) -> str:
    """Describe the death of a node's process, with the last that it printed. status: as `os.wait` returns it."""
    lines = _read_end(logs / f"{node}.log", _MAX_CRASH).splitlines()
    output = "\n".join([line for line in lines if not line.startswith(_EXTENSION_MODULES)])[-_MAX_DEATH:].strip()
    return f"{node}: its process {describe_status(status)}" + (f":\n{output}" if output else "")


def describe_status(status: int) -> str:
    """Describe how a process has ended. status: as `os.wait` returns it."""
    code = os.waitstatus_to_exitcode(status)
    return f"ended with code {code}" if code >= 0 else f"was ended by signal {-code}"

"""Descriptions of how programs have ended, with the last lines that they printed, for the errors of runs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from testbed.engine.tracebacks import program_traceback
from testbed.errors import ScriptError

_MAX_OUTPUT: Final = 4_000  # bytes to read from the end of a log
_MAX_DEATH_OUTPUT: Final = 2_000  # characters to show of the output of a process that has died
_MAX_CRASH_OUTPUT: Final = (
    32_000  # bytes to read for them: a crash of Python lists all extension modules in one long line
)
_EXTENSION_MODULES: Final = "Extension modules: "  # start of this line, which is not shown
_MAX_NODE_LINES: Final = 10
_MAX_LINES: Final = 100  # lines of all nodes together


def last_output(logs: Path, nodes: Iterable[str]) -> list[str]:
    """Read the last lines that the program of each node has printed. Return a heading and the lines, each with its node;
    an empty list if there are no lines."""
    lines = []
    for node in nodes:
        end = _read_end(logs / f"{node}.log", _MAX_OUTPUT)
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
    """Describe the error that has ended a node's program by its traceback; for a ScriptError also by the script's last
    output, such as the usage of its arguments. The output must be flushed to the node's log."""
    reason = program_traceback(error)
    return "\n".join([reason, *last_output(logs, [node])]) if isinstance(error, ScriptError) else reason


def describe_death(status: int, logs: Path, node: str) -> str:
    """Describe the death of a node's process, with its last output. status: wait status, as from `os.wait`."""
    lines = _read_end(logs / f"{node}.log", _MAX_CRASH_OUTPUT).splitlines()
    output = "\n".join([line for line in lines if not line.startswith(_EXTENSION_MODULES)])[-_MAX_DEATH_OUTPUT:].strip()
    return f"{node}: its process {describe_status(status)}" + (f":\n{output}" if output else "")


def describe_status(status: int) -> str:
    """Describe how a process has ended. status: wait status, as from `os.wait`."""
    code = os.waitstatus_to_exitcode(status)
    return f"ended with code {code}" if code >= 0 else f"was ended by signal {-code}"

"""The ends of the logs to which programs print, for the errors of runs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from testbed.engine.tracebacks import program_traceback
from testbed.errors import ScriptError

_MAX_END: Final = 4_000  # bytes of a log's end
_MAX_NODE_LINES: Final = 10
_MAX_LINES: Final = 100  # of all nodes


def last_output(logs: Path, nodes: Iterable[str]) -> list[str]:
    """Read the last lines that each node has printed; return a heading and the lines with their nodes, nothing if there are
    none."""
    lines = []
    for node in nodes:
        end = read_end(logs / f"{node}.log", _MAX_END)
        lines += [f"  {node}: {line}" for line in end.splitlines()[-_MAX_NODE_LINES:]]
    if len(lines) > _MAX_LINES:
        lines[_MAX_LINES:] = [f"  and {len(lines) - _MAX_LINES:,} lines more in {logs}"]
    return ["the last output of the programs:", *lines] if lines else []


def read_end(log: Path, size: int) -> str:
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

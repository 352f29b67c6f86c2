"""Output of programs when a run is aborted: the end of each node's log."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_BYTES: Final = 4_000  # of a log's end
_LINES: Final = 10  # of a node
_ALL: Final = 100  # lines


def printed(logs: Path, nodes: Iterable[str]) -> list[str]:
    """Read the last lines of each node that has printed anything, behind the node's name, with a heading."""
    lines = []
    for node in nodes:
        end = end_of(logs / f"{node}.log", _BYTES)
        lines += [f"  {node}: {line}" for line in end.splitlines()[-_LINES:]]
    if len(lines) > _ALL:
        lines[_ALL:] = [f"  and {len(lines) - _ALL:,} lines more in {logs}"]
    return ["what was printed until then:", *lines] if lines else []


def end_of(log: Path, size: int) -> str:
    """Read the text of at most `size` bytes at a file's end; empty where there is no file."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - size))  # it may be as large as the disk
            return file.read(size).decode(errors="replace").strip()
    except OSError:
        return ""

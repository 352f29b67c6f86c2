"""Paths of a message: those that docs/internals/message.md lists, and those that ci/message_path.py records."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
_SECTION = re.compile(r"^## (.*): (\d+) files\n\n((?:\d+\. `.*`\n)+)", re.MULTILINE)


def read_paths(text: str) -> dict[str, list[str]]:
    """Return the files of each path of a page, by title."""
    paths = {}
    for title, count, lines in _SECTION.findall(text):
        paths[title] = re.findall("`(.*)`", lines)
        assert len(paths[title]) == int(count)
    return paths


def documented_paths() -> dict[str, list[str]]:
    return read_paths((ROOT / "docs" / "internals" / "message.md").read_text())


def recorded_paths(*arguments: str) -> dict[str, list[str]]:
    """Record the paths of some modes. arguments: of ci/message_path.py."""
    script = ROOT / "ci" / "message_path.py"
    completed = subprocess.run(
        [sys.executable, script, *arguments], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return read_paths(completed.stdout)

"""Topologies that are shipped with testbed. Listing them does not parse them."""

from __future__ import annotations

from pathlib import Path

import topologies as package


def shipped_files() -> dict[str, Path]:
    """Return each shipped topology's name and file."""
    return {file.stem: file for directory in package.__path__ for file in Path(directory).glob("*.toml")}


def topologies() -> list[tuple[str, str]]:
    """Return the name of each shipped topology, and its purpose from its file's first line."""
    entries = []
    for name, file in sorted(shipped_files().items()):
        with file.open(encoding="utf-8") as lines:
            entries.append((name, lines.readline().removeprefix("#").strip()))
    return entries

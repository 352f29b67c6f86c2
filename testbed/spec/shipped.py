"""Topologies that are shipped with testbed. Their files are listed without being parsed."""

from __future__ import annotations

from pathlib import Path

import topologies as package


def shipped_files() -> dict[str, Path]:
    """Return the files of the shipped topologies, by name."""
    return {file.stem: file for directory in package.__path__ for file in Path(directory).glob("*.toml")}


def topologies() -> list[tuple[str, str]]:
    """Return the name and purpose of each shipped topology. The purpose is the first line of its file, a comment."""
    entries = []
    for name, file in sorted(shipped_files().items()):
        with file.open(encoding="utf-8") as lines:
            entries.append((name, lines.readline().removeprefix("#").strip()))
    return entries

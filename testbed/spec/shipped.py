"""Topologies that come with testbed. Listing them parses nothing and loads no validation library."""

from __future__ import annotations

from importlib import resources
from importlib.resources.abc import Traversable


def shipped_files() -> dict[str, Traversable]:
    """Return each shipped topology's name and file."""
    files = resources.files("topologies").iterdir()
    return {file.name.removesuffix(".toml"): file for file in files if file.name.endswith(".toml")}


def topologies() -> list[tuple[str, str]]:
    """Return each shipped topology's name and, from its file's first line, its purpose."""
    entries = []
    for name, file in sorted(shipped_files().items()):
        with file.open(encoding="utf-8") as lines:
            entries.append((name, lines.readline().removeprefix("#").strip()))
    return entries

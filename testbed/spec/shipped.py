"""The topologies that come with testbed. Listing them parses nothing and loads no validation library."""

from __future__ import annotations

from importlib import resources
from importlib.resources.abc import Traversable


def shipped_files() -> dict[str, Traversable]:
    """Each shipped topology's name and file."""
    files = resources.files("topologies").iterdir()
    return {file.name.removesuffix(".toml"): file for file in files if file.name.endswith(".toml")}


def topologies() -> list[tuple[str, str]]:
    """Each shipped topology's name and, from its file's first line, what it is for."""
    found = []
    for name, file in sorted(shipped_files().items()):
        with file.open(encoding="utf-8") as lines:
            found.append((name, lines.readline().removeprefix("#").strip()))
    return found

"""What packages offer to a testbed by name, as entry points: protocols, their fields, frames, and workloads; ours, too.

Nothing is imported but what is asked for. The files of the "Entry points specification" (packaging.python.org) are read
here: importlib.metadata takes ten times as long, mostly to import what this does not need, and every relay starts with it.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Final

from testbed.errors import NotFoundError, TestbedError

FIELDS: Final = "testbed.fields"
FRAMES: Final = "testbed.frames"
PROTOCOLS: Final = "testbed.protocols"
WORKLOADS: Final = "testbed.workloads"

_DISTRIBUTION: Final = (".dist-info", ".egg-info")
_LINE: Final = re.compile(r"\s*([^=#;\[]+?)\s*=\s*([\w.]+)\s*(?::\s*([\w.]+))?")


@dataclass(frozen=True, slots=True)
class Entry:
    """module, and attribute in it, which may be empty."""

    module: str
    attribute: str

    def __str__(self) -> str:
        return f"{self.module}:{self.attribute}" if self.attribute else self.module

    def load(self) -> object:
        value: object = import_module(self.module)
        for part in filter(None, self.attribute.split(".")):
            value = getattr(value, part)
        return value


def offered(group: str) -> dict[str, Entry]:
    """All of a group, by name. Of two with one name the one counts that the interpreter's path has first."""
    found: dict[str, Entry] = {}
    for text in _texts():
        if group in text:
            for name, entry in _entries(text, group):
                found.setdefault(name, entry)
    return dict(sorted(found.items()))


def load(group: str, name: str) -> object:
    """What is registered under that name. Raises NotFoundError with the names that there are, and TestbedError with a
    traceback where importing it fails."""
    there = offered(group)
    entry = there.get(name)
    kind = group.rpartition(".")[2].removesuffix("s")
    if entry is None:
        from difflib import get_close_matches

        near = get_close_matches(name, there, 1)
        hint = f" — did you mean {near[0]!r}?" if near else ""
        known = f"there are {', '.join(there)}" if there else "no package registers one: is testbed installed anew?"
        raise NotFoundError(f"no {kind} is called {name!r}{hint}; {known}")
    try:
        return entry.load()
    except Exception as error:  # whatever a package of somebody else's does when it is imported
        raise TestbedError(f"{kind} {name!r} ({entry}) cannot be imported:\n{traceback.format_exc()}") from error


def versions(packages: Collection[str]) -> dict[str, str]:
    """Of those that are installed, as their directories are called: ``pyroute2-0.9.5.dist-info``."""
    found: dict[str, str] = {}
    for directory in _directories():
        name, _, version = directory.stem.partition("-")
        for package in packages:
            if name.lower() == package.lower().replace("-", "_") and version:
                found.setdefault(package, version)
    return found


def _directories() -> Iterator[Path]:
    """Of all packages that are installed."""
    for place in dict.fromkeys(sys.path):
        try:
            names = sorted(name for name in os.listdir(place or ".") if name.endswith(_DISTRIBUTION))
        except OSError:  # not there, or an archive
            continue
        for name in names:
            yield Path(place, name)


def _texts() -> Iterator[str]:
    for directory in _directories():
        try:
            yield (directory / "entry_points.txt").read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue


def _entries(text: str, group: str) -> Iterator[tuple[str, Entry]]:
    section = ""
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("["):
            section = stripped.strip("[]").strip()
        elif section == group and (match := _LINE.match(line)):
            yield match[1], Entry(match[2], match[3] or "")

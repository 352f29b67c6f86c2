"""Entry points of installed packages: fabrics, protocols, their fields and frames, workloads.

Only requested entries are imported. The files of the "Entry points specification" (packaging.python.org) are parsed
here: importlib.metadata takes ten times as long, mostly for imports that are not needed here, and would delay the start
of every relay.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Iterator
from importlib import import_module
from pathlib import Path
from typing import Final

from testbed.errors import NotFoundError, TestbedError, did_you_mean
from testbed.lazy_dataclass import dataclass

DEFAULT_PROTOCOL: Final = "emp"
"""The default protocol of NICs."""

FABRICS: Final = "testbed.fabrics"
FIELDS: Final = "testbed.fields"
FRAMES: Final = "testbed.frames"
PROTOCOLS: Final = "testbed.protocols"
WORKLOADS: Final = "testbed.workloads"

_METADATA_SUFFIXES: Final = (".dist-info", ".egg-info")
_LINE: Final = re.compile(r"\s*([^=#;\[]+?)\s*=\s*([\w.]+)\s*(?::\s*([\w.]+))?")


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry point: a module, and the dotted path of an attribute in it, or empty. metadata: the metadata directory of
    the package."""

    module: str
    attribute: str
    metadata: Path

    def __str__(self) -> str:
        return f"{self.module}:{self.attribute}" if self.attribute else self.module

    @property
    def package(self) -> str:
        """The package's normalized name, from the name of its metadata directory, without the version."""
        return re.sub(r"[-_.]+", "-", self.metadata.stem.partition("-")[0]).lower()

    def package_and_version(self) -> tuple[str, str]:
        """The name and version from the package's metadata, else from its directory's name; the version may be empty."""
        name, _, version = self.metadata.stem.partition("-")
        for file in ("METADATA", "PKG-INFO"):
            try:
                head = (self.metadata / file).read_text(encoding="utf-8").partition("\n\n")[0]
            except (OSError, UnicodeDecodeError):
                continue
            headers = dict(re.findall(r"^(Name|Version): *(\S+)", head, re.MULTILINE))
            return headers.get("Name", name), headers.get("Version", version)
        return name, version

    def load(self) -> object:
        """Import the module, and return it or its attribute. Raises any exception that the import raises."""
        value: object = import_module(self.module)
        for part in filter(None, self.attribute.split(".")):
            value = getattr(value, part)
        return value


def offered(group: str) -> dict[str, Entry]:
    """All entries of a group, sorted by name. Of several entries with one name, the first on `sys.path` counts."""
    return {name: entries[0] for name, entries in all_offered(group).items()}


def all_offered(group: str) -> dict[str, list[Entry]]:
    """All entries of a group, sorted by name, including those of other packages with the same name; a package installed
    twice counts once."""
    entries: dict[str, list[Entry]] = {}
    for directory in _directories():
        text = _entry_points(directory)
        if group in text:
            for name, entry in _entries(text, group, directory):
                same_name = entries.setdefault(name, [])
                if all(entry.package != other.package for other in same_name):
                    same_name.append(entry)
    return dict(sorted(entries.items()))


def load(group: str, name: str) -> object:
    """Import the entry of that name. Raises NotFoundError that lists the names, and TestbedError with a traceback if
    the import fails."""
    entries = offered(group)
    entry = entries.get(name)
    if entry is None:
        known = f"there are {', '.join(entries)}" if entries else "no package registers one: install testbed again"
        raise NotFoundError(f"no {_kind(group)} is called {name!r}{did_you_mean(name, entries)}; {known}")
    return import_entry(group, name, entry)


def import_entry(group: str, name: str, entry: Entry) -> object:
    """Import an entry of a group. Raises TestbedError with a traceback if the import fails."""
    try:
        return entry.load()
    except Exception as error:  # a package may raise anything on import
        import traceback

        message = f"{_kind(group)} {name!r} ({entry}) cannot be imported:\n{traceback.format_exc()}"
        raise TestbedError(message) from error


def _kind(group: str) -> str:
    """The kind of a group's entries: protocol, of ``testbed.protocols``."""
    return group.rpartition(".")[2].removesuffix("s")


def versions(packages: Collection[str]) -> dict[str, str]:
    """The installed versions of packages, from the names of their directories, such as ``pyroute2-0.9.5.dist-info``."""
    version_of: dict[str, str] = {}
    for directory in _directories():
        name, _, version = directory.stem.partition("-")
        for package in packages:
            if name.lower() == package.lower().replace("-", "_") and version:
                version_of.setdefault(package, version)
    return version_of


def _directories() -> Iterator[Path]:
    """The metadata directories of all installed packages."""
    for folder in dict.fromkeys(sys.path):
        try:
            names = sorted(name for name in os.listdir(folder or ".") if name.endswith(_METADATA_SUFFIXES))
        except OSError:  # missing, or an archive
            continue
        for name in names:
            yield Path(folder, name)


def _entry_points(directory: Path) -> str:
    try:
        return (directory / "entry_points.txt").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _entries(text: str, group: str, directory: Path) -> Iterator[tuple[str, Entry]]:
    section = ""
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("["):
            section = stripped.strip("[]").strip()
        elif section == group and (match := _LINE.match(line)):
            yield match[1], Entry(match[2], match[3] or "", directory)

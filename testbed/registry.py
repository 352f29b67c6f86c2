"""Entry points of installed packages: fabrics, protocols, their fields and frames, workloads.

Only requested entries are imported. The files of the "Entry points specification" (packaging.python.org) are parsed
here: importlib.metadata takes ten times as long, mostly for imports that are not needed here, and every relay pays for
it at its start.
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

_DISTRIBUTION: Final = (".dist-info", ".egg-info")
_LINE: Final = re.compile(r"\s*([^=#;\[]+?)\s*=\s*([\w.]+)\s*(?::\s*([\w.]+))?")


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry point: a module, and optionally an attribute in it. place: the metadata directory of the package."""

    module: str
    attribute: str
    place: Path

    def __str__(self) -> str:
        return f"{self.module}:{self.attribute}" if self.attribute else self.module

    @property
    def package(self) -> str:
        """The package's normalized name, from its directory; the same for all versions."""
        return re.sub(r"[-_.]+", "-", self.place.stem.partition("-")[0]).lower()

    def package_and_version(self) -> tuple[str, str]:
        """The name and version from the package's metadata, else from its directory's name; the version may be empty."""
        name, _, version = self.place.stem.partition("-")
        for file in ("METADATA", "PKG-INFO"):
            try:
                head = (self.place / file).read_text(encoding="utf-8").partition("\n\n")[0]
            except (OSError, UnicodeDecodeError):
                continue
            metadata = dict(re.findall(r"^(Name|Version): *(\S+)", head, re.MULTILINE))
            return metadata.get("Name", name), metadata.get("Version", version)
        return name, version

    def load(self) -> object:
        value: object = import_module(self.module)
        for part in filter(None, self.attribute.split(".")):
            value = getattr(value, part)
        return value


def offered(group: str) -> dict[str, Entry]:
    """All entries of a group, by name. For a duplicate name, the first one on the interpreter's path counts."""
    return {name: entries[0] for name, entries in all_offered(group).items()}


def all_offered(group: str) -> dict[str, list[Entry]]:
    """All entries of a group, by name, including duplicates of other packages; a package installed twice counts once."""
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
    names = offered(group)
    entry = names.get(name)
    kind = group.rpartition(".")[2].removesuffix("s")
    if entry is None:
        known = f"there are {', '.join(names)}" if names else "no package registers one: is testbed installed anew?"
        raise NotFoundError(f"no {kind} is called {name!r}{did_you_mean(name, names)}; {known}")
    return import_entry(group, name, entry)


def import_entry(group: str, name: str, entry: Entry) -> object:
    """Import an entry of a group. Raises TestbedError with a traceback if the import fails."""
    try:
        return entry.load()
    except Exception as error:  # a package may raise anything on import
        import traceback

        kind = group.rpartition(".")[2].removesuffix("s")
        raise TestbedError(f"{kind} {name!r} ({entry}) cannot be imported:\n{traceback.format_exc()}") from error


def versions(packages: Collection[str]) -> dict[str, str]:
    """The versions of these packages that are installed, as directory names: ``pyroute2-0.9.5.dist-info``."""
    version_of: dict[str, str] = {}
    for directory in _directories():
        name, _, version = directory.stem.partition("-")
        for package in packages:
            if name.lower() == package.lower().replace("-", "_") and version:
                version_of.setdefault(package, version)
    return version_of


def _directories() -> Iterator[Path]:
    """The metadata directories of all installed packages."""
    for place in dict.fromkeys(sys.path):
        try:
            names = sorted(name for name in os.listdir(place or ".") if name.endswith(_DISTRIBUTION))
        except OSError:  # not there, or an archive
            continue
        for name in names:
            yield Path(place, name)


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

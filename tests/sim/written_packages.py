"""Packages that `testbed protocol new` writes, and temporary entries of them on `sys.path`."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from testbed import packages
from testbed.fields import known_fields
from testbed.observe.format.layers import frame_modules
from testbed.protocol_template import write_package


def write_template(name: str, directory: Path) -> Path:
    """Write a package to a new folder in `directory`; return the folder."""
    write_package(name, directory / name)
    return directory / name


def copy_template(source: Path, name: str, directory: Path) -> Path:
    """Copy a written package under another name of equal length: its codec need not be regenerated."""
    former, folder = source.name, directory / name
    assert len(former) == len(name)
    for path in source.rglob("*.*"):
        if path.is_file() and path.suffix != ".pyc":
            target = folder / str(path.relative_to(source)).replace(former, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
            if path.suffix in (".py", ".toml", ".txt", ""):
                target.write_text(path.read_text().replace(former, name))
    return folder


@contextmanager
def on_path(folder: Path) -> Iterator[None]:
    """Context manager: make a written package importable, and unload it afterwards."""
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    forget()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for module in set(sys.modules) - before:
            if (getattr(sys.modules[module], "__file__", None) or "").startswith(str(folder)):
                del sys.modules[module]
        forget()


def forget() -> None:
    """Clear the caches of registered packages."""
    known_fields.cache_clear()
    packages.protocol_clashes.cache_clear()
    frame_modules.cache_clear()

"""Laying files and directories over the machine's own, in a mount namespace of one's own."""

from __future__ import annotations

import os
from pathlib import Path

from testbed.kernel import syscalls


def leave_propagation() -> None:
    """In a new mount namespace: what is mounted from now on stays in it, what goes outside goes here too."""
    syscalls.mount("none", "/", flags=syscalls.MS_REC | syscalls.MS_SLAVE)


def bind(source: Path, target: Path) -> None:
    syscalls.mount(os.fspath(source), os.fspath(target), flags=syscalls.MS_BIND | syscalls.MS_REC)


def lay_file(source: Path, target: Path) -> None:
    """Show `source` at `target`, whether or not the machine has a file there."""
    if not os.access(target, os.F_OK):
        make_room(target.parent)
        target.touch()
    bind(source, target)


def lay_directory(target: Path) -> None:
    """Show an empty directory at `target`, whether or not the machine has one there, or takes it away later."""
    above = _nearest(target.parent)
    _cover(above, target.relative_to(above).parts[0])
    target.mkdir(parents=True)
    target.chmod(0o755)


def make_room(directory: Path) -> None:
    """Make `directory` one in which new entries can be made that the machine does not get to see.

    A tmpfs is laid over the nearest directory above that exists, and everything that was in it is bound back. The root
    directory itself cannot be covered so: PermissionError.
    """
    existing = _nearest(directory)
    if existing == Path("/"):
        raise PermissionError(f"cannot add {directory} to the root directory")
    _cover(existing)
    directory.mkdir(parents=True, exist_ok=True)


def _nearest(directory: Path) -> Path:
    """The directory itself or the nearest above that exists."""
    while not directory.is_dir():
        directory = directory.parent
    return directory


def _cover(directory: Path, leaving_out: str = "") -> None:
    """Lay a tmpfs over a directory and bind back what was in it, but for the entry of that name."""
    handle = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        before = Path(f"/proc/self/fd/{handle}")
        entries = [before / name for name in sorted(os.listdir(directory)) if name != leaving_out]
        mode = f"mode={os.fstat(handle).st_mode & 0o7777:o}"
        syscalls.mount("netns-testbed", str(directory), "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, mode)
        for entry in entries:
            target = directory / entry.name
            if entry.is_symlink():
                target.symlink_to(entry.readlink())
                continue
            if entry.is_dir():
                target.mkdir()
            else:
                target.touch()
            bind(entry, target)
    finally:
        os.close(handle)

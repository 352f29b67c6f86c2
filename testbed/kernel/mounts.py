"""Laying files and directories over the machine's own, in a mount namespace of one's own."""

from __future__ import annotations

import os
from pathlib import Path

from testbed.kernel import syscalls


def leave_propagation() -> None:
    """In a new mount namespace: what is mounted from now on stays in it, what goes outside goes here too."""
    syscalls.mount("none", "/", flags=syscalls.MS_REC | syscalls.MS_SLAVE)


def bind(source: Path, target: Path) -> None:
    syscalls.mount(str(source), str(target), flags=syscalls.MS_BIND | syscalls.MS_REC)


def lay_file(source: Path, target: Path) -> None:
    """Show `source` at `target`, whether or not the machine has a file there."""
    if not target.exists():
        make_room(target.parent)
        target.touch()
    bind(source, target)


def lay_directory(target: Path) -> None:
    """Show an empty directory at `target`, whether or not the machine has one there."""
    if not target.exists():
        make_room(target)
    syscalls.mount("netns-testbed", str(target), "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "mode=755")


def make_room(directory: Path) -> None:
    """Make `directory` one in which new entries can be made that the machine does not get to see.

    A tmpfs is laid over the nearest directory above that exists, and everything that was in it is bound back. The root
    directory itself cannot be covered so: PermissionError.
    """
    existing = directory
    while not existing.is_dir():
        existing = existing.parent
    if existing == Path("/"):
        raise PermissionError(f"cannot add {directory} to the root directory")
    handle = os.open(existing, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        before = Path(f"/proc/self/fd/{handle}")
        entries = [before / name for name in sorted(os.listdir(existing))]
        mode = f"mode={os.fstat(handle).st_mode & 0o7777:o}"
        syscalls.mount("netns-testbed", str(existing), "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, mode)
        for entry in entries:
            target = existing / entry.name
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
    directory.mkdir(parents=True, exist_ok=True)

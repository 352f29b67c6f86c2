"""Mounts of files and directories over those of the machine, in a separate mount namespace."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

from testbed.kernel import syscalls

NO_MOUNT_POINT: Final = (
    "the root directory here is not a mount point (a plain chroot), which programs in nodes require: "
    "'mount --bind DIR DIR' before 'chroot DIR' makes it one"
)


def mount_lines() -> list[str]:
    """Return the lines of /proc/self/mountinfo. A mount point that is not UTF-8 is decoded as `os.fsdecode` does."""
    return os.fsdecode(Path("/proc/self/mountinfo").read_bytes()).split("\n")[:-1]


def make_slave() -> None:
    """Make the mounts of this mount namespace slaves of the machine's: new mounts here are not visible outside, and mounts
    and unmounts outside take effect here. Raises OSError."""
    try:
        syscalls.mount("none", "/", flags=syscalls.MS_REC | syscalls.MS_SLAVE)
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise OSError(errno.EINVAL, NO_MOUNT_POINT) from error
        raise


def bind(source: str, target: str) -> None:
    """Bind `source`, with the mounts below it, over the existing `target`."""
    syscalls.mount(source, target, flags=syscalls.MS_BIND | syscalls.MS_REC)


def bind_file(source: str, target: str) -> None:
    """Bind the file `source` over `target`, which need not exist. Paths are strings, since pathlib would take memory in each
    node process."""
    if not os.access(target, os.F_OK):
        make_writable(Path(target).parent)
        Path(target).touch()
    bind(source, target)


def bind_directory(source: str, target: str) -> None:
    """Bind the directory `source` over `target`, which need not exist."""
    if not os.path.isdir(target):
        make_writable(Path(target))
    bind(source, target)


def mount_directory(target: Path) -> None:
    """Mount an empty directory at `target`, which need not exist on the machine."""
    existing = _nearest(target.parent)
    _overlay(existing, target.relative_to(existing).parts[0])
    target.mkdir(parents=True)
    target.chmod(0o755)


def make_writable(directory: Path) -> None:
    """Make `directory` writable without changing the machine's directory.

    A tmpfs is mounted over its nearest existing ancestor, whose entries are bound into it. Raises PermissionError if that
    ancestor is the root directory, over which nothing can be mounted.
    """
    existing = _nearest(directory)
    if existing == Path("/"):
        raise PermissionError(f"cannot add {directory} to the root directory")
    _overlay(existing)
    mask = os.umask(0o022)  # programs of any user in the node may enter it
    try:
        directory.mkdir(parents=True, exist_ok=True)
    finally:
        os.umask(mask)


def _nearest(directory: Path) -> Path:
    """Return the directory, or its nearest existing ancestor."""
    while not directory.is_dir():
        directory = directory.parent
    return directory


def _overlay(directory: Path, excluded: str = "") -> None:
    """Mount a tmpfs over a directory, and bind the directory's entries into it, except the one named `excluded`."""
    handle = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        covered = Path(f"/proc/self/fd/{handle}")
        entries = [covered / name for name in sorted(os.listdir(directory)) if name != excluded]
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
            bind(str(entry), str(target))
    finally:
        os.close(handle)

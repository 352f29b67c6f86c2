"""Files and directories that testbed makes and removes; each change is announced."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from testbed.kernel.changes import announce


def make_directory(path: Path, mode: int = 0o755) -> bool:
    """Make one directory; False when it is there already."""
    try:
        os.mkdir(path, mode)
    except FileExistsError:
        return False
    announce(f"mkdir {path}")
    return True


def remove_directory(path: Path) -> bool:
    """Remove an empty directory; False when it is not there or not empty."""
    try:
        os.rmdir(path)
    except OSError:
        return False
    announce(f"rmdir {path}")
    return True


def replace_file(path: Path, content: str, mode: int = 0o600) -> None:
    """Write a file so that readers see the old content or the new, never a part."""
    draft = path.with_name(f".{path.name}.new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        announce(f"create {draft}")
        data = memoryview(content.encode())
        while data:
            data = data[os.write(descriptor, data) :]
            announce(f"write {draft}")
    finally:
        os.close(descriptor)
    os.rename(draft, path)
    announce(f"rename {path}")


def remove_file(path: Path) -> None:
    """Remove a file that may be gone already."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
        announce(f"unlink {path}")


def remove_tree(path: Path) -> None:
    """Remove a directory of our own with all that is in it, which may be partly gone; crosses no symbolic link."""
    empty(path)
    remove_directory(path)


def empty(path: Path) -> None:
    """Remove all that is in a directory of our own."""
    try:
        with os.scandir(path) as scan:
            entries = list(scan)
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            remove_tree(Path(entry.path))
        else:
            remove_file(Path(entry.path))


def write_setting(path: str, value: str) -> None:
    """Write a kernel setting (a file below /proc or /sys) in one call."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, value.encode())
    finally:
        os.close(descriptor)
    announce(f"write {path}")


def write_in_place(path: Path, content: str) -> None:
    """Write a file without replacing it: programs that have it bound over another path see the change."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        announce(f"create {path}")
        data = content.encode()
        written = os.pwrite(descriptor, data, 0)
        if written != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        announce(f"write {path}")
        os.ftruncate(descriptor, len(data))
        announce(f"truncate {path}")
    finally:
        os.close(descriptor)

"""Files and directories that testbed makes and removes; each change is announced. Sealed memory, which
is a file without a name."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from pathlib import Path
from typing import BinaryIO, Final

from testbed.kernel.changes import announce

MAX_TEXT: Final = 256 << 20
"""Bytes of a file that is read at once; the state of ten thousand nodes has a few million."""


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading. OSError for anything else in its place: opening a FIFO could block for ever, and a
    device may have no end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        code = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise OSError(code, "it is a directory" if stat.S_ISDIR(mode) else "it is not a regular file", str(path))
    return open(descriptor, "rb")


def read_text(path: Path) -> str:
    """Read the text of a regular file. OSError; ValueError for bytes that are not UTF-8."""
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > MAX_TEXT:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
        return file.read().decode()


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
    """Write a file atomically: readers see the old content or the new."""
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
    """Remove a directory of our own with its contents, which may be partly gone; crosses no symbolic link."""
    empty(path)
    remove_directory(path)


_ROUNDS: Final = 3
"""Passes over a directory: a file that another process adds last, such as an event, is found by the second."""


def empty(path: Path) -> None:
    """Remove the contents of a directory of our own, with what others put there meanwhile."""
    for _ in range(_ROUNDS):
        for entry in _entries(path):
            if entry.is_dir(follow_symlinks=False):
                remove_tree(Path(entry.path))
            else:
                remove_file(Path(entry.path))


def _entries(path: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as scan:
            return list(scan)
    except FileNotFoundError:
        return []


def write_setting(path: str, value: str) -> None:
    """Write a kernel setting (a file below /proc or /sys) in one call."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, value.encode())
    finally:
        os.close(descriptor)
    announce(f"write {path}")


def write_in_place(path: Path, content: str) -> None:
    """Write a file without replacing its inode: a bind mount of it shows the change."""
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


_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def make_sealed(name: str, size: int) -> int:
    """Make a sealed file of `size` bytes, all 0; the caller closes the descriptor. name: shown in /proc/PID/maps.

    A sealed memfd is memory that processes share and whose size none of them can change (memfd_create(2), fcntl(2)): a
    process that truncates a shared file makes the next access of the others fail with SIGBUS. It has no name that could
    be left behind, and is freed with its last descriptor and mapping. Only written pages take memory.
    """
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, size)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor

"""Creation and removal of files and directories, with announcements of the changes; sealed memory files."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from io import BufferedReader
from pathlib import Path
from typing import Final

from testbed.errors import errors_naming
from testbed.kernel.changes import announce

MAX_TEXT_SIZE: Final = 256 << 20
"""Maximum bytes of a file that `read_text` reads; the state of ten thousand nodes has a few million."""


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading. Raises OSError for any other kind of file: opening a FIFO could block forever, and a
    device may be endless."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        code = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise OSError(code, "it is a directory" if stat.S_ISDIR(mode) else "it is not a regular file", str(path))
    return open(descriptor, "rb")


def read_text(path: Path) -> str:
    """Read a regular file as UTF-8 text. Raises OSError, also if it is larger than `MAX_TEXT_SIZE`; ValueError for
    bytes that are not UTF-8."""
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > MAX_TEXT_SIZE:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
        return file.read().decode()


def make_directory(path: Path, mode: int = 0o755) -> bool:
    """Make a directory; return False if something with that name exists."""
    try:
        os.mkdir(path, mode)
    except FileExistsError:
        return False
    announce(f"mkdir {path}")
    return True


def remove_directory(path: Path) -> bool:
    """Remove an empty directory; return False if that is not possible, as for a directory with entries."""
    try:
        os.rmdir(path)
    except OSError:
        return False
    announce(f"rmdir {path}")
    return True


def replace_file(path: Path, content: str, mode: int = 0o600) -> None:
    """Replace a file atomically: readers get the old or the new content. mode: of the new file, subject to the umask."""
    temporary = path.with_name(f".{path.name}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        announce(f"create {temporary}")
        data = memoryview(content.encode())
        with errors_naming(path):
            while data:
                data = data[os.write(descriptor, data) :]
                announce(f"write {temporary}")
    finally:
        os.close(descriptor)
    os.rename(temporary, path)
    announce(f"rename {path}")


def remove_file(path: Path) -> None:
    """Remove one of the testbed's files, if it exists. A directory in its place, a sign of damage, is removed, too."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    except IsADirectoryError:
        remove_tree(path)
    else:
        announce(f"unlink {path}")


def remove_tree(path: Path) -> None:
    """Remove one of the testbed's directories with its contents, without following symbolic links."""
    empty(path)
    remove_directory(path)


_PASSES: Final = 3
"""Number of passes over a directory, since another process may add files meanwhile, such as the log of events."""


def empty(path: Path) -> None:
    """Remove the contents of one of the testbed's directories, including files added meanwhile by other processes."""
    for _ in range(_PASSES):
        for entry in _entries(path):
            if entry.is_dir(follow_symlinks=False):
                remove_tree(Path(entry.path))
            else:
                remove_file(Path(entry.path))


def names_in(directory: Path, prefix: str) -> list[str]:
    """List the sorted names in a directory that begin with `prefix`; empty if the directory does not exist. `Path.glob`
    would compile a pattern in every new process."""
    return sorted(entry.name for entry in _entries(directory) if entry.name.startswith(prefix))


def _entries(path: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as scan:
            return list(scan)
    except FileNotFoundError:
        return []


_MAX_KERNEL_FILE: Final = 4096  # bytes


def read_kernel_file(path: str) -> str:
    """Read the first 4096 bytes of a file below /proc or /sys, in one system call. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _MAX_KERNEL_FILE).decode(errors="replace")
    finally:
        os.close(descriptor)


def write_setting(path: str, value: str) -> None:
    """Write a kernel setting, a file below /proc or /sys, in one system call. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        with errors_naming(path):
            os.write(descriptor, value.encode())
    finally:
        os.close(descriptor)
    announce(f"write {path}")


def write_in_place(path: Path, content: str, mode: int) -> None:
    """Write a file without replacing its inode, so that bind mounts of it show the change. mode: not subject to the
    umask."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)  # a FIFO would block
    try:
        announce(f"create {path}")
        path.chmod(mode)
        announce(f"chmod {path}")
        data = content.encode()
        with errors_naming(path):
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
    """Make a sealed memfd of `size` zero bytes; return its descriptor, which the caller closes. name: as in /proc/PID/maps.

    It is shared memory of a fixed size (memfd_create(2), fcntl(2)): if a process could truncate it, the next access of
    another process would fail with SIGBUS. It has no path that must be removed, and is freed with its last descriptor and
    mapping. Only written pages take memory.
    """
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, size)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor

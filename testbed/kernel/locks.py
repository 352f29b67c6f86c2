"""File locks that a process holds until it ends. The kernel reports the holder, and the file contains the holder's note.

These are POSIX record locks: they end with the process, however it ends, and its forks do not inherit them. A process that
opens and closes the file of its own lock a second time loses the lock, so it must not call `holder` for that lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from pathlib import Path
from typing import Final

from testbed.errors import TestbedError

_FLOCK: Final = struct.Struct("hhqqi0q")  # struct flock: type, whence, start, length, pid
_MAX_NOTE: Final = 4096  # bytes of a note


class LockedError(TestbedError):
    """Another process holds the lock."""


class Lock:
    """A lock that this process holds until it ends.

    previous_note: the note of the last holder; empty if it released the lock or there was none.
    """

    def __init__(self, path: Path) -> None:
        """Take the lock. Raises LockedError if another process holds it; FileNotFoundError if the file does not exist, or
        was removed meanwhile."""
        self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._descriptor)
            raise LockedError(f"{path} is locked by process {holder(path)}") from error
        status = os.fstat(self._descriptor)
        if (status.st_dev, status.st_ino) != _identity(path):
            os.close(self._descriptor)
            raise FileNotFoundError(path)
        self.previous_note = os.pread(self._descriptor, _MAX_NOTE, 0).decode()

    def note(self, text: str) -> None:
        """Write a note that stays in the file if this process dies."""
        # In this order, a note of the same length as the previous one needs no further space on a full disk.
        note = text.encode()
        os.pwrite(self._descriptor, note, 0)
        os.ftruncate(self._descriptor, len(note))

    def release(self) -> None:
        """Release the lock and erase the note."""
        self.note("")
        os.close(self._descriptor)


def make(path: Path) -> None:
    """Make the file of a lock, unless it exists. Its directory must exist."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))


def holder(path: Path) -> int:
    """Return the pid of a lock's holder; 0 if there is none. Do not call it for a lock that this process holds."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # the file system may be read-only
    except (FileNotFoundError, IsADirectoryError):  # a directory in a damaged tree cannot be locked
        return 0
    try:
        request = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, request))
    finally:
        os.close(descriptor)
    return 0 if kind == fcntl.F_UNLCK else pid


def read_note(path: Path) -> str:
    """Read the note of a lock's holder, or of the last holder if it died without releasing the lock; else empty."""
    with contextlib.suppress(FileNotFoundError):
        return path.read_text()
    return ""


def clear(path: Path) -> None:
    """Erase the note of a holder that was killed on purpose."""
    with contextlib.suppress(FileNotFoundError):
        os.truncate(path, 0)


def holder_pidfd(path: Path) -> tuple[int, int] | None:
    """Return the pid of a lock's holder and a pidfd of it, which the caller closes; None if there is no holder."""
    while pid := holder(path):
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(pid)
            if holder(path) == pid:  # otherwise the pid may have been reused
                return pid, handle
            os.close(handle)
    return None


def _identity(path: Path) -> tuple[int, int] | None:
    with contextlib.suppress(FileNotFoundError):
        status = os.stat(path)
        return status.st_dev, status.st_ino
    return None

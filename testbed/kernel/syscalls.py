"""System calls that Python 3.11 does not offer, through libc. A failed call raises OSError with errno and, for mounts, the
path."""

from __future__ import annotations

import ctypes
import os

from testbed.kernel.changes import announce

CLONE_NEWNS = 0x0002_0000
CLONE_NEWUTS = 0x0400_0000
CLONE_NEWUSER = 0x1000_0000
CLONE_NEWNET = 0x4000_0000

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 1 << 18
MS_SLAVE = 1 << 19
MS_SHARED = 1 << 20

MNT_DETACH = 2
UMOUNT_NOFOLLOW = 8

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15

_libc = ctypes.CDLL(None, use_errno=True)
# All symbols are resolved at import: each one resolved in a forked process would take private memory there.
_libc.unshare.argtypes = (ctypes.c_int,)
_libc.setns.argtypes = (ctypes.c_int, ctypes.c_int)
_libc.mount.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p)
_libc.umount2.argtypes = (ctypes.c_char_p, ctypes.c_int)
_libc.sethostname.argtypes = (ctypes.c_char_p, ctypes.c_size_t)
_libc.prctl.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong)


def checked(result: int, path: str | None = None) -> int:
    """Check the result of a libc function: return it, or raise OSError with errno if it is negative."""
    if result < 0:
        errno = ctypes.get_errno()
        raise OSError(errno, os.strerror(errno), path)
    return result


def unshare(flags: int) -> None:
    """Move the calling thread into new namespaces. flags: CLONE_NEW*. Not announced, since the namespaces end with the
    thread unless they are mounted or held open."""
    checked(_libc.unshare(flags))


def setns(descriptor: int, kind: int = 0) -> None:
    """Move the calling thread into the namespace of a descriptor. kind: its required type, CLONE_NEW*; 0: any."""
    checked(_libc.setns(descriptor, kind))


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Mount `source` at `target`. kind: type of the file system. flags: MS_*. options: of the file system."""
    checked(
        _libc.mount(
            os.fsencode(source),
            os.fsencode(target),
            kind.encode() or None,
            flags,
            options.encode() or None,
        ),
        target,
    )
    announce(f"mount {target}")


def umount(target: str) -> None:
    """Detach the mount at `target`; never follows a symbolic link."""
    checked(_libc.umount2(os.fsencode(target), MNT_DETACH | UMOUNT_NOFOLLOW), target)
    announce(f"umount {target}")


def sethostname(name: str) -> None:
    encoded = name.encode()
    checked(_libc.sethostname(encoded, len(encoded)))


def name_process(name: str) -> None:
    """Set the calling thread's name in ``ps`` and ``top``: up to 15 bytes (prctl PR_SET_NAME)."""
    checked(_libc.prctl(PR_SET_NAME, name.encode(), 0, 0, 0))


def end_with_parent(number: int) -> None:
    """Request a signal for the end of the thread that forked this process; 0: none (prctl PR_SET_PDEATHSIG)."""
    checked(_libc.prctl(PR_SET_PDEATHSIG, number, 0, 0, 0))

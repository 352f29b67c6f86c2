"""Memory that processes share by a descriptor, and whose size nobody can change any more (memfd_create(2), fcntl(2)).

What two processes have mapped is taken from one by the other that cuts the file short: it is sent SIGBUS at its next
look. Sealed, the file keeps its size whatever the other does; it has no name that could be left behind, and is gone with the
last who holds it. It takes as much of the machine's memory as has been written to.
"""

from __future__ import annotations

import fcntl
import os
from typing import Final

_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def sealed(name: str, size: int) -> int:
    """A descriptor of so many bytes, all zero; it is the caller's to close. name: for who looks at /proc/PID/maps."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, size)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor

"""Sealed memory: a memfd that processes share and whose size none of them can change (memfd_create(2), fcntl(2)).

A process that truncates a shared file makes the next access of the others fail with SIGBUS. A sealed file keeps its size;
it has no name that could be left behind, and is freed with its last descriptor and mapping. Only written pages take
memory.
"""

from __future__ import annotations

import fcntl
import os
from typing import Final

_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def make_sealed(name: str, size: int) -> int:
    """Make a sealed file of `size` bytes, all 0; the caller closes the descriptor. name: shown in /proc/PID/maps."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, size)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor

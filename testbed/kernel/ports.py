"""The ports at which a process's network namespace can be reached, as /proc tells them."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final, Literal

_OPEN: Final = {"tcp": "0A", "udp": "07"}
"""The state of a socket that waits for whoever comes, in hexadecimal (include/net/tcp_states.h)."""


def open_ports(pid: int | str, transport: Literal["tcp", "udp"]) -> set[int]:
    """Those with a socket that listens, or of UDP one that is connected to nobody, whichever version of IP; none where the
    process has gone. pid: or "self"."""
    found = set[int]()
    for table in (transport, f"{transport}6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                _, local, _, state = line.split()[:4]
                if state == _OPEN[transport]:
                    found.add(int(local.rpartition(":")[2], 16))
    return found

"""Open ports of a process's network namespace, from /proc/PID/net."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final, Literal

_OPEN: Final = {"tcp": "0A", "udp": "07"}
"""The state of a listening TCP or an unconnected UDP socket, in hexadecimal (include/net/tcp_states.h)."""


def open_ports(pid: int | str, transport: Literal["tcp", "udp"]) -> set[int]:
    """Return the ports with a listening TCP or an unconnected UDP socket, of both IP versions; none where the process has
    gone. pid: a number or "self"."""
    ports = set[int]()
    for table in (transport, f"{transport}6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                _, local, _, state = line.split()[:4]
                if state == _OPEN[transport]:
                    ports.add(int(local.rpartition(":")[2], 16))
    return ports

"""The programs in a cluster's namespaces with what they use of processors and memory, from one read of /proc each."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from testbed.kernel import processes
from testbed.observe.live.snapshot import Program

_TICK: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


class Processing:
    """It remembers what each had used when it was looked at last."""

    def __init__(self) -> None:
        self._used: dict[tuple[int, int], int] = {}  # (process, when it started) -> ticks

    def look(self, keys: Mapping[int, str], span: float) -> dict[str, list[Program]]:
        """Of namespaces, by their key. keys: their inodes. span: seconds since the last look; 0: this is the first."""
        found: dict[str, list[Program]] = {}
        used: dict[tuple[int, int], int] = {}
        for pid in processes.everyone():
            key = keys.get(processes.network_namespace_of(pid))
            if key is None:
                continue
            try:
                with open(f"/proc/{pid}/stat", "rb") as file:
                    text = file.read()
            except OSError:  # it has ended
                continue
            name = text[text.index(b"(") + 1 : text.rindex(b")")].decode(errors="replace")
            fields = text[text.rindex(b")") + 2 :].split()
            ticks, started, pages = int(fields[11]) + int(fields[12]), int(fields[19]), int(fields[21])
            used[pid, started] = ticks
            before = self._used.get((pid, started), ticks)
            cpu = (ticks - before) / _TICK / span if span else 0.0
            found.setdefault(key, []).append(Program(pid, name, cpu, pages * _PAGE))
        self._used = used
        return found

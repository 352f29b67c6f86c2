"""Profiles of the SSAM paper's hardware: SBA-100 interfaces in a SPARCstation-20 and a SPARCstation-1+.

von Eicken, Basu, Buch, "Low-Latency Communication over ATM Networks Using Active Messages", IEEE Micro 15(1), 1995;
tables and sections are that paper's. Nothing is calibrated: tables 1 and 2 list the kernel's work on the host's core
item by item, and the text bounds the library's part. The fibre is not included: a cluster's description sets its times.
"""

from __future__ import annotations

from typing import Final

from protocols.core.host_work import TRAP
from protocols.core.profile import Cost, Profile
from protocols.ssam.host import DISPATCH, FORMAT
from protocols.ssam.sba100 import (
    CELL_CALL,
    CELL_READ,
    READ_CALL,
    READ_TRAP,
    WRITE_CALL,
    WRITE_READ_TRAP,
    WRITE_TRAP,
)

LIBRARY_20: Final = 1_100
"""Nanoseconds. Section 3.4.3: a request takes the write-read trap and "a little over 1 us" for the cell's format and
flow control; a received message takes the read trap and "a little over 1 us" for flow control and dispatch. Our choice:
10 percent over 1 us."""

LIBRARY_1: Final = round(LIBRARY_20 * 2.03 / 0.44)
"""Nanoseconds, not in the paper. Our choice: LIBRARY_20, scaled by the ratio of the two machines' times for trap and
return (table 1), which access no device, like the library."""

# Table 1, nanoseconds: SPARCstation-20 and SPARCstation-1+.
TRAP_AND_RETURN: Final = (440, 2_030)
WRITE_CHECK: Final = (50, 500)
"""Check the process and the connection, fetch the connection's addresses; the kernel's other overhead of a write."""
LOAD: Final = (130, 3_870)
"""Load a cell from memory."""
PUSH: Final = (2_050, 3_170)
"""Push a cell to the interface."""
COUNT: Final = (810, 1_080)
"""Read the interface's count register."""
READ_OTHER: Final = (180, 800)
"""The kernel's other overhead of a read."""
PULL: Final = (4_270, 3_680)
"""Pull a cell from the interface."""
DEMULTIPLEX: Final = (90, 230)
"""Find the process's buffer of a cell."""
STORE: Final = (170, 3_500)
"""Store a cell in memory."""

# Table 2, nanoseconds.
CALL_TO_WRITE: Final = (22_600, 100_000)
COPY_IN: Final = (3_400, 16_000)
"""Check the file descriptor, and move a cell into the kernel's buffer (uiomove)."""
CALL_PUSH: Final = (2_200, 8_000)
CALL_TO_READ: Final = (22_100, 99_000)
COPY_OUT: Final = (7_000, 25_000)
"""Check the file descriptor, and move a cell out of the kernel's buffer (uiomove)."""
CALL_PULL: Final = (5_000, 13_000)

_WRITE: Final = (WRITE_CHECK, LOAD, PUSH)
_READ: Final = (COUNT, READ_OTHER)
_ITEMS: Final[dict[str, tuple[tuple[int, int], ...]]] = {
    TRAP: (TRAP_AND_RETURN,),
    WRITE_TRAP: (TRAP_AND_RETURN, *_WRITE),
    READ_TRAP: (TRAP_AND_RETURN, *_READ),
    WRITE_READ_TRAP: (TRAP_AND_RETURN, *_WRITE, *_READ),
    CELL_READ: (PULL, DEMULTIPLEX, STORE),
    WRITE_CALL: (CALL_TO_WRITE, COPY_IN, CALL_PUSH),
    READ_CALL: (CALL_TO_READ, COPY_OUT),
    CELL_CALL: (CALL_PULL,),
    FORMAT: ((LIBRARY_20, LIBRARY_1),),
    DISPATCH: ((LIBRARY_20, LIBRARY_1),),
}


def _profile(name: str, machine: int) -> Profile:
    """Make a machine's profile. machine: index of its column in the tables. An unsuccessful poll is a read trap without
    cells."""
    costs = {kind: sum(item[machine] for item in items) for kind, items in _ITEMS.items()}
    return Profile(
        name, hosted=True, poll=costs[READ_TRAP], work={kind: Cost(cost) for kind, cost in costs.items()}
    )  # fmt: skip


SPARCSTATION_20: Final = _profile("sparcstation-20", 0)
SPARCSTATION_1: Final = _profile("sparcstation-1+", 1)

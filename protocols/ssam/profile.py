"""Hardware costs of SSAM's paper: SBA-100 interfaces in a SPARCstation-20 and a SPARCstation-1+.

von Eicken, Basu, Buch, "Low-Latency Communication over ATM Networks Using Active Messages", IEEE Micro 15(1), 1995; tables
and sections are that paper's. Nothing is calibrated: tables 1 and 2 list what the kernel does on the host's core item by
item, and the text bounds the library's part. The fibre is not included: a cluster's description sets the time of cells on
it.
"""

from __future__ import annotations

from typing import Final

from protocols.core.host_work import TRAP, Cost
from protocols.core.profile import Profile
from protocols.ssam.host import DISPATCH, FORMAT
from protocols.ssam.sba100 import (
    CALL_PULL,
    CALL_PUSH,
    CALL_READ,
    CALL_WRITE,
    COPY_IN,
    COPY_OUT,
    COUNT,
    DEMULTIPLEX,
    LOAD,
    PULL,
    PUSH,
    READ_CHECK,
    STORE,
    WRITE_CHECK,
)

LIBRARY_20: Final = 1_100
"""Nanoseconds. Section 3.4.3: a request takes the write-read trap and "a little over 1 us" for the cell's format and flow
control; a message that has come takes the read trap and "a little over 1 us" for flow control and dispatch. Our choice: a
tenth over."""

LIBRARY_1: Final = round(LIBRARY_20 * 2.03 / 0.44)
"""Nanoseconds. The paper does not state it: our choice is the ratio of the two machines' trap and return (table 1), which
touch no device, as the library does not."""

# Table 1, nanoseconds: SPARCstation-20 and SPARCstation-1+.
_TABLE_1: Final = {
    TRAP: (440, 2_030),
    WRITE_CHECK: (50, 500),
    LOAD: (130, 3_870),
    PUSH: (2_050, 3_170),
    COUNT: (810, 1_080),
    READ_CHECK: (180, 800),
    PULL: (4_270, 3_680),
    DEMULTIPLEX: (90, 230),
    STORE: (170, 3_500),
}

# Table 2, nanoseconds.
_TABLE_2: Final = {
    CALL_WRITE: (22_600, 100_000),
    COPY_IN: (3_400, 16_000),
    CALL_PUSH: (2_200, 8_000),
    CALL_READ: (22_100, 99_000),
    COPY_OUT: (7_000, 25_000),
    CALL_PULL: (5_000, 13_000),
}

_TEXT: Final = {FORMAT: (LIBRARY_20, LIBRARY_1), DISPATCH: (LIBRARY_20, LIBRARY_1)}


def _profile(name: str, machine: int) -> Profile:
    """Make a machine's profile. machine: its place in the tables' columns. A poll in vain is the read trap of no cell."""
    costs = {kind: both[machine] for kind, both in (_TABLE_1 | _TABLE_2 | _TEXT).items()}
    return Profile(
        name,
        hosted=True,
        poll=costs[TRAP] + costs[COUNT] + costs[READ_CHECK],
        work={kind: Cost(cost) for kind, cost in costs.items()},
    )


SPARCSTATION_20: Final = _profile("sparcstation-20", 0)
SPARCSTATION_1: Final = _profile("sparcstation-1+", 1)

"""Location of a cell's header fields behind the Ethernet header, for rules and captures.

Of a frame with several cells they describe the first one; a network's frames have one.
"""

from __future__ import annotations

from typing import Final

ETHERTYPE: Final = 0x8884
"""ATM over Ethernet, as registered by IEEE. Frames carry cells as they are, without the header of AF-FBATM-0139."""

FIELDS: Final[dict[str, tuple[object, ...]]] = {
    "vpi": (0, 2, 0x0FF0),
    "vci": (1, 3, 0x0FFFF0),
    "pti": (3, 1, 0x0E),
    "clp": (3, 1, 0x01),
    "hec": (4, 1),
}
"""Fields for rules: offset, width and mask (I.361, figure 2: a header at the user-network interface)."""

CHECK: Final = "hec"
"""The field that is computed from the rest of the header."""

FLOW: Final = ("vpi", "vci")
"""Cells of one circuit between two NICs form a flow."""


def mended(frame: bytes, begin: int) -> bytes:
    """Compute the check of a cell's header anew. begin: start of the cell."""
    from protocols.atm.cell import HEADER, hec  # its table is only built by programs that change cells

    head = frame[begin : begin + HEADER]
    return frame[: begin + HEADER - 1] + bytes((hec(head),)) + frame[begin + HEADER :] if len(head) == HEADER else frame

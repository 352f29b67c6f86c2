"""Location of a cell's header fields after the Ethernet header, for rules and captures.

For a frame with several cells they describe the first one; on a network, a frame has one cell.
"""

from __future__ import annotations

from typing import Final

ETHERTYPE: Final = 0x8884
"""ATM over Ethernet, as registered by IEEE. Frames carry cells unchanged, without the header of AF-FBATM-0139."""

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
    """Return the frame with the header error control of a cell recomputed. begin: offset of the cell."""
    from protocols.atm.cell import HEADER, hec  # deferred: only programs that change cells build its table

    head = frame[begin : begin + HEADER]
    return frame[: begin + HEADER - 1] + bytes((hec(head),)) + frame[begin + HEADER :] if len(head) == HEADER else frame

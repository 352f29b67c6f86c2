"""An ATM cell after an Ethernet header, as a Scapy layer. Layers of protocols are bound to it:

    bind_layers(Cell, Mine, ...)
    STACKS = {"cell": (Ether, Cell, Mine)}

`cell.py` implements the same format without Scapy.
"""

from __future__ import annotations

from typing import Final

from scapy.fields import BitField, XByteField
from scapy.layers.l2 import Ether
from scapy.packet import Packet, bind_layers

from protocols.atm.cell import CELL, HEADER, hec
from protocols.atm.fields import ETHERTYPE


class HecField(XByteField):
    """The header error control. A wrong value is shown with the computed value."""

    def i2repr(self, pkt: Packet | None, x: int | None) -> str:
        expected = pkt.computed if isinstance(pkt, Cell) else None
        value = "none" if x is None else f"0x{x:02x}"
        return value if expected in (None, x) else f"{value}, wrong: it would be 0x{expected:02x}"


class Cell(Packet):
    """A cell: 5 bytes of header, 48 of payload. A frame's further cells follow as padding."""

    name = "ATM"
    fields_desc = [  # noqa: RUF012
        BitField("gfc", 0, 4),
        BitField("vpi", 0, 8),
        BitField("vci", 0, 16),
        BitField("pti", 0, 3),
        BitField("clp", 0, 1),
        HecField("hec", None),
    ]
    computed: int | None = None
    """The header error control computed from a dissected cell."""

    def post_build(self, pkt: bytes, pay: bytes) -> bytes:
        check = hec(pkt[:4]) if self.hec is None else pkt[4]
        return pkt[:4] + bytes((check,)) + pay

    def pre_dissect(self, s: bytes) -> bytes:
        self.computed = hec(s) if len(s) >= HEADER else None
        return s

    def extract_padding(self, s: bytes) -> tuple[bytes, bytes]:
        return s[: CELL - HEADER], s[CELL - HEADER :]


STACKS: Final = {"cell": (Ether, Cell)}

bind_layers(Ether, Cell, type=ETHERTYPE)

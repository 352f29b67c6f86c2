"""SSAM's message in an ATM cell, as a Scapy layer. `cells.py` implements the same format without Scapy."""

from __future__ import annotations

from typing import Final

from scapy.fields import BitEnumField, BitField, StrFixedLenField, XIntField
from scapy.layers.l2 import Ether
from scapy.packet import Packet, bind_layers

from protocols.atm.frames import Cell
from protocols.ssam.cells import DATA, crc10
from protocols.ssam.fields import KIND as KIND
from protocols.ssam.fields import KINDS as KINDS
from protocols.ssam.fields import NAMES


class Ssam(Packet):
    """A message, 48 bytes. In a message of kind BYTES, the handler field contains data."""

    name = "SSAM"
    fields_desc = [  # noqa: RUF012
        BitEnumField("kind", 0, 2, NAMES["kind"]),
        BitField("session", 0, 8),
        BitField("number", 0, 6),
        XIntField("handler", 0),
        StrFixedLenField("data", bytes(DATA), length=DATA),
        BitField("length", DATA + 4, 6),
        BitField("check", None, 10),
    ]

    def post_build(self, pkt: bytes, pay: bytes) -> bytes:
        if self.check is None:
            pkt = pkt[:-2] + (int.from_bytes(pkt[-2:], "big") & 0xFC00).to_bytes(2, "big")
            pkt = pkt[:-2] + (int.from_bytes(pkt[-2:], "big") | crc10(pkt)).to_bytes(2, "big")
        return pkt + pay

    def extract_padding(self, s: bytes) -> tuple[bytes, bytes]:
        return b"", s


STACKS: Final = {"cell": (Ether, Cell, Ssam)}

bind_layers(Cell, Ssam)

"""The mapper's frames: the one definition of their format, as Scapy layers.

Here a frame is as it is without what changes on the way: the source route, which switches consume, and the CRC-8 at the
end, which they make anew; `envelope.py` puts both on and takes them off. Packet type 0x0005 is Myrinet's for mapping
(ANSI/VITA 26-1998); what is behind it is ours. Numbers are in network byte order. `codec.py` is made from this file.
"""

from __future__ import annotations

import struct
from typing import Final
from zlib import crc32

from scapy.fields import ByteEnumField, IntField, ShortEnumField, ShortField, XIntField
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw, bind_layers

from protocols.core.telling import Kind

ETHERTYPE: Final = 0x88B6
"""IEEE Std 802 - Local Experimental Ethertype 2."""

MAPPING: Final = 5
"""The packet type."""

PROBE: Final = 1
LOOP: Final = 2
ANSWER: Final = 3
TABLE: Final = 4
ACK: Final = 5
HINT: Final = 6

# Where those two fields stand in the header.
_LENGTH: Final = 25
_CHECK: Final = 27


class Mapping(Packet):
    """The header, 31 bytes."""

    name = "Mapping"
    fields_desc = [  # noqa: RUF012
        ShortEnumField("type", MAPPING, {MAPPING: "MAPPING"}),
        # PROBE: whoever gets it answers; its payload is the route that it has taken. LOOP: comes back to who sent it.
        # TABLE: a part of a host's routes; its payload is described in tables.py. HINT: the leader should look again.
        ByteEnumField(
            "kind",
            PROBE,
            {PROBE: "PROBE", LOOP: "LOOP", ANSWER: "ANSWER", TABLE: "TABLE", ACK: "ACK", HINT: "HINT"},
        ),
        ShortField("source", 0),  # node number of the NIC that sends this
        # Who leads, as far as it knows: itself, if it leads or would; 65535: it knows of none.
        ShortField("leader", 0),
        XIntField("incarnation", 0),  # of the NIC that sends this
        IntField("number", 0),  # of the probe, as its sender counts; in an answer that of the probe
        IntField("epoch", 0),  # of the table that this is about, or that the sender has; 0: none
        ShortField("author", 0),  # node number of the leader that made that table
        ShortField("part", 0),  # of a table, from 0
        ShortField("parts", 0),  # of a table
        ShortField("length", None),  # bytes of payload
        # CRC-32 as in zlib over the frame from its first byte to the end of the payload, without this field.
        XIntField("check", None),
    ]

    def post_build(self, pkt: bytes, pay: bytes) -> bytes:
        if self.length is None:
            pkt = pkt[:_LENGTH] + struct.pack("!H", len(pay)) + pkt[_LENGTH + 2 :]
        if self.check is None:
            before = self.underlayer.self_build() if self.underlayer else b""
            check = crc32(pay, crc32(pkt[:_CHECK], crc32(before)))
            pkt = pkt[:_CHECK] + struct.pack("!I", check)
        return pkt + pay

    def extract_padding(self, s: bytes) -> tuple[bytes, bytes]:
        """What is behind the payload is none of it."""
        end = self.length or 0
        return s[:end], s[end:]

    def mysummary(self) -> str:
        return str(self.sprintf("Mapping %Mapping.kind% %Mapping.number% of node %Mapping.source%"))


class ByPacketType(Packet):
    """What Ethernet takes for the layer of this EtherType, which several packet types have: Scapy has no other way."""

    @classmethod
    def dispatch_hook(cls, _pkt: bytes = b"", *_: object, **__: object) -> type[Packet]:
        if int.from_bytes(_pkt[:2], "big") == MAPPING:
            return Mapping
        bound = [layer for values, layer in Ether.payload_guess if values == {"type": ETHERTYPE}]
        return next((layer for layer in bound if layer not in (cls, Mapping)), Raw)


bind_layers(Ether, Mapping, type=ETHERTYPE)
Ether.payload_guess.insert(0, ({"type": ETHERTYPE}, ByPacketType))

STACKS: Final[dict[str, tuple[type[Packet], ...]]] = {"frame": (Ether, Mapping)}
LENGTH: Final = "length"
CHECK: Final = "check"
ROUTED: Final = True
FLOW: Final = ("kind",)

# For people: a frame in words.
KIND: Final = "kind"
KINDS: Final = {
    PROBE: Kind("control", "mapping PROBE {number} of node {source}"),
    LOOP: Kind("control", "mapping LOOP {number} of node {source}"),
    ANSWER: Kind("control", "mapping ANSWER {number}: node {source}, leader {leader}, routes of epoch {epoch}"),
    TABLE: Kind("control", "mapping TABLE of epoch {epoch} by node {author}, part {part} of {parts}"),
    ACK: Kind("control", "mapping ACK of epoch {epoch} by node {author}, part {part} of {parts}"),
    HINT: Kind("control", "mapping HINT {number} of node {source}"),
}

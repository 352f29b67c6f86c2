"""Format of the mapper's frames, as a Scapy layer.

The frames are Myrinet packets of the mapping type (`protocols.myrinet`); the format after the type is ours. Numbers are
in network byte order. `codec.py` is generated from this module.
"""

from __future__ import annotations

from typing import Final

from scapy.fields import ByteEnumField, IntField, ShortField, XIntField
from scapy.layers.l2 import Ether
from scapy.packet import Packet, bind_layers

from protocols.core.frame_kinds import Kind
from protocols.core.frames import LengthCheckLayer
from protocols.myrinet.fields import MAPPING
from protocols.myrinet.frames import Myrinet

PROBE: Final = 1
LOOP: Final = 2
ANSWER: Final = 3
TABLE: Final = 4
ACK: Final = 5
HINT: Final = 6


class Mapping(LengthCheckLayer):
    """The header, 29 bytes."""

    name = "Mapping"
    fields_desc = [  # noqa: RUF012
        # PROBE: the receiver answers; the payload is the route of the probe. LOOP: the frame returns to its sender.
        # TABLE: a part of a host's routes; `route_tables` has the format of the payload. HINT: the leader should check
        # the map.
        ByteEnumField(
            "kind",
            PROBE,
            {PROBE: "PROBE", LOOP: "LOOP", ANSWER: "ANSWER", TABLE: "TABLE", ACK: "ACK", HINT: "HINT"},
        ),
        ShortField("source", 0),  # node number of the sending NIC
        # Node number of the leader known to the sender, which may be the sender itself; 65535: unknown.
        ShortField("leader", 0),
        XIntField("incarnation", 0),  # of the sending NIC
        IntField("number", 0),  # number of the probe; of an ANSWER: of the answered probe
        IntField("epoch", 0),  # of the table, or of the sender's table; 0: none
        ShortField("author", 0),  # node number of the leader that made that table
        ShortField("part", 0),  # of a table, from 0
        ShortField("parts", 0),  # number of parts of the table
        ShortField("length", None),  # bytes of payload
        # CRC-32 as in zlib over the frame from the first byte to the end of the payload, without this field.
        XIntField("check", None),
    ]

    def mysummary(self) -> str:
        return str(self.sprintf("Mapping %Mapping.kind% %Mapping.number% of node %Mapping.source%"))


bind_layers(Myrinet, Mapping, type=MAPPING)

STACKS: Final[dict[str, tuple[type[Packet], ...]]] = {"frame": (Ether, Myrinet, Mapping)}
LENGTH: Final = "length"
CHECK: Final = "check"
FLOW: Final = ("kind",)

# Summaries of frames.
KIND: Final = "kind"
KINDS: Final = {
    PROBE: Kind("control", "mapping PROBE {number} of node {source}"),
    LOOP: Kind("control", "mapping LOOP {number} of node {source}"),
    ANSWER: Kind("control", "mapping ANSWER {number}: node {source}, leader {leader}, routes of epoch {epoch}"),
    TABLE: Kind("control", "mapping TABLE of epoch {epoch} by node {author}, part {part} of {parts}"),
    ACK: Kind("control", "mapping ACK of epoch {epoch} by node {author}, part {part} of {parts}"),
    HINT: Kind("control", "mapping HINT {number} of node {source}"),
}

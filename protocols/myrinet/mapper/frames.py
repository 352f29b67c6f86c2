"""The mapper's frames: the one definition of their format, as Scapy layers.

They are Myrinet's packets of the type for mapping (`protocols.myrinet`); what is behind the type is ours. Numbers are in
network byte order. `codec.py` is made from this file.
"""

from __future__ import annotations

from typing import Final

from scapy.fields import ByteEnumField, IntField, ShortField, XIntField
from scapy.layers.l2 import Ether
from scapy.packet import Packet, bind_layers

from protocols.core.frame_kinds import Kind
from protocols.core.frames import Counted
from protocols.myrinet.fields import MAPPING
from protocols.myrinet.frames import Myrinet

PROBE: Final = 1
LOOP: Final = 2
ANSWER: Final = 3
TABLE: Final = 4
ACK: Final = 5
HINT: Final = 6


class Mapping(Counted):
    """The header, 29 bytes."""

    name = "Mapping"
    fields_desc = [  # noqa: RUF012
        # PROBE: whoever gets it answers; its payload is the route that it has taken. LOOP: comes back to who sent it.
        # TABLE: a part of a host's routes; its payload is described in route_tables.py. HINT: the leader should look again.
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

    def mysummary(self) -> str:
        return str(self.sprintf("Mapping %Mapping.kind% %Mapping.number% of node %Mapping.source%"))


bind_layers(Myrinet, Mapping, type=MAPPING)

STACKS: Final[dict[str, tuple[type[Packet], ...]]] = {"frame": (Ether, Myrinet, Mapping)}
LENGTH: Final = "length"
CHECK: Final = "check"
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

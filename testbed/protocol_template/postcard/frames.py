"""The wire format, defined as Scapy layers. After a change, run `python -m protocols.core.codegen postcard`."""

from __future__ import annotations

from typing import Final

from scapy.fields import ByteEnumField, FlagsField, IntField, ShortField, XIntField
from scapy.layers.l2 import Ether
from scapy.packet import Packet, bind_layers

from protocols.core.frame_kinds import Kind
from protocols.core.frames import LengthCheckLayer

ETHERTYPE: Final = 0x88B7

CARD: Final = 1
RECEIPT: Final = 2
NOTICE: Final = 3


class Postcard(LengthCheckLayer):
    """The header of every frame, 26 bytes. A receipt has the number of its card; a notice announces its sender's
    incarnation."""

    name = "Postcard"
    fields_desc = [  # noqa: RUF012
        ByteEnumField("kind", CARD, {CARD: "CARD", RECEIPT: "RECEIPT", NOTICE: "NOTICE"}),
        FlagsField("flags", 0, 8, ["LAST"]),  # the last card of its message
        ShortField("context", 0),
        IntField("sender", 0),  # the sender's incarnation
        IntField("receiver", 0),  # the receiver's, as far as the sender knows it; 0: unknown
        IntField("number", 0),  # of the card, counted for each receiver
        IntField("tag", 0),
        ShortField("length", None),  # bytes of payload
        XIntField("check", None),  # CRC-32 of everything else: a veth has no check sequence
    ]


bind_layers(Ether, Postcard, type=ETHERTYPE)

# For the codec: the layers of each frame, by name; the fields that it fills in; and the fields that identify a flow.
STACKS: Final[dict[str, tuple[type[Packet], ...]]] = {"frame": (Ether, Postcard)}
LENGTH: Final = "length"
CHECK: Final = "check"
FLOW: Final = ("kind",)

# For captures and reports: the summary of a frame, and the field that identifies its message.
KIND: Final = "kind"
KINDS: Final = {
    CARD: Kind("data", "POSTCARD CARD[ {flags}] {number}, tag {tag}, {length} bytes", message=("number",)),
    RECEIPT: Kind("ack", "POSTCARD RECEIPT {number}", message=("number",), back=True),
    NOTICE: Kind("control", "POSTCARD NOTICE of incarnation {sender}"),
}

"""EMP's frames on Myrinet, as Scapy layers: the frames of `protocols.emp.frames` as Myrinet packets of one type.

In the paper EMP runs on Ethernet only. On a network whose switches forward by source routes, a frame needs a route, which
a Myrinet packet carries (`protocols.myrinet`). The fields after the packet type are those of EMP's Ethernet frames.
`codec.py` is generated from this module.
"""

from __future__ import annotations

from typing import Final

from scapy.layers.l2 import Ether
from scapy.packet import Packet, bind_layers

from protocols.emp import frames
from protocols.myrinet.frames import Myrinet

PACKET_TYPE: Final = 0x0006
"""One of the packet types that Myrinet leaves to software (ANSI/VITA 26-1998); AM-II's is 0x0004."""


class EMP(frames.EMP):
    """The frame header, as on Ethernet."""

    name = "EMP"
    payload_guess = []  # noqa: RUF012  without the bindings of the Ethernet frame's header


class EMPMessage(frames.EMPMessage):
    """The message header, as on Ethernet."""

    name = "EMP message"


bind_layers(Myrinet, EMP, type=PACKET_TYPE)
bind_layers(EMP, EMPMessage, type=frames.MESSAGE)

# Input of the code generator, as in `protocols.emp.frames`.
STACKS: Final[dict[str, tuple[type[Packet], ...]]] = {
    "frame": (Ether, Myrinet, EMP),
    "message": (Ether, Myrinet, EMP, EMPMessage),
}
LENGTH: Final = frames.LENGTH
CHECK: Final = frames.CHECK
PREFIX: Final = frames.PREFIX
FLOW: Final = frames.FLOW

# Summaries of frames.
KIND: Final = frames.KIND
KINDS: Final = frames.KINDS

"""EMP's frames on Myrinet, as Scapy layers: those of `protocols.emp.frames`, as Myrinet packets of one type.

The paper has EMP on Ethernet alone. On a network whose switches forward by source routes a frame needs a route, which
Myrinet's packets have (`protocols.myrinet`); everything behind the packet type is as on Ethernet, and means the same.
`codec.py` is made from this file.
"""

from __future__ import annotations

from typing import Final

from scapy.layers.l2 import Ether
from scapy.packet import Packet, bind_layers

from protocols.emp import frames
from protocols.myrinet.frames import Myrinet

PACKET_TYPE: Final = 0x0006
"""One of those that Myrinet leaves to software (ANSI/VITA 26-1998); AM-II's is 0x0004."""


class EMP(frames.EMP):
    """The frame header, as on Ethernet."""

    name = "EMP"
    payload_guess = []  # noqa: RUF012  not what the Ethernet frame's header is bound to


class EMPMessage(frames.EMPMessage):
    """The message header, as on Ethernet."""

    name = "EMP message"


bind_layers(Myrinet, EMP, type=PACKET_TYPE)
bind_layers(EMP, EMPMessage, type=frames.MESSAGE)

# What the codec is made for: as in `protocols.emp.frames`.
STACKS: Final[dict[str, tuple[type[Packet], ...]]] = {
    "frame": (Ether, Myrinet, EMP),
    "message": (Ether, Myrinet, EMP, EMPMessage),
}
LENGTH: Final = frames.LENGTH
CHECK: Final = frames.CHECK
PREFIX: Final = frames.PREFIX
FLOW: Final = frames.FLOW

# For people: frames in the same words.
KIND: Final = frames.KIND
KINDS: Final = frames.KINDS

"""What a testbed must know of a protocol to run programs on its NICs.

A package that has one names it as an entry point, and it is as good as those that come with the testbed:

    [project.entry-points."testbed.protocols"]
    mine = "my_package.protocol:PROTOCOL"

    [project.entry-points."testbed.fields"]    # so that rules can name them, and every flow has fates of its own
    mine = "my_package.codec"                  # a module with ETHERTYPE, FIELDS and FLOW, as `codegen` writes it; ROUTED
                                               # if its header stands behind a source route; BEGINS, with what it begins,
                                               # if others have the same EtherType, as Myrinet's packet types have

    [project.entry-points."testbed.frames"]    # so that 'testbed decode -v' and Wireshark know them
    mine = "my_package.frames"                 # a module with Scapy layers, of which the codec was made
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from protocols.core.apart import Apart
from protocols.core.firmware import Plug
from protocols.core.profile import Profile

if TYPE_CHECKING:
    from protocols.mpi.device import Device


@dataclass(frozen=True, slots=True)
class Configurable:
    """Firmware that has settings. form: a dataclass of them, each with a default, whose `__post_init__` raises ValueError
    for what cannot be. plug: makes NICs with these."""

    form: type[Any]
    plug: Callable[[Any], Plug]


@dataclass(frozen=True, slots=True)
class Protocol:
    """plug: makes its NICs. ethertype: of its frames, from 0x0600 on. device: MPI's device on a node's host library, which
    is what its plug gave as `Agent.host`; called once for each NIC. by_scapy: gives a plug whose NICs have their frames made
    and read by Scapy itself (`protocols.core.scapy_codec`), to show that nothing differs; None: there is none.
    profiles: of hardware on which it has run, so that a simulation can price what its NICs and hosts do. apart:
    for NICs that are shared; None: they are not to be had. routed: its frames carry source routes, by which Myrinet's
    switches forward them. configurable: None: its firmware has no settings that a run could choose."""

    plug: Plug
    ethertype: int
    device: Callable[[Any], Device]
    by_scapy: Callable[[], Plug] | None = None
    profiles: Sequence[Profile] = ()
    apart: Apart | None = None
    routed: bool = False
    configurable: Configurable | None = None

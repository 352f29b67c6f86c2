"""Descriptions of protocols: what the testbed needs to run programs on a protocol's NICs.

A package registers its protocol as an entry point; then it is used like the built-in protocols:

    [project.entry-points."testbed.protocols"]
    mine = "my_package.protocol:PROTOCOL"

    [project.entry-points."testbed.fields"]    # so that rules can name its fields, and every flow has its own fates
    mine = "my_package.codec"                  # a module as `codegen` writes it; see below

    [project.entry-points."testbed.frames"]    # so that 'testbed decode -v' and Wireshark can decode its frames
    mine = "my_package.frames"                 # the module with Scapy layers from which the codec was generated

The codec defines ETHERTYPE, FIELDS and FLOW, and optionally

- ROUTED, if a source route precedes its header;
- BEGINS, the first bytes of its header, if several protocols share the EtherType, as the packet types of Myrinet do;
- ABOVE, the name of the header below, if no field of that header announces this one;
- CHECK and `mended`, so that rules can change a frame and recompute its checksum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from protocols.core.firmware import Plug
from protocols.core.profile import Profile
from protocols.core.split_memory import SplitDriver

if TYPE_CHECKING:
    from protocols.mpi.device import Device


Steer = Callable[[bytes, int], int]
"""Hash that selects a frame's receive queue. Arguments: frame, number of queues."""


Instruction = tuple[int, int, int, int]
"""Instruction of classic BPF: code, jump if true, jump if false, k."""


class Hash(NamedTuple):
    """A NIC's hash that maps frames to receive queues. steer: see `Steer`. program: the hash before the modulus, as
    classic BPF whose offsets count from the end of the Ethernet header."""

    steer: Steer
    program: tuple[Instruction, ...]


Steering = Mapping[str, Hash]
"""Hashes by name, the default one first."""


def select_hash(steering: Steering, name: str) -> Hash | None:
    """Return the hash of a name; for an empty name, the default hash, or None if there are no hashes. Raises KeyError
    for an unknown name."""
    return steering[name] if name else next(iter(steering.values()), None)


@dataclass(frozen=True, slots=True)
class Configurable:
    """Settings of firmware. form: dataclass of the settings, with a default for each, whose `__post_init__` raises
    ValueError for invalid values. plug: makes a plug from an instance of `form`."""

    form: type[Any]
    plug: Callable[[Any], Plug]


@dataclass(frozen=True, slots=True)
class Protocol:
    """A protocol and its properties.

    plug: makes its NICs. ethertype: EtherType of its frames, 0x0600 or greater; 0: it uses the kernel's sockets
    (`uses_kernel_sockets`). device: makes the MPI device of a node from its host library (`Agent.host`); called once
    for each NIC. by_scapy: returns a plug whose NICs have their frames built and parsed by Scapy
    (`protocols.core.scapy_codec`), to verify the codec; None: not available. profiles: costs of the hardware on which
    it has run, for simulations. split_driver: for shared NICs; None: not available. framings: ways to forward its
    frames other than by Ethernet addresses: "source routes" (Myrinet), "cells" (ATM). ethertypes: EtherTypes by
    framing, where they differ from `ethertype`. function_framings: the framings that address each function of a NIC, so
    that a node at such a switch may have several ranks. configurable: settings of its firmware; None: it has none.
    active_messages: its host library implements `protocols.active_messages.am_interface.ActiveMessages`, for workloads
    on active messages and their histories. host_work: the protocol's own kinds of work on host cores, in addition to
    `host_work.STANDARD`. needs_order: its network must keep the order of frames, since a reordered frame may be taken
    for another. steering: hashes that select the receive queue of a frame, by name. The first is the default
    (`Profile.steering`); without hashes, all frames go to queue 0.
    """

    plug: Plug
    ethertype: int
    device: Callable[[Any], Device]
    by_scapy: Callable[[], Plug] | None = None
    profiles: Sequence[Profile] = ()
    split_driver: SplitDriver | None = None
    framings: tuple[str, ...] = ()
    ethertypes: Mapping[str, int] = field(default_factory=dict)
    function_framings: tuple[str, ...] = ()
    configurable: Configurable | None = None
    active_messages: bool = False
    host_work: Sequence[str] = ()
    needs_order: bool = False
    steering: Steering = field(default_factory=dict)

    def ethertype_of(self, framings: Iterable[str]) -> int:
        """Return the EtherType of the protocol's frames. framings: those of the network's switches; empty for
        Ethernet."""
        return next((self.ethertypes[framing] for framing in framings if framing in self.ethertypes), self.ethertype)

    @property
    def uses_kernel_sockets(self) -> bool:
        """Whether the protocol uses the kernel's sockets, without NICs and frames of the testbed."""
        return not self.ethertype

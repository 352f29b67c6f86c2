"""The description of a protocol, by which the testbed runs programs on its NICs.

A package registers its protocol as an entry point; then it is used like the built-in protocols:

    [project.entry-points."testbed.protocols"]
    mine = "my_package.protocol:PROTOCOL"

    [project.entry-points."testbed.fields"]    # so that rules can name its fields, and every flow has its own fates
    mine = "my_package.codec"                  # a module with ETHERTYPE, FIELDS and FLOW, as `codegen` writes it; ROUTED
                                               # if its header follows a source route; BEGINS, its first bytes, if other
                                               # protocols share the EtherType, as Myrinet's packet types do; ABOVE, the
                                               # header below it, if no field of that announces it; CHECK and mended,
                                               # so that rules can change a frame and restore its check

    [project.entry-points."testbed.frames"]    # so that 'testbed decode -v' and Wireshark can decode its frames
    mine = "my_package.frames"                 # the module with Scapy layers from which the codec was generated
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
"""Classic BPF: code, jump if true, jump if false, k."""


class Hash(NamedTuple):
    """A NIC's hash of frames to receive queues. steer: see `Steer`. program: the hash before the modulus, as classic BPF
    that reads a frame from the end of its Ethernet header on."""

    steer: Steer
    program: tuple[Instruction, ...]


Steering = Mapping[str, Hash]
"""Hashes by name, the default one first."""


def select_hash(steering: Steering, name: str) -> Hash | None:
    """Return the hash with a name; for an empty name the default, None without hashes. Raises KeyError for an unknown
    name."""
    return steering[name] if name else next(iter(steering.values()), None)


@dataclass(frozen=True, slots=True)
class Configurable:
    """Settings of firmware. form: their dataclass, with a default for each setting, whose `__post_init__` raises ValueError
    for invalid values. plug: makes a plug from an instance of `form`."""

    form: type[Any]
    plug: Callable[[Any], Plug]


@dataclass(frozen=True, slots=True)
class Protocol:
    """A protocol and its properties.

    plug: makes its NICs. ethertype: ethertype of its frames, 0x0600 or greater; 0: it uses the kernel's sockets
    (`uses_kernel_sockets`). device: makes MPI's device on a node's host library, which is `Agent.host`; called once for
    each NIC. by_scapy: returns a plug whose NICs have their frames built and parsed by Scapy (`protocols.core.scapy_codec`),
    to verify the codec; None: not available. profiles: hardware on which it has run, for simulations with realistic costs.
    split_driver: for shared NICs; None: not available. framings: how its frames can be forwarded other than by Ethernet
    addresses: by "source routes" (Myrinet) or as "cells" (ATM). ethertypes: by framing, if the EtherType is not
    `ethertype`. function_framings: the framings that address each function of a NIC, so that a node at such a switch may
    have several ranks.
    configurable: settings of its firmware; None: it has none. active_messages: its host library implements
    `protocols.active_messages.am_interface.ActiveMessages`, for workloads on active messages and their histories.
    host_work: the protocol's own kinds of work on host cores, in addition to `host_work.STANDARD`.
    needs_order: its network must keep the order of frames, since a reordered frame may be taken for another.
    steering: hashes that select the receive queue of a frame, by name. The first is the default (`Profile.steering`);
    without hashes, all frames go to queue 0.
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
        """Return the EtherType of its frames in a network with these framings of switches (none in Ethernet)."""
        return next((self.ethertypes[framing] for framing in framings if framing in self.ethertypes), self.ethertype)

    @property
    def uses_kernel_sockets(self) -> bool:
        """Whether it uses the kernel's sockets, without NICs and frames of the testbed."""
        return not self.ethertype

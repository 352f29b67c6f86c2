"""The description of a protocol by which a testbed runs programs on its NICs.

A package registers its protocol as an entry point; it is then used like the built-in protocols:

    [project.entry-points."testbed.protocols"]
    mine = "my_package.protocol:PROTOCOL"

    [project.entry-points."testbed.fields"]    # so that rules can name its fields, and every flow has its own fates
    mine = "my_package.codec"                  # a module with ETHERTYPE, FIELDS and FLOW, as `codegen` writes it; ROUTED
                                               # if its header follows a source route; BEGINS, its first bytes, if others
                                               # share the EtherType, as Myrinet's packet types do; ABOVE, the
                                               # header that it stands on, if its frames do not say so;
                                               # CHECK and mended, so that rules can change a frame and leave it valid

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
"""Chooses a frame's receive queue. Arguments: frame, number of queues."""


Instruction = tuple[int, int, int, int]
"""Classic BPF: code, jump if true, jump if false, k."""


class Hash(NamedTuple):
    """A NIC's hash of frames to receive queues. steer: of a frame, and a number of queues. program: the same as classic BPF,
    before the modulus; it sees a frame from behind its Ethernet header on."""

    steer: Steer
    program: tuple[Instruction, ...]


Steering = Mapping[str, Hash]
"""Hashes by name, the default one first."""


def chosen(steering: Steering, name: str) -> Hash | None:
    """Return the hash with that name; empty: the default one, None if there is none. Raises KeyError for another name."""
    return steering[name] if name else next(iter(steering.values()), None)


@dataclass(frozen=True, slots=True)
class Configurable:
    """Firmware that has settings. form: a dataclass of them, each with a default, whose `__post_init__` raises
    ValueError for invalid values. plug: makes a plug of given settings."""

    form: type[Any]
    plug: Callable[[Any], Plug]


@dataclass(frozen=True, slots=True)
class Protocol:
    """A protocol and its properties.

    plug: makes its NICs. ethertype: of its frames, 0x0600 or greater; 0: it uses the kernel's sockets (`is_kernels`).
    device: makes MPI's device on a node's host library, which is `Agent.host`; called once for each NIC. by_scapy:
    returns a plug whose NICs have their frames built and parsed by Scapy (`protocols.core.scapy_codec`), to verify the
    codec; None: not available. profiles: hardware on which it has run, for simulations with realistic costs.
    split_driver: for shared NICs; None: not available. framings: what its frames have for switches that forward by it,
    in place of Ethernet's addresses: "source routes" (Myrinet), "cells" (ATM). ethertypes: by framing, where the EtherType
    is another than `ethertype`. function_framings: those framings that lead to each function of a NIC, so that a node at
    such a switch may have several ranks.
    configurable: None: its firmware has no settings. active_messages: its host library implements
    `protocols.active_messages.am_interface.ActiveMessages`, so that workloads on active messages run, and have histories.
    host_work: the kinds of work on host cores that are its own, beside `host_work.STANDARD`.
    needs_order: its network must keep the order of frames: a reordered one may count as another.
    steering: hashes by name, each of which chooses the receive queue of a frame among a number of queues. The first is the
    default (`Profile.steering`); without any, all frames go to queue 0.
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
        """Return the EtherType of its frames in a network whose switches forward by these framings; usually none."""
        return next((self.ethertypes[framing] for framing in framings if framing in self.ethertypes), self.ethertype)

    @property
    def is_kernels(self) -> bool:
        """Whether it uses the kernel's sockets, without NICs and frames of the testbed."""
        return not self.ethertype

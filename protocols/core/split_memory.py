"""Split drivers: firmware and host library of a protocol in two processes.

They share only the NIC's descriptor memory, the host's pinned memory, and numbers: doorbells in one direction, returned
descriptors in the other. The host is not trusted: firmware reads a descriptor once and uses the copy. Hosts attach and
detach, one after the other in the same slot; the NIC stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

from protocols.core.firmware import Adapter, Bell, Buffer, Firmware, Host
from protocols.core.memory import Allocating, SharedReachable

Ring = Callable[[int, int], None]
"""`Firmware.ring` for the doorbells of one host."""


class Place(NamedTuple):
    """A host's slot at a NIC. of: number of slots. turn: ordinal of this host among those that have had this slot, from
    1."""

    number: int
    of: int
    turn: int


class SharedActions(Protocol):
    """`Actions` of a NIC with several hosts."""

    def fetch(self, pieces: Sequence[memoryview]) -> bytes: ...

    def send(self, frame: Buffer) -> None: ...

    def send_later(self, make: Callable[[], bytes]) -> None: ...

    def store(self, piece: memoryview, data: Buffer) -> None: ...

    def show(self, host: int, index: int) -> None:
        """Do `Actions.show` and `interrupt` for the host in that slot; does nothing for an empty slot."""
        ...


class SharedNic(Protocol):
    """A NIC with hosts that attach and detach."""

    @property
    def adapter(self) -> Adapter:
        """The NIC's current adapter."""
        ...

    @property
    def firmware(self) -> Firmware:
        """The current firmware, which gets frames and deadlines. It keeps its own counters."""
        ...

    def attach(self, now: int, host: int, memory: SharedReachable, descriptors: memoryview) -> Ring:
        """Attach a host to a slot. memory: the host's. descriptors: NIC memory that the host writes, too."""
        ...

    def detach(self, now: int, host: int, incarnation: int) -> None:
        """Detach a host that has ended or is no longer trusted; its memory is not accessed afterwards. incarnation: the
        next one, for a NIC that must restart; its peers are told."""
        ...


@dataclass(frozen=True, slots=True)
class Apart:
    """A protocol's split driver.

    descriptors: bytes of descriptor memory per host. most: maximum doorbells, and returned descriptors, in flight per
    host. nic: makes a NIC without hosts, with up to `hosts` slots. host: makes the host library of a slot, on its
    descriptors.
    """

    descriptors: int
    most: int
    nic: Callable[[Adapter, SharedActions], SharedNic]
    host: Callable[[Adapter, Bell, Allocating, memoryview, Place], Host]
    hosts: int = 1


class OneHost:
    """`Actions` of a NIC that has one host, in slot 0."""

    __slots__ = ("fetch", "interrupt", "send", "send_later", "show", "store")

    def __init__(self, nic: SharedActions) -> None:
        self.fetch = nic.fetch
        self.send = nic.send
        self.send_later = nic.send_later
        self.store = nic.store
        self.show = self.interrupt = partial(nic.show, 0)

"""A protocol whose firmware and host library can be in two processes.

Between them there is nothing but the NIC's descriptor memory, the host's pinned memory, and numbers: of doorbells one way,
of descriptors that the host has back the other. The host is not trusted: its firmware reads a descriptor once, and goes by
what it has read. Hosts come and go, one behind the other in the same place; the NIC stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

from protocols.core.firmware import Adapter, Bell, Buffer, Firmware, Host
from protocols.core.memory import Allocating, SharedReachable

Ring = Callable[[int, int], None]
"""`Firmware.ring`, of one host's doorbells."""


class Place(NamedTuple):
    """A host's place at a NIC. of: how many there are. turn: which host it is that has had this place, from 1 on."""

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
        """`Actions.show`, and `interrupt`, to the host of that place; nothing where there is none."""
        ...


class SharedNic(Protocol):
    """A NIC for hosts that come and go."""

    @property
    def adapter(self) -> Adapter:
        """As it is now."""
        ...

    @property
    def firmware(self) -> Firmware:
        """What frames and deadlines are for, now. Its counts are its own."""
        ...

    def attach(self, now: int, host: int, memory: SharedReachable, descriptors: memoryview) -> Ring:
        """A host begins in that place. memory: of its; descriptors: memory of the NIC's that it writes, too."""
        ...

    def detach(self, now: int, host: int, incarnation: int) -> None:
        """That host is gone, or is not trusted any more: nothing of its memory is looked at from here on. incarnation: for
        a NIC that has to begin anew; its peers come to know."""
        ...


@dataclass(frozen=True, slots=True)
class Apart:
    """descriptors: bytes of a host's. most: doorbells, and descriptors to be had back, that it has under way. nic: a NIC
    without hosts; it has up to `hosts` places for them. host: the host library of a place, on its descriptors."""

    descriptors: int
    most: int
    nic: Callable[[Adapter, SharedActions], SharedNic]
    host: Callable[[Adapter, Bell, Allocating, memoryview, Place], Host]
    hosts: int = 1


class OneHost:
    """`Actions` of a NIC that has one host, in place 0."""

    __slots__ = ("fetch", "interrupt", "send", "send_later", "show", "store")

    def __init__(self, nic: SharedActions) -> None:
        self.fetch = nic.fetch
        self.send = nic.send
        self.send_later = nic.send_later
        self.store = nic.store
        self.show = self.interrupt = partial(nic.show, 0)

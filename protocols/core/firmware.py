"""The interfaces of a NIC's firmware, of the host library above it, and of the surroundings in which both run.

The firmware is a state machine without sockets, clock or threads. Three things happen to it: a frame comes, the host
rings its doorbell, its deadline passes. It answers with actions on its `Nic`. A simulation makes each action reserve what
it uses (processor, DMA engine, bus) and happen then; in namespaces each is done at once, in place. The firmware does not
know which.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

Buffer = bytes | bytearray | memoryview

FIRST: Final = 1
"""The incarnation of a NIC that has not started again, where incarnations are counted."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """Who a NIC is. number: its node's. addresses: the MAC of every node's NIC, by node number. mtu: bytes behind the
    Ethernet header. incarnation: greater (as a serial number of 32 bits, not 0) whenever the NIC starts again. All NICs of
    a cluster count theirs from FIRST on, or none is ever FIRST: they are times, say. pages_apart: pages that follow each
    other in a buffer do not in the host's memory, and each is a DMA transfer of its own. routed: the network goes by the
    source routes of frames. ordered: no link of the cluster lets frames overtake each other."""

    number: int
    addresses: Sequence[bytes]
    mtu: int = 1500
    incarnation: int = FIRST
    pages_apart: bool = False
    routed: bool = False
    ordered: bool = True

    @property
    def address(self) -> bytes:
        return self.addresses[self.number]

    def of_incarnation(self, incarnation: int) -> Adapter:
        """The same NIC, started again."""
        routed, ordered = self.routed, self.ordered
        return Adapter(self.number, self.addresses, self.mtu, incarnation, self.pages_apart, routed, ordered)


class Actions(Protocol):
    """What firmware acts on."""

    def fetch(self, pieces: Sequence[memoryview]) -> bytes:
        """Get bytes from host memory by DMA, one transfer for each piece. What is sent next has waited for it."""
        ...

    def send(self, frame: Buffer) -> None:
        """Put a frame on the wire, as it is, after what was sent before. The buffer is not touched any more."""
        ...

    def send_later(self, make: Callable[[], bytes]) -> None:
        """Put a frame on the wire that nobody is in a hurry for: what the host does at once about what it is shown may go
        before it, and before it is made. Frames sent so keep their order among themselves."""
        ...

    def store(self, piece: memoryview, data: Buffer) -> None:
        """Put bytes into host memory by DMA, as many as the piece is long."""
        ...

    def show(self, index: int) -> None:
        """Let the host see that it has a descriptor back, after everything that was stored before."""
        ...

    def interrupt(self, index: int) -> None:
        """The same for the host's kernel, which is interrupted for it: whatever its program does, it sees it."""
        ...


class Bell(Protocol):
    """What a host library acts on."""

    def doorbell(self, index: int, written: int, translated: int) -> None:
        """The host has written a descriptor: tell the firmware (`Firmware.ring`). written: bytes by programmed output.
        translated: pages whose physical address the kernel was asked for."""
        ...


class Nic(Actions, Bell, Protocol):
    """What both act on, where they are in one process."""


class Firmware(Protocol):
    """A NIC's firmware. Times never go backwards."""

    @property
    def deadline(self) -> int | None:
        """When it wants `tick` to be called, or None."""
        ...

    def receive(self, now: int, frame: bytes) -> None:
        """A frame has come, whatever it is."""
        ...

    def ring(self, now: int, index: int) -> None:
        """The host has given a descriptor to the NIC."""
        ...

    def tick(self, now: int) -> None:
        """The deadline has come."""
        ...

    def counted(self) -> Mapping[str, int]:
        """Its counters, by name."""
        ...

    def waiting(self) -> list[str]:
        """A sentence for everything that it waits for: what a run that makes no progress is shown."""
        ...


class Host(Protocol):
    """The host library's side of a NIC."""

    def completed(self, index: int) -> None:
        """The NIC has given a descriptor back, and the host may see it now."""
        ...

    def waiting(self) -> list[str]:
        """A sentence for everything that the host waits for."""
        ...


@dataclass(frozen=True, slots=True)
class Agent:
    """One NIC: its firmware, and the host library that the node's program uses. What the library offers is the
    protocol's own."""

    firmware: Firmware
    host: Host


Plug = Callable[[Adapter, Nic], Agent]
"""What a protocol gives: an agent for one adapter, on these surroundings."""

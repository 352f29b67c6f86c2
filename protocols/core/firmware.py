"""The interfaces of a NIC's firmware, of the host library above it, and of the environment in which both run.

The firmware is a state machine without sockets, clock or threads. It has three inputs: a frame arrives, the host rings
its doorbell, its deadline passes. It answers with actions on its `Nic`. In a simulation each action reserves its
resources (processor, DMA engine, bus) and takes effect in time; in namespaces each takes effect at once. The firmware
does not know which of the two it runs in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

Buffer = bytes | bytearray | memoryview

FIRST: Final = 1
"""Incarnation of a NIC that has not restarted, where incarnations are counted."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """A NIC's identity and the properties of its network.

    number: its node's number. addresses: the MAC of every node's NIC, by node number. mtu: maximum bytes after the
    Ethernet header. incarnation: increases (as a 32-bit serial number other than 0) with every restart of the NIC;
    either all NICs of a cluster count from FIRST, or none is ever FIRST (if incarnations are times, for example).
    pages_apart: consecutive pages of a buffer are not contiguous in host memory, so each page is a DMA transfer of its
    own. routed: the network forwards by the source routes of frames. ordered: no link of the cluster reorders frames.
    hosts: by number, the number of the first function of the same NIC; empty: each NIC has one. A frame from one function
    to another of the same NIC is looped back there. is_restarted: the NIC has had another incarnation since the cluster
    began to communicate, from which its peers may still expect something.
    """

    number: int
    addresses: Sequence[bytes]
    mtu: int = 1500
    incarnation: int = FIRST
    pages_apart: bool = False
    routed: bool = False
    ordered: bool = True
    hosts: Sequence[int] = ()
    is_restarted: bool = False

    @property
    def address(self) -> bytes:
        return self.addresses[self.number]

    def of_incarnation(self, incarnation: int, *, is_restarted: bool = False) -> Adapter:
        """Return the adapter of this NIC with another incarnation. is_restarted: it is not the NIC's first one."""
        return replace(self, incarnation=incarnation, is_restarted=is_restarted or self.is_restarted)

    def host_of(self, number: int) -> int:
        """Return the number of the first function of a NIC, of any of its functions' numbers."""
        return self.hosts[number] if self.hosts else number

    @property
    def siblings(self) -> list[int]:
        """Numbers of the other functions of this NIC."""
        own = self.host_of(self.number)
        return [number for number, host in enumerate(self.hosts) if host == own and number != self.number]


class FirmwareActions(Protocol):
    """Actions available to firmware."""

    def dma_read(self, segments: Sequence[memoryview]) -> bytes:
        """Read bytes from host memory by DMA, with one transfer per segment. Frames sent afterwards wait for it."""
        ...

    def send(self, frame: Buffer) -> bool | None:
        """Put a frame on the wire unchanged, after the frames sent before. The buffer must not be modified
        afterwards. Returns True if the frame waits in the NIC: `when_sent` then reports when it has left."""
        ...

    def when_sent(self, then: Callable[[int], object]) -> None:
        """Call `then` with the time at which the last frame of `send` has left the NIC, after the firmware has
        returned. Only for a frame that waits."""
        ...

    def send_later(self, make: Callable[[], bytes]) -> None:
        """Put a low-priority frame on the wire. The host's immediate reactions to completions may be sent before it, and
        before `make` is called. Low-priority frames keep their order among themselves."""
        ...

    def dma_write(self, target: memoryview, data: Buffer) -> None:
        """Write bytes into host memory by DMA; data is as long as the target."""
        ...

    def post_completion(self, index: int) -> object:
        """Make a returned descriptor visible to the host, after all earlier DMA writes."""
        ...

    def interrupt(self, index: int) -> object:
        """Make a returned descriptor visible to the host's kernel by an interrupt, whatever the program is doing."""
        ...


class HostActions(Protocol):
    """Actions available to a host library."""

    def ring_doorbell(self, index: int, written: int, translated: int) -> None:
        """Notify the firmware that the host has written a descriptor (`Firmware.on_doorbell`). written: bytes written by
        programmed output. translated: pages whose physical address the kernel looked up."""
        ...


class Nic(FirmwareActions, HostActions, Protocol):
    """Actions of both firmware and host library, when they share a process."""


class Firmware(Protocol):
    """A NIC's firmware. The times passed to it never decrease."""

    @property
    def deadline(self) -> int | None:
        """Time at which `on_timer` is due, or None."""
        ...

    def receive(self, now: int, frame: bytes) -> None:
        """Handle a frame from the wire, valid or not."""
        ...

    def on_doorbell(self, now: int, index: int) -> None:
        """Handle a doorbell: the host has passed a descriptor to the NIC."""
        ...

    def on_timer(self, now: int) -> None:
        """Handle the deadline, which has passed."""
        ...

    def counted(self) -> Mapping[str, int]:
        """Return its counters, by name."""
        ...

    def waiting(self) -> list[str]:
        """Return a sentence for everything that it waits for; shown for a run that makes no progress."""
        ...


class Host(Protocol):
    """The host library's interface to its NIC."""

    def completed(self, index: int) -> bool | None:
        """Handle a descriptor that the NIC has returned. False: the program made no progress by it (a query was
        answered); a run in which nothing else is returned is stuck."""
        ...

    def waiting(self) -> list[str]:
        """Return a sentence for everything that the host waits for."""
        ...


@dataclass(frozen=True, slots=True)
class Agent:
    """One NIC: its firmware, and the host library for the node's program. The library's API is specific to the
    protocol."""

    firmware: Firmware
    host: Host


Plug = Callable[[Adapter, Nic], Agent]
"""A protocol's factory of agents, called with an adapter and the environment's NIC."""

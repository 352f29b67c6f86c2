"""The interfaces of a NIC's firmware, of the host library above it, and of the environment in which both run.

The firmware is a state machine without sockets, clock or threads. It has three inputs: a frame arrives, the host rings
the doorbell, or the deadline passes. It responds with actions on its `Nic`. In a simulation, each action reserves
resources (processor, DMA engine, bus) and takes effect when they have done their work; in namespaces, each takes effect
at once. The firmware does not depend on the environment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

Buffer = bytes | bytearray | memoryview

FIRST: Final = 1
"""Incarnation of a NIC that has not restarted, if incarnations are counted (and not times)."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """A NIC's identity and the properties of its network.

    number: its node's number. addresses: the MAC of every node's NIC, by node number. mtu: maximum bytes after the
    Ethernet header. incarnation: increases (as a 32-bit serial number other than 0) with every restart of the NIC;
    either all NICs of a cluster count from FIRST, or none is ever FIRST (if incarnations are times, for example).
    pages_apart: consecutive pages of a buffer are not contiguous in host memory, so each page is a DMA transfer of its
    own. routed: the network forwards by the source routes of frames. ordered: no link of the cluster reorders frames.
    hosts: for each function (as in SR-IOV), the number of the first function of its NIC; empty: each NIC has one
    function. The NIC loops back frames between its functions. names: the name of the node of each function; empty:
    unknown. is_restarted: the NIC has had another incarnation since the cluster began to communicate; peers may still
    address that one.
    """

    number: int
    addresses: Sequence[bytes]
    mtu: int = 1500
    incarnation: int = FIRST
    pages_apart: bool = False
    routed: bool = False
    ordered: bool = True
    hosts: Sequence[int] = ()
    names: Sequence[str] = ()
    is_restarted: bool = False

    @property
    def address(self) -> bytes:
        return self.addresses[self.number]

    def with_incarnation(self, incarnation: int, *, is_restarted: bool = False) -> Adapter:
        """Return a copy with another incarnation. is_restarted: whether it follows an earlier one; a NIC that has
        restarted before stays marked as restarted."""
        return replace(self, incarnation=incarnation, is_restarted=is_restarted or self.is_restarted)

    def host_of(self, number: int) -> int:
        """Return the number of the first function of the NIC that has function `number`."""
        return self.hosts[number] if self.hosts else number

    @property
    def siblings(self) -> list[int]:
        """Numbers of the other functions of this NIC."""
        own = self.host_of(self.number)
        return [number for number, host in enumerate(self.hosts) if host == own and number != self.number]


class FirmwareActions(Protocol):
    """Actions available to firmware."""

    __slots__ = ()

    def dma_read(self, segments: Sequence[memoryview]) -> bytes:
        """Read bytes from host memory by DMA, with one transfer per segment. Frames sent afterwards wait for the
        transfers."""
        ...

    def send(self, frame: Buffer) -> bool | None:
        """Put a frame on the wire unchanged, after the frames sent before. The buffer must not be modified
        afterwards. Returns True if the frame waits in the NIC: then `when_sent` reports its departure."""
        ...

    def when_sent(self, then: Callable[[int], object]) -> None:
        """Call `then` with the time at which the last frame passed to `send` leaves the NIC, after the firmware has
        returned. Only for a frame that waits in the NIC."""
        ...

    def send_later(self, make: Callable[[], bytes]) -> None:
        """Put a low-priority frame on the wire. make: builds it. Frames that the host sends in immediate reaction to
        completions may be sent before it, and before `make` is called. Low-priority frames keep their order."""
        ...

    def dma_write(self, target: memoryview, data: Buffer) -> None:
        """Write bytes to host memory by DMA; data is as long as the target."""
        ...

    def post_completion(self, index: int) -> None:
        """Make a returned descriptor visible to the host, after all earlier DMA writes."""
        ...

    def interrupt(self, index: int) -> None:
        """Make a returned descriptor visible to the host's kernel by an interrupt, which also interrupts a running
        program."""
        ...


class HostActions(Protocol):
    """Actions available to a host library."""

    __slots__ = ()

    def ring_doorbell(self, index: int, written: int, translated: int) -> None:
        """Notify the firmware that the host has written a descriptor (`Firmware.on_doorbell`). written: bytes written
        by programmed output. translated: pages whose physical address the kernel looked up."""
        ...


class Nic(FirmwareActions, HostActions, Protocol):
    """Actions of a firmware and a host library that share a process."""

    __slots__ = ()


class Firmware(Protocol):
    """A NIC's firmware. The times passed to it never decrease."""

    __slots__ = ()

    @property
    def deadline(self) -> int | None:
        """Time in ns at which `on_timer` is due, or None."""
        ...

    def receive(self, now: int, frame: bytes) -> None:
        """Handle a frame from the wire, valid or not."""
        ...

    def on_doorbell(self, now: int, index: int) -> None:
        """Handle a doorbell: the host has passed a descriptor to the NIC."""
        ...

    def on_timer(self, now: int) -> None:
        """Handle the deadline, which has passed: postpone it, or clear it."""
        ...

    def counter_values(self) -> Mapping[str, int]:
        """Return the firmware's counters, by name."""
        ...

    def pending_work(self) -> list[str]:
        """Return a sentence for each event that the firmware waits for; reports of stalls show them."""
        ...


class Host(Protocol):
    """The host library's interface to its NIC."""

    __slots__ = ()

    def on_completion(self, index: int) -> bool | None:
        """Handle a descriptor that the NIC has returned. Returns False if the program makes no progress by it (an
        answered query, for example): a run in which no other descriptors are returned is stalled."""
        ...

    def pending_work(self) -> list[str]:
        """Return a sentence for each event that the host waits for."""
        ...


@dataclass(frozen=True, slots=True)
class Agent:
    """One NIC: its firmware, and the host library of the node's program. The library's API is specific to the protocol.

    has_input_fifo: received frames stay in the NIC until the host reads them, and are lost if there is no room. A live
    NIC with such a FIFO receives all frames that have arrived before the program continues.
    """

    firmware: Firmware
    host: Host
    has_input_fifo: bool = False


Plug = Callable[[Adapter, Nic], Agent]
"""A protocol's factory of agents, called with an adapter and the environment's NIC."""

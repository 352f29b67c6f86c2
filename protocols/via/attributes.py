"""Attributes and reports of the VI Provider Library: of NICs, VIs, memory, connection requests and errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from protocols.via.vip_descriptors import Segment
from protocols.via.vipl_names import AsyncError, Reliability, Resource, ViState

if TYPE_CHECKING:
    from protocols.via.virtual_interface import Vi
    from protocols.via.work_queues import CompletionQueue


class NicAttributes(NamedTuple):
    """Properties of a NIC and its provider (VIP_NIC_ATTRIBUTES). mtu: bytes behind the Ethernet header. max_queue:
    descriptors that all queues have together. rdma_reads: the levels at which RDMA Reads are possible."""

    name: str
    address: bytes
    mtu: int
    max_vis: int
    max_queue: int
    max_segments: int
    max_transfer: int
    max_discriminator: int
    reliability: Reliability
    rdma_reads: tuple[Reliability, ...]


class ViAttributes(NamedTuple):
    """Attributes of a VI (VIP_VI_ATTRIBUTES). rdma_write, rdma_read: peers may write, read by RDMA through it."""

    reliability: Reliability
    max_transfer: int
    ptag: int
    rdma_write: bool
    rdma_read: bool


class ViQuery(NamedTuple):
    """Answer of VipQueryVi about a VI. sends_empty, receives_empty: its queues have no descriptor, done or not."""

    state: ViState
    attributes: ViAttributes
    sends_empty: bool
    receives_empty: bool


class MemoryAttributes(NamedTuple):
    """Attributes of registered memory (VIP_MEM_ATTRIBUTES). rdma_write, rdma_read: peers may write, read it by RDMA."""

    ptag: int
    rdma_write: bool
    rdma_read: bool


class Memory(NamedTuple):
    """Registered memory (VIP_MEM_HANDLE). address: where it begins for descriptors."""

    handle: int
    address: int
    size: int
    ptag: int

    def segment(self, offset: int = 0, length: int | None = None) -> Segment:
        """Return a data segment of this memory. Raises ValueError outside of it."""
        size = self.size - offset if length is None else length
        if not 0 <= offset <= offset + size <= self.size:
            raise ValueError(f"a segment must lie in the {self.size} bytes of its memory, got {size} at {offset}")
        return Segment(self.address + offset, self.handle, size)


class ConnectionRequest(NamedTuple):
    """A request that VipConnectWait has returned (VIP_CONN_HANDLE). number: for `accept` and `reject`. node, reliability,
    max_transfer: of the VI that asks. is_peer: it asks for a peer's request with the same discriminator, and is not
    accepted."""

    number: int
    node: int
    reliability: Reliability
    max_transfer: int
    discriminator: bytes
    is_peer: bool


class ErrorReport(NamedTuple):
    """An asynchronous error (VIP_ERROR_DESCRIPTOR). resource: what it is about. vi, cq: which one, if any."""

    error: AsyncError
    resource: Resource
    vi: Vi | None = None
    cq: CompletionQueue | None = None

"""Attributes in the VI Provider Library: of NICs, VIs, memory and connection requests."""

from __future__ import annotations

from typing import NamedTuple

from protocols.via.vipl_names import Reliability, ViState


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

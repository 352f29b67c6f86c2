"""Attributes in the VI Provider Library: of NICs, VIs, memory and connection requests."""

from __future__ import annotations

from typing import NamedTuple

from protocols.via.vipl_names import Reliability, ViState


class NicAttributes(NamedTuple):
    """Properties of a NIC and its provider (VIP_NIC_ATTRIBUTES). mtu: bytes after the Ethernet header. max_queue:
    descriptors of all queues together. rdma_reads: reliability levels that support RDMA Read."""

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
    """Attributes of a VI (VIP_VI_ATTRIBUTES). max_transfer: maximum bytes of a message. rdma_write, rdma_read: whether
    peers may access memory by RDMA through the VI."""

    reliability: Reliability
    max_transfer: int
    ptag: int
    rdma_write: bool
    rdma_read: bool


class ViQuery(NamedTuple):
    """Result of VipQueryVi. sends_empty, receives_empty: whether the queue has no descriptors, neither posted nor
    completed."""

    state: ViState
    attributes: ViAttributes
    sends_empty: bool
    receives_empty: bool


class MemoryAttributes(NamedTuple):
    """Attributes of registered memory (VIP_MEM_ATTRIBUTES). rdma_write, rdma_read: whether peers may access the memory
    by RDMA."""

    ptag: int
    rdma_write: bool
    rdma_read: bool


class ConnectionRequest(NamedTuple):
    """A connection request, as VipConnectWait returns it (VIP_CONN_HANDLE). number: handle for `accept` and `reject`.
    node, reliability, max_transfer: node, reliability and maximum transfer size of the requesting VI. is_peer: a
    peer-to-peer request, which is matched by a peer request with the same discriminator and cannot be accepted."""

    number: int
    node: int
    reliability: Reliability
    max_transfer: int
    discriminator: bytes
    is_peer: bool

"""Numbers and names of the VIA specification 1.0, without the prefix VIP (appendix A, the VI Provider Library's header).

Numeric values of descriptor fields are those of the published header `vipl.h`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

# A descriptor's control field.
OP_SENDRECV: Final = 0
OP_RDMAWRITE: Final = 1
OP_RDMAREAD: Final = 2
OP_MASK: Final = 3
IMMEDIATE: Final = 4
QFENCE: Final = 8


class Done:
    """Bits of a descriptor's status field. Plain numbers, since each use of an enumeration's member looks the member up."""

    DONE: Final = 0x1
    FORMAT_ERROR: Final = 0x2
    PROTECTION_ERROR: Final = 0x4
    LENGTH_ERROR: Final = 0x8
    PARTIAL_ERROR: Final = 0x10
    DESC_FLUSHED_ERROR: Final = 0x20
    TRANSPORT_ERROR: Final = 0x40
    RDMA_PROT_ERROR: Final = 0x80
    REMOTE_DESC_ERROR: Final = 0x100
    COMPLETED_RECEIVE: Final = 0x10000
    COMPLETED_RDMA_WRITE: Final = 0x20000
    COMPLETED_REMOTE_RDMA_WRITE: Final = 0x30000
    COMPLETED_RDMA_READ: Final = 0x40000
    IMMEDIATE: Final = 0x80000


STATUS_ERRORS: Final = 0x1FE
"""The error bits of a status field."""

UNRELIABLE: Final = 1
"""A plain number for code that runs for each frame, see `Done`."""


class Reliability(IntEnum):
    """Reliability levels (section 2.5)."""

    UNRELIABLE = UNRELIABLE
    RELIABLE_DELIVERY = 2
    RELIABLE_RECEPTION = 4


class ViState(IntEnum):
    """States of a VI (section 2.2)."""

    IDLE = 0
    CONNECTED = 1
    CONNECT_PENDING = 2
    ERROR = 3


class Result(IntEnum):
    """Return codes of the VI Provider Library."""

    SUCCESS = 0
    NOT_DONE = 1
    INVALID_PARAMETER = 2
    ERROR_RESOURCE = 3
    TIMEOUT = 4
    REJECT = 5
    INVALID_RELIABILITY_LEVEL = 6
    INVALID_MTU = 7
    INVALID_QOS = 8
    INVALID_PTAG = 9
    INVALID_RDMAREAD = 10
    DESCRIPTOR_ERROR = 11
    INVALID_STATE = 12
    ERROR_NAMESERVICE = 13
    NO_MATCH = 14
    NOT_REACHABLE = 15
    ERROR_NOT_SUPPORTED = 16


class AsyncError(IntEnum):
    """Codes of asynchronous errors (VipErrorCallback)."""

    POST_DESC = 1
    CONN_LOST = 2
    RECVQ_EMPTY = 3
    VI_OVERRUN = 4
    RDMAW_PROT = 5
    RDMAW_DATA = 6
    RDMAW_ABORT = 7
    RDMAR_PROT = 8
    COMP_PROT = 9
    RDMA_TRANSPORT = 10
    CATASTROPHIC = 11


class Resource(IntEnum):
    """Kinds of resources that asynchronous errors concern."""

    NIC = 0
    VI = 1
    CQ = 2
    DESCRIPTOR = 3


class ViaError(Exception):
    """A library call failed. result: the specification's return code."""

    def __init__(self, result: Result, message: str) -> None:
        self.result = result
        super().__init__(f"{message} (VIP_{result.name})")

"""ATM cells at the user-network interface (ITU-T I.361), and the circuits of a cluster.

A header has 4 bits of generic flow control, VPI (8 bits), VCI (16), payload type (3), cell loss priority (1), and the
header error control: a CRC-8 of the first four bytes with polynomial x^8 + x^2 + x + 1, to which 01010101 is added
modulo 2 (I.432.1, 4.3.2).

Permanent circuits connect each pair of nodes, one for each direction. A circuit's VPI and VCI follow from the numbers
of its nodes, so that neither a NIC nor a switch needs a table of all pairs. VCIs below 32 are left to signalling and
maintenance.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from protocols.core.firmware import Buffer

ETHERNET: Final = 14
"""Bytes of the Ethernet header in front of the first cell."""
CELL: Final = 53
"""Bytes of a cell, of which HEADER are header and PAYLOAD payload."""
HEADER: Final = 5
PAYLOAD: Final = 48
FIRST_VCI: Final = 32
"""Lowest VCI of a circuit between nodes."""
MAX_NODES: Final = 4094
"""Maximum nodes of a cluster, so that 8 bits of VPI and 16 of VCI suffice for circuits between all of them."""

_VCIS: Final = (1 << 16) - FIRST_VCI
_COSET: Final = 0x55


def _times_x8(byte: int) -> int:
    """Multiply a polynomial by x^8, modulo the polynomial of the header error control."""
    for _ in range(8):
        byte = byte << 1 ^ (0x107 if byte & 0x80 else 0)
    return byte


_CRC_TABLE: Final = bytes(_times_x8(byte) for byte in range(256))


class Circuit(NamedTuple):
    """A virtual channel of a virtual path."""

    vpi: int
    vci: int


def hec(header: Buffer) -> int:
    """Compute the header error control of a header's first four bytes."""
    crc = 0
    for byte in header[:4]:
        crc = _CRC_TABLE[crc ^ byte]
    return crc ^ _COSET


def header(circuit: Circuit, payload_type: int = 0, loss_priority: int = 0) -> bytes:
    """Build a cell's header, 5 bytes. payload_type: 0 to 7. loss_priority: 1 for a cell that is discarded first."""
    number = circuit.vpi << 20 | circuit.vci << 4 | payload_type << 1 | loss_priority
    first = number.to_bytes(4, "big")
    return first + bytes((hec(first),))


def is_intact(cell: Buffer) -> bool:
    """Whether a cell is complete and its header error control is correct."""
    return len(cell) == CELL and cell[4] == hec(cell)


def circuit_of(cell: Buffer) -> Circuit:
    """Return a cell's circuit."""
    return Circuit((cell[0] & 0x0F) << 4 | cell[1] >> 4, (cell[1] & 0x0F) << 12 | cell[2] << 4 | cell[3] >> 4)


def circuit(source: int, destination: int, node_count: int) -> Circuit:
    """Return the circuit from one node to another, by their numbers. node_count: number of nodes, at most
    `MAX_NODES`."""
    vpi, rest = divmod(source * node_count + destination, _VCIS)
    return Circuit(vpi, FIRST_VCI + rest)


def nodes_of(circuit: Circuit, node_count: int) -> tuple[int, int] | None:
    """Return the numbers of a circuit's source and destination; None if it connects no nodes. node_count: number of
    nodes."""
    if circuit.vci < FIRST_VCI:
        return None
    source, destination = divmod(circuit.vpi * _VCIS + circuit.vci - FIRST_VCI, node_count)
    return (source, destination) if source < node_count else None


def cells_of(frame: bytes) -> Iterator[bytes]:
    """Yield each cell of a frame as a frame of its own; the last cell may be truncated."""
    if len(frame) <= ETHERNET + CELL:
        yield frame
        return
    head = frame[:ETHERNET]
    for begin in range(ETHERNET, len(frame), CELL):
        yield head + frame[begin : begin + CELL]

"""VIA's descriptors in memory, byte by byte, as in the specification's section 6 and in `vipl.h`: little-endian."""

from __future__ import annotations

import struct

from protocols.via.vip_descriptors import SIZE, Segment, Slots
from protocols.via.vipl_names import IMMEDIATE, OP_RDMAWRITE, OP_SENDRECV, QFENCE, Done
from protocols.via.virtual_interface import Descriptor
from tests.unit.protocols.via_nics import NicPair, post_receive

CONTROL_SIZE, SEGMENT_SIZE = 32, 16


def control(segments: int, operation: int, immediate: int = 0, length: int = 0, status: int = 0) -> bytes:
    """Return a control segment: Next and its handle (unused here), SegCount, Control, Reserved, ImmediateData, Length,
    Status."""
    return struct.pack("<Q", 0) + struct.pack("<IHHIIII", 0, segments, operation, 0, immediate, length, status)


def test_an_rdma_write_has_control_address_and_data_segments_in_this_order() -> None:
    slots = Slots(2)
    data = (Segment(0x1_0000_0010, 3, 5), Segment(0x1_0000_0020, 4, 7))
    written = slots.write(1, OP_RDMAWRITE | IMMEDIATE | QFENCE, 0xA1B2C3D4, 12, Segment(0x2_0000_0040, 9), data)
    expected = (
        "0000000000000000 00000000 0300 0d00 00000000 d4c3b2a1 0c000000 00000000"  # control
        "4000000002000000 09000000 00000000"  # address: Data, Handle, Reserved
        "1000000001000000 03000000 05000000"  # data: Data, Handle, Length
        "2000000001000000 04000000 07000000"
    )
    assert written == CONTROL_SIZE + 3 * SEGMENT_SIZE
    assert bytes(slots.memory[SIZE : SIZE + written]) == bytes.fromhex(expected)


def test_descriptors_begin_at_multiples_of_64_bytes() -> None:
    assert SIZE % 64 == 0
    assert len(Slots(3).memory) == 3 * SIZE


def test_a_completed_receive_has_immediate_data_length_and_status_in_its_control_segment() -> None:
    pair = NicPair()
    memory, slot = pair.nics[1]._slots.memory, pair.nics[1]._free[-1]
    post_receive(pair)
    pair.transfer(Descriptor(OP_SENDRECV | IMMEDIATE, (pair.memory[0].segment(0, 8),), immediate=77))
    status = Done.DONE | Done.COMPLETED_RECEIVE | Done.IMMEDIATE
    assert status == 0x90001
    assert bytes(memory[slot * SIZE : slot * SIZE + CONTROL_SIZE]) == control(1, OP_SENDRECV, 77, 8, status)


def test_status_bits_are_those_of_the_published_header() -> None:
    errors = {
        "FORMAT_ERROR": 0x2, "PROTECTION_ERROR": 0x4, "LENGTH_ERROR": 0x8, "PARTIAL_ERROR": 0x10,
        "DESC_FLUSHED_ERROR": 0x20, "TRANSPORT_ERROR": 0x40, "RDMA_PROT_ERROR": 0x80, "REMOTE_DESC_ERROR": 0x100,
    }  # fmt: skip
    operations = {
        "COMPLETED_RECEIVE": 0x10000, "COMPLETED_RDMA_WRITE": 0x20000, "COMPLETED_REMOTE_RDMA_WRITE": 0x30000,
        "COMPLETED_RDMA_READ": 0x40000, "IMMEDIATE": 0x80000,
    }  # fmt: skip
    assert {name: getattr(Done, name) for name in (*errors, *operations)} == {**errors, **operations}

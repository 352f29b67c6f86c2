"""Open-MX's frames byte for byte, by the layouts of its `common/omx_wire.h`, and the hash that finds their endpoint."""

from __future__ import annotations

import zlib

import pytest

from protocols.openmx import codec
from protocols.openmx.mx_names import PULL_MAGIC
from protocols.openmx.steering import endpoint_queue, myri10ge_queue

DST, SRC = bytes.fromhex("020000000002"), bytes.fromhex("020000000001")
HEAD = DST.hex() + SRC.hex() + "86df" + "0003"
"""Ethernet's header, and the sender's index."""

# Fields as in the source, in its order, between the head and the data.
VECTORS = {
    "tiny": (
        codec.pack_tiny(DST, SRC, 3, 0x11, 0x22, 0x4005, 0x8006, 0x0102030405060708, 0xA1A2A3A4, b"tiny"),
        "25 11 22 00 0004 0000  4005 8006 01020304  05060708 a1a2a3a4", b"tiny", 24,
    ),
    "small": (
        codec.pack_small(DST, SRC, 3, 0x11, 0x22, 0x4005, 0x8006, 0x0102030405060708, 0xA1A2A3A4, b"small" * 9),
        "26 11 22 00 002d 0000  4005 8006 01020304  05060708 a1a2a3a4", b"small" * 9, 24,
    ),
    "medium": (
        codec.pack_medium(DST, SRC, 3, 0x11, 0x22, 0x1234, 0x4005, 0x8006, 0x0102030405060708, 0xA1A2A3A4, 7, b"part"),
        "27 11 22 00 00001234  4005 8006 01020304  05060708 a1a2a3a4  0004 07 00 0000 0000", b"part", 32,
    ),
    "rndv": (
        codec.pack_rndv(
            DST, SRC, 3, 0x11, 0x22, 0x4005, 0x8006, 0x0102030405060708, 0xA1A2A3A4, 0x00100000, 0x33, 0x44, 0x0055
        ),
        "28 11 22 00 0000 0000  4005 8006 01020304  05060708 a1a2a3a4  00100000 33 44 0055", b"", 32,
    ),
    "pull": (
        codec.pack_pull(
            DST, SRC, 3, 0x11, 0x22, 0xA1A2A3A4, 0x00100000, 0x33, 0x44, 0x55, 0x0A0B0C0D, 0x22 ^ PULL_MAGIC, 0x66,
            0xB000, 0x20,
        ),
        "29 11 22 00 a1a2a3a4  00100000 00000033  44 000000 00000055  0a0b0c0d 210719a2  00000066 0000b000  00000020",
        b"", 44,
    ),
    "pull_reply": (
        codec.pack_pull_reply(DST, SRC, 3, 0x21, 0x00012340, 0x0A0B0C0D, 0x22 ^ PULL_MAGIC, b"bytes"),
        "2a 21 0005 00012340  0a0b0c0d 210719a2", b"bytes", 16,
    ),
    "notify": (
        codec.pack_notify(DST, SRC, 3, 0x11, 0x22, 0xA1A2A3A4, 0x00100000, 0x33, 0x44, 0x4005, 0x8006),
        "2b 11 22 00 a1a2a3a4  00100000 33 44 0000  0000 4005 8006 0000", b"", 24,
    ),
    "truc": (
        codec.pack_truc(DST, SRC, 3, 0x11, 0x22, 0xA1A2A3A4, 0x8006, 0xA1A2A3A4, 0x01020304, 0x4005, 1),
        "23 11 22 00 14 000000  a1a2a3a4 55 00 8006  a1a2a3a4 01020304  4005 01 00", b"", 28,
    ),
    "connect": (
        codec.pack_connect(DST, SRC, 3, 0x11, 0x22, 0xA1A2A3A4, 0x0000CAFE, 0x4000, 0, 9, 0),
        "24 11 22 00 10 000000  0000 0000 00000000  a1a2a3a4 0000cafe 4000 00 09 00000000", b"", 32,
    ),
    "refused": (
        codec.pack_connect(DST, SRC, 3, 0x11, 0x22, 0xA1A2A3A4, 0xB1B2B3B4, 0, 1, 9, 11),
        "24 11 22 00 10 000000  0000 0000 00000000  a1a2a3a4 b1b2b3b4 0000 01 09 0b 000000", b"", 32,
    ),
    "nack_lib": (
        codec.pack_nack_lib(DST, SRC, 3, 0x11, codec.NACK_TYPE_BAD_SESSION, 0x22, 0x0007, 0x4005),
        "2c 11 00 03 00000000  00 22 0007 4005 0000", b"", 16,
    ),
    "nack_mcp": (
        codec.pack_nack_mcp(DST, SRC, 3, 0x11, codec.NACK_TYPE_BAD_RDMAWIN, 0x0A0B0C0D, 0x22 ^ PULL_MAGIC),
        "2d 11 00 04 00000000  0a0b0c0d 210719a2", b"", 16,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", VECTORS)
def test_a_frame_has_the_sources_layout_and_a_crc_32_after_its_data(name: str) -> None:
    frame, layout, data, size = VECTORS[name]
    header = bytes.fromhex(HEAD + layout)
    assert len(header) == 16 + size
    contents = header + data
    assert frame == contents + zlib.crc32(contents).to_bytes(4, "big")


def test_types_have_the_numbers_of_the_source() -> None:
    assert codec.ETHERTYPE == 0x86DF
    kinds = (
        "TRUC",
        "CONNECT",
        "TINY",
        "SMALL",
        "MEDIUM",
        "RNDV",
        "PULL",
        "PULL_REPLY",
        "NOTIFY",
        "NACK_LIB",
        "NACK_MCP",
    )
    assert [getattr(codec, f"TYPE_{kind}") for kind in kinds] == list(range(35, 46))


ENDPOINT_FRAMES = [name for name in VECTORS if name not in ("nack_lib", "nack_mcp", "pull_reply")]


@pytest.mark.parametrize("name", ENDPOINT_FRAMES)
def test_type_and_destination_endpoint_are_the_bytes_that_the_nics_hash_reads(name: str) -> None:
    """Bytes 17 and 18, counted from 1."""
    frame = VECTORS[name][0]
    assert frame[17 - 1] == bytes.fromhex(VECTORS[name][1][:2])[0]
    assert frame[18 - 1] == 0x11
    for queues in range(1, 9):
        assert endpoint_queue(frame, queues) == myri10ge_queue(frame, queues) == 0x11 % queues


def test_the_shipped_hash_of_pull_replies_agrees_with_the_others_only_if_the_queues_divide_128() -> None:
    """Byte 32, counted from 1, is the lowest one of the magic: the endpoint's index with one bit changed."""
    index = 0x22
    frame = VECTORS["pull_reply"][0]
    assert frame[32 - 1] == index ^ 0x80
    for queues in range(1, 200):
        assert endpoint_queue(frame, queues) == index % queues
    agreeing_counts = {
        queues
        for queues in range(1, 129)
        if all(
            myri10ge_queue(codec.pack_pull_reply(DST, SRC, 3, 0, 0, 0, index ^ PULL_MAGIC), queues) == index % queues
            for index in range(256)
        )
    }
    assert agreeing_counts == {1, 2, 4, 8, 16, 32, 64, 128}

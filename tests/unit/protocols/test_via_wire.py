"""VIA's frames byte for byte: the header, and the CRC-32 that follows the payload in the place of Ethernet's frame
check sequence."""

from __future__ import annotations

import zlib

import pytest
from scapy.layers.l2 import Ether

from protocols.core.malformed import MalformedError
from protocols.via import codec
from protocols.via.frames import VIA
from protocols.via.virtual_interface import Descriptor
from tests.unit.protocols.via_nics import NicPair, post_receive

DST, SRC = bytes.fromhex("020000000002"), bytes.fromhex("020000000001")
HEADER = bytes.fromhex(
    DST.hex() + SRC.hex() + "5649" + "02 0000 0001 01 03 0a0a0a0a 0b0b0b0b 0004 00000005 0006 00000007"
    "00000008 00000009 0000000a 0000000b 0000000c 0004"
)


def packed_frame() -> bytes:
    return codec.pack_frame(DST, SRC, codec.TYPE_SEND, 3, 0x0A0A0A0A, 0x0B0B0B0B, 4, 5, 6, 7, 8, 9, 10, 11, 12, b"data")


def test_the_check_follows_the_payload() -> None:
    content = HEADER + b"data"
    assert packed_frame() == content + zlib.crc32(content).to_bytes(4, "big")


def test_the_header_has_no_check_of_its_own() -> None:
    assert codec.FRAME_SIZE - 14 == 49
    assert "check" not in codec.FIELDS


def test_a_padded_frame_has_its_check_where_its_length_ends() -> None:
    padded = packed_frame() + bytes(7)
    assert codec.unpack_frame(padded) == codec.unpack_frame(packed_frame())
    packet = Ether(padded)
    assert (bytes(packet[VIA].payload), packet[VIA].check) == (b"data" + bytes(7), zlib.crc32(HEADER + b"data"))


@pytest.mark.parametrize("position", [len(HEADER), -1], ids=["payload", "check"])
def test_a_changed_byte_is_detected_and_the_check_can_be_recomputed(position: int) -> None:
    changed = bytearray(packed_frame())
    changed[position] ^= 1
    with pytest.raises(MalformedError, match="check"):
        codec.unpack_frame(bytes(changed))
    *_, payload = codec.unpack_frame(codec.mended(bytes(changed)))
    assert len(payload) == 4


def test_a_frame_whose_check_is_cut_off_is_malformed() -> None:
    with pytest.raises(MalformedError, match="length"):
        codec.unpack_frame(packed_frame()[:-1])
    assert codec.mended(packed_frame()[:-1]) == packed_frame()[:-1]


def test_the_mtu_includes_the_check() -> None:
    pair = NicPair()
    post_receive(pair)
    pair.vis[0].post_send(Descriptor(data=(pair.memory[0].segment(0, 4096),)))
    first = pair.wires.nics[0].sent[0]
    assert len(first) == 14 + 1500
    assert len(codec.unpack_frame(first)[-1]) == 1500 - 49 - 4

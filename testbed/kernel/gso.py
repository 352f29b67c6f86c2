"""GSO frames: frames whose segmentation or checksum the sender's kernel has left to its device, and their segmentation.

Where offloads are on, a kernel hands its device TCP in GSO frames of up to 64 KiB, and TCP and UDP without their checksums:
the device finishes them, or, as between the ends of a veth pair, nobody needs to. A packet socket with PACKET_VNET_HDR
gets a header in front of each frame that says what is left to do, and puts one in front of each frame that it sends.
`segment` does the rest here: it returns the frames that the sender's kernel would have put on a wire.

Source: include/uapi/linux/virtio_net.h; the kernel's tcp_gso_segment, __udp_gso_segment, inet_gso_segment.
"""

from __future__ import annotations

import struct
from typing import Final

HEADER: Final = struct.Struct("=BBHHHH")
"""struct virtio_net_hdr: flags, GSO type, header length, payload of a segment, start of the checksummed bytes, offset of
the checksum from there."""

NO_OFFLOADS: Final = bytes(HEADER.size)
"""The header of a complete frame."""

NEEDS_CHECKSUM: Final = 1  # VIRTIO_NET_HDR_F_NEEDS_CSUM
TCP_OVER_IPV4, TCP_OVER_IPV6, UDP = 1, 4, 5  # VIRTIO_NET_HDR_GSO_TCPV4, _TCPV6, _UDP_L4
_WITH_ECN: Final = 0x80  # VIRTIO_NET_HDR_GSO_ECN

_TAG: Final = 4  # bytes of a VLAN tag
_TAGS: Final = (b"\x81\x00", b"\x88\xa8")
_ETHERTYPE: Final = 12  # where it is, or the first tag's
_LENGTH, _IDENTIFICATION, _IPV4_CHECKSUM = 2, 4, 10  # in IPv4's header
_PAYLOAD_LENGTH, _IPV6_HEADER = 4, 40  # in IPv6's; bytes of it
_UDP_LENGTH, _UDP_HEADER = 4, 8
_SEQUENCE, _DATA_OFFSET, _FLAGS, _TCP_HEADER = 4, 12, 13, 20  # in TCP's header; bytes of it without options
_FIN_PSH, _CWR = 0x09, 0x80  # flags of the last and of the first segment alone


class GsoFrame(bytes):
    """A frame, from its destination on, whose segmentation or checksum is left to do.

    header: a virtio_net_hdr that says what is left to do. segments: number of frames on a wire. beyond: bytes that those
    have more than this frame, since all but the first repeat its headers. largest: bytes of the largest of them.
    """

    header: bytes
    segments: int = 1
    beyond: int = 0

    @property
    def largest(self) -> int:
        size: int = HEADER.unpack(self.header)[3]
        return len(self) if self.segments == 1 else self.beyond // (self.segments - 1) + size

    def segment(self) -> list[bytes]:
        """Return the GSO segments, complete frames, in their order."""
        _, kind, _, size, start, offset = HEADER.unpack(self.header)
        if self.segments > 1:
            return _segments(self, self.beyond // (self.segments - 1), size, start, start + offset, udp=kind == UDP)
        offset_in_frame = start + offset
        total = int.from_bytes(self[start:], "big") << 8 * (len(self) - start & 1)
        return [self[:offset_in_frame] + _checksum(total, 0xFFFF) + self[offset_in_frame + 2 :]]


def gso_frame(header: bytes, frame: memoryview | bytes, tag: bytes = b"") -> GsoFrame | None:
    """Make a GSO frame of a frame and its virtio_net_hdr; None where the header is incomplete or of an unknown type.

    tag: the VLAN tag that the kernel has taken out of the frame; it is put back.
    """
    flags, kind, _, size, start, offset = HEADER.unpack(header)
    if not flags & NEEDS_CHECKSUM or start + offset + 2 > len(frame):
        return None
    if tag:
        frame = b"".join((frame[:_ETHERTYPE], tag, frame[_ETHERTYPE:]))
        start += _TAG
        header = HEADER.pack(flags, kind, 0, size, start, offset)
    gso = GsoFrame(frame)
    gso.header = header
    if not kind:
        return gso
    kind_alone = kind & ~_WITH_ECN
    if kind_alone == UDP:
        headers = start + _UDP_HEADER
    elif kind_alone in (TCP_OVER_IPV4, TCP_OVER_IPV6) and len(gso) >= start + _TCP_HEADER:
        headers = start + (gso[start + _DATA_OFFSET] >> 4) * 4
    else:
        return None
    payload = len(gso) - headers
    if not size or payload < 0:
        return None
    gso.header = HEADER.pack(flags, kind, headers, size, start, offset)
    if payload > size:
        gso.segments = -(-payload // size)
        gso.beyond = (gso.segments - 1) * headers
    return gso


def _segments(frame: bytes, headers: int, size: int, start: int, checksum_at: int, *, udp: bool) -> list[bytes]:
    """Segment a frame. headers: bytes of all its headers. start: offset of the transport header. checksum_at: offset of its
    checksum, which holds the sum of the pseudo-header with the whole frame's length."""
    network = _ETHERTYPE
    while frame[network : network + 2] in _TAGS:
        network += _TAG
    network += 2
    version_and_words = _number(frame, network, 1)
    ipv4 = version_and_words >> 4 == 4
    pseudo = _number(frame, checksum_at, 2) - (len(frame) - start)
    identification = _number(frame, network + _IDENTIFICATION, 2)
    sequence = _number(frame, start + _SEQUENCE, 4)
    flags = _number(frame, start + _FLAGS, 1)
    segments: list[bytes] = []
    for begin in range(headers, len(frame), size):
        payload = frame[begin : begin + size]
        head = bytearray(frame[:headers])
        if ipv4:
            _put(head, network + _LENGTH, 2, headers - network + len(payload))
            _put(head, network + _IDENTIFICATION, 2, identification + len(segments))
            _put(head, network + _IPV4_CHECKSUM, 2, 0)
            head[network + _IPV4_CHECKSUM : network + _IPV4_CHECKSUM + 2] = _checksum(
                _number(head, network, (version_and_words & 15) * 4), 0
            )
        else:
            _put(head, network + _PAYLOAD_LENGTH, 2, headers - network - _IPV6_HEADER + len(payload))
        length = headers - start + len(payload)
        if udp:
            _put(head, start + _UDP_LENGTH, 2, length)
        else:
            _put(head, start + _SEQUENCE, 4, sequence + begin - headers)
            cleared = (_FIN_PSH if begin + size < len(frame) else 0) | (_CWR if segments else 0)
            head[start + _FLAGS] = flags & ~cleared
        _put(head, checksum_at, 2, (pseudo + length) % 0xFFFF)
        total = _number(head, start, headers - start) + (int.from_bytes(payload, "big") << 8 * (len(payload) & 1))
        head[checksum_at : checksum_at + 2] = _checksum(total, 0xFFFF if udp else 0)
        segments.append(bytes(head) + payload)
    return segments


def _number(data: bytes | bytearray, offset: int, width: int) -> int:
    return int.from_bytes(data[offset : offset + width], "big")


def _put(data: bytearray, offset: int, width: int, value: int) -> None:
    """Write the value's lowest `width` bytes, big-endian."""
    data[offset : offset + width] = (value & (1 << 8 * width) - 1).to_bytes(width, "big")


def _checksum(total: int, zero: int) -> bytes:
    """Compute the Internet checksum (RFC 1071) of 16-bit words, given as one number: their sum with end-around carry is
    that number modulo 65535. zero: replaces a checksum of 0, which in UDP means that there is none."""
    return (-total % 0xFFFF or zero).to_bytes(2, "big")

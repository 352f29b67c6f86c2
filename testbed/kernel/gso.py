"""GSO frames: frames whose segmentation or checksum the sender's kernel has left to its device, and their segmentation.

With offloads, a kernel passes TCP to its device in GSO frames of up to 64 KiB, and TCP and UDP without checksums. A real
device completes them; between the ends of a veth pair they stay incomplete. With PACKET_VNET_HDR, a packet socket receives
and sends each frame behind a header that describes the remaining work. `segment` returns the frames that the sender's device
would have put on a wire.

Source: include/uapi/linux/virtio_net.h; the kernel's tcp_gso_segment, __udp_gso_segment, inet_gso_segment.
"""

from __future__ import annotations

import struct
from typing import Final

HEADER: Final = struct.Struct("=BBHHHH")
"""struct virtio_net_hdr: flags, GSO type, length of all headers, payload bytes of a segment, start of the checksummed bytes,
offset of the checksum from there."""

NO_OFFLOADS: Final = bytes(HEADER.size)
"""The header of a complete frame."""

NEEDS_CHECKSUM: Final = 1  # VIRTIO_NET_HDR_F_NEEDS_CSUM
TCP_OVER_IPV4, TCP_OVER_IPV6, UDP = 1, 4, 5  # VIRTIO_NET_HDR_GSO_TCPV4, _TCPV6, _UDP_L4
_ECN: Final = 0x80  # VIRTIO_NET_HDR_GSO_ECN

_TAG: Final = 4  # bytes of a VLAN tag
_TAGS: Final = (b"\x81\x00", b"\x88\xa8")
_ETHERTYPE: Final = 12  # offset of the EtherType, or of the first tag
_LENGTH, _IDENTIFICATION, _IPV4_CHECKSUM = 2, 4, 10  # offsets in the IPv4 header
_PAYLOAD_LENGTH, _IPV6_HEADER = 4, 40  # offset in the IPv6 header; its bytes
_UDP_LENGTH, _UDP_HEADER = 4, 8  # offset in the UDP header; its bytes
_SEQUENCE, _DATA_OFFSET, _FLAGS, _TCP_HEADER = 4, 12, 13, 20  # offsets in the TCP header; its bytes without options
_FIN_PSH, _CWR = 0x09, 0x80  # flags that only the last, and only the first segment keeps


class GsoFrame(bytes):
    """A frame, from its destination address on, that must be segmented or completed with a checksum.

    header: a virtio_net_hdr that describes the remaining work. segments: number of frames on a wire. extra_bytes: total size
    of the segments minus the size of this frame; it is positive because each segment repeats the headers.
    """

    header: bytes
    segments: int = 1
    extra_bytes: int = 0

    @property
    def max_segment_size(self) -> int:
        """Size of the largest segment in bytes, with its headers."""
        size: int = HEADER.unpack(self.header)[3]
        return len(self) if self.segments == 1 else self.extra_bytes // (self.segments - 1) + size

    def segment(self) -> list[bytes]:
        """Return the GSO segments in order, as complete frames."""
        _, kind, _, size, start, offset = HEADER.unpack(self.header)
        if self.segments > 1:
            return _segments(
                self, self.extra_bytes // (self.segments - 1), size, start, start + offset, udp=kind == UDP
            )
        offset_in_frame = start + offset
        total = int.from_bytes(self[start:], "big") << 8 * (len(self) - start & 1)
        return [self[:offset_in_frame] + _checksum(total, 0xFFFF) + self[offset_in_frame + 2 :]]


def gso_frame(header: bytes, frame: memoryview | bytes, tag: bytes = b"") -> GsoFrame | None:
    """Make a GSO frame from a frame and its virtio_net_hdr; None if the header requests no checksum, does not fit the
    frame or has an unknown type.

    tag: the VLAN tag that the kernel has removed from the frame, to be inserted again.
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
    kind_without_ecn = kind & ~_ECN
    if kind_without_ecn == UDP:
        headers = start + _UDP_HEADER
    elif kind_without_ecn in (TCP_OVER_IPV4, TCP_OVER_IPV6) and len(gso) >= start + _TCP_HEADER:
        headers = start + (gso[start + _DATA_OFFSET] >> 4) * 4
    else:
        return None
    payload = len(gso) - headers
    if not size or payload < 0:
        return None
    gso.header = HEADER.pack(flags, kind, headers, size, start, offset)
    if payload > size:
        gso.segments = -(-payload // size)
        gso.extra_bytes = (gso.segments - 1) * headers
    return gso


def _segments(frame: bytes, headers: int, size: int, start: int, checksum_at: int, *, udp: bool) -> list[bytes]:
    """Segment a frame.

    headers: bytes of all its headers. size: payload bytes of a segment. start: offset of the transport header. checksum_at:
    offset of the transport checksum, which contains the sum of the pseudo-header with the length of the whole frame.
    """
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
        header_copy = bytearray(frame[:headers])
        if ipv4:
            _put(header_copy, network + _LENGTH, 2, headers - network + len(payload))
            _put(header_copy, network + _IDENTIFICATION, 2, identification + len(segments))
            _put(header_copy, network + _IPV4_CHECKSUM, 2, 0)
            header_copy[network + _IPV4_CHECKSUM : network + _IPV4_CHECKSUM + 2] = _checksum(
                _number(header_copy, network, (version_and_words & 15) * 4), 0
            )
        else:
            _put(header_copy, network + _PAYLOAD_LENGTH, 2, headers - network - _IPV6_HEADER + len(payload))
        length = headers - start + len(payload)
        if udp:
            _put(header_copy, start + _UDP_LENGTH, 2, length)
        else:
            _put(header_copy, start + _SEQUENCE, 4, sequence + begin - headers)
            cleared = (_FIN_PSH if begin + size < len(frame) else 0) | (_CWR if segments else 0)
            header_copy[start + _FLAGS] = flags & ~cleared
        _put(header_copy, checksum_at, 2, (pseudo + length) % 0xFFFF)
        total = _number(header_copy, start, headers - start) + (
            int.from_bytes(payload, "big") << 8 * (len(payload) & 1)
        )
        header_copy[checksum_at : checksum_at + 2] = _checksum(total, 0xFFFF if udp else 0)
        segments.append(bytes(header_copy) + payload)
    return segments


def _number(data: bytes | bytearray, offset: int, width: int) -> int:
    return int.from_bytes(data[offset : offset + width], "big")


def _put(data: bytearray, offset: int, width: int, value: int) -> None:
    """Write the value's lowest `width` bytes, big-endian."""
    data[offset : offset + width] = (value & (1 << 8 * width) - 1).to_bytes(width, "big")


def _checksum(total: int, zero: int) -> bytes:
    """Compute the Internet checksum (RFC 1071) of 16-bit words, which are given as one large number: modulo 65535, it equals
    their sum with end-around carry. zero: replaces a checksum of 0, which means in UDP that there is none."""
    return (-total % 0xFFFF or zero).to_bytes(2, "big")

"""Frames that their sender's kernel has left unfinished, and finishing them.

Where offloads are on, a kernel hands its device TCP in pieces of up to 64 KiB, and TCP and UDP without their checksums: who
gets them has hardware that does the rest, or, as between two ends of a veth pair, no need of it. A packet socket that asks
for it (PACKET_VNET_HDR) is told in front of each frame what is left to do, and says so of what it sends. `finish` does it
here: what comes out is what the sender's kernel would have put on a wire.

Source: include/uapi/linux/virtio_net.h; the kernel's tcp_gso_segment, __udp_gso_segment, inet_gso_segment.
"""

from __future__ import annotations

import struct
from typing import Final

HEADER: Final = struct.Struct("=BBHHHH")
"""struct virtio_net_hdr: flags, kind, length of the headers, payload of a segment; where the checksum begins, and its
place from there."""

FINISHED: Final = bytes(HEADER.size)
"""The header of a frame to which nothing is left to do."""

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


class Unfinished(bytes):
    """A frame, from its destination on, as its sender's kernel left it.

    header: says what is left to do. segments: how many frames it is on a wire. beyond: how many bytes those are more than it
    is itself: all but the first repeat its headers. largest: bytes of the largest of them.
    """

    header: bytes
    segments: int = 1
    beyond: int = 0

    @property
    def largest(self) -> int:
        size: int = HEADER.unpack(self.header)[3]
        return len(self) if self.segments == 1 else self.beyond // (self.segments - 1) + size

    def finish(self) -> list[bytes]:
        """The frames as they are on a wire, in their order."""
        _, kind, _, size, start, offset = HEADER.unpack(self.header)
        if self.segments > 1:
            return _segments(self, self.beyond // (self.segments - 1), size, start, start + offset, udp=kind == UDP)
        place = start + offset
        total = int.from_bytes(self[start:], "big") << 8 * (len(self) - start & 1)
        return [self[:place] + _checksum(total, 0xFFFF) + self[place + 2 :]]


def unfinished(header: bytes, frame: memoryview | bytes, tag: bytes = b"") -> Unfinished | None:
    """A frame with the header that the kernel has given with it; None where that does not say what is left to do, or is
    none of ours.

    tag: the VLAN tag that the kernel has taken out of the frame, and that is put back.
    """
    flags, kind, _, size, start, offset = HEADER.unpack(header)
    if not flags & NEEDS_CHECKSUM or start + offset + 2 > len(frame):
        return None
    if tag:
        frame = b"".join((frame[:_ETHERTYPE], tag, frame[_ETHERTYPE:]))
        start += _TAG
        header = HEADER.pack(flags, kind, 0, size, start, offset)
    made = Unfinished(frame)
    made.header = header
    if not kind:
        return made
    kind_alone = kind & ~_WITH_ECN
    if kind_alone == UDP:
        headers = start + _UDP_HEADER
    elif kind_alone in (TCP_OVER_IPV4, TCP_OVER_IPV6) and len(made) >= start + _TCP_HEADER:
        headers = start + (made[start + _DATA_OFFSET] >> 4) * 4
    else:
        return None
    payload = len(made) - headers
    if not size or payload < 0:
        return None
    made.header = HEADER.pack(flags, kind, headers, size, start, offset)
    if payload > size:
        made.segments = -(-payload // size)
        made.beyond = (made.segments - 1) * headers
    return made


def _segments(frame: bytes, headers: int, size: int, start: int, place: int, *, udp: bool) -> list[bytes]:
    """headers: bytes of all of them. start: where the transport's header begins. place: that of its checksum, which holds
    the sum of the pseudo-header with the whole frame's length."""
    network = _ETHERTYPE
    while frame[network : network + 2] in _TAGS:
        network += _TAG
    network += 2
    version_and_words = _number(frame, network, 1)
    ipv4 = version_and_words >> 4 == 4
    pseudo = _number(frame, place, 2) - (len(frame) - start)
    identification = _number(frame, network + _IDENTIFICATION, 2)
    sequence = _number(frame, start + _SEQUENCE, 4)
    flags = _number(frame, start + _FLAGS, 1)
    found: list[bytes] = []
    for begin in range(headers, len(frame), size):
        payload = frame[begin : begin + size]
        made = bytearray(frame[:headers])
        if ipv4:
            _put(made, network + _LENGTH, 2, headers - network + len(payload))
            _put(made, network + _IDENTIFICATION, 2, identification + len(found))
            _put(made, network + _IPV4_CHECKSUM, 2, 0)
            made[network + _IPV4_CHECKSUM : network + _IPV4_CHECKSUM + 2] = _checksum(
                _number(made, network, (version_and_words & 15) * 4), 0
            )
        else:
            _put(made, network + _PAYLOAD_LENGTH, 2, headers - network - _IPV6_HEADER + len(payload))
        length = headers - start + len(payload)
        if udp:
            _put(made, start + _UDP_LENGTH, 2, length)
        else:
            _put(made, start + _SEQUENCE, 4, sequence + begin - headers)
            lacking = (_FIN_PSH if begin + size < len(frame) else 0) | (_CWR if found else 0)
            made[start + _FLAGS] = flags & ~lacking
        _put(made, place, 2, (pseudo + length) % 0xFFFF)
        total = _number(made, start, headers - start) + (int.from_bytes(payload, "big") << 8 * (len(payload) & 1))
        made[place : place + 2] = _checksum(total, 0xFFFF if udp else 0)
        found.append(bytes(made) + payload)
    return found


def _number(data: bytes | bytearray, place: int, width: int) -> int:
    return int.from_bytes(data[place : place + width], "big")


def _put(data: bytearray, place: int, width: int, value: int) -> None:
    """The value's lowest bytes."""
    data[place : place + width] = (value & (1 << 8 * width) - 1).to_bytes(width, "big")


def _checksum(total: int, zero: int) -> bytes:
    """The Internet checksum (RFC 1071) of 16-bit words, given as one number: words are added with the carry going round,
    which is that number modulo 65535. zero: what stands for 0, which in UDP means that there is no checksum."""
    return (-total % 0xFFFF or zero).to_bytes(2, "big")

"""Checksums of IPv4, ICMP, ICMPv6, TCP and UDP, recomputed after a frame's fields have changed.

The Internet checksum is that of RFC 1071. It covers the IPv4 header (RFC 791), an ICMP message (792), and, with a
pseudo-header, an ICMPv6 message (4443), a UDP datagram (768) and a TCP segment (9293). The pseudo-header is that of RFC
9293, section 3.1, over IPv4, and of RFC 8200, section 8.1, over IPv6.
"""

from __future__ import annotations

from typing import Final

from testbed.fates.header_fields import IPV4, IPV6, Located

_UDP: Final = 17
_MORE_FRAGMENTS: Final = 0x20
_IPV6_HEADER: Final = 40

_CHECKSUM_OFFSETS: Final = {1: 2, 6: 16, _UDP: 6, 58: 2}
"""IP protocol number -> offset of the checksum in the transport header."""


def internet_checksum(raw: bytes) -> int:
    """Compute the Internet checksum of bytes whose checksum field is 0."""
    if len(raw) % 2:
        raw += b"\0"
    total = int.from_bytes(raw, "big") % 0xFFFF  # the ones' complement sum of the 16-bit words
    return 0xFFFF - total if total or not any(raw) else 0


def update_internet_checksums(frame: bytearray, located: Located) -> None:
    """Recompute the checksums of a frame's IPv4 and transport headers in place.

    Truncated headers, transport checksums of fragments, and a UDP checksum of 0 over IPv4, which means none, are not
    changed.
    """
    ethertype, network, protocol, transport = located
    if ethertype not in (IPV4, IPV6) or protocol < 0:
        return
    if ethertype == IPV4:
        header_end = network + (frame[network] & 15) * 4
        if network + 20 <= header_end <= len(frame):
            _write(frame, network + 10, frame[network:header_end], 10)
        end = network + int.from_bytes(frame[network + 2 : network + 4], "big")
        addresses = frame[network + 12 : network + 20]
        is_unfragmented = not frame[network + 6] & _MORE_FRAGMENTS
    else:
        end = network + _IPV6_HEADER + int.from_bytes(frame[network + 4 : network + 6], "big")
        addresses = frame[network + 8 : network + 40]
        is_unfragmented = True
    offset = _CHECKSUM_OFFSETS.get(protocol, -1)
    if transport < 0 or offset < 0 or not is_unfragmented or transport + offset + 2 > len(frame):
        return
    if protocol == _UDP and ethertype == IPV4 and not any(frame[transport + 6 : transport + 8]):
        return
    segment = frame[transport:end] if transport + offset + 2 <= end <= len(frame) else frame[transport:]
    pseudo = b"" if protocol == 1 else bytes(addresses) + len(segment).to_bytes(4, "big") + bytes((0, 0, 0, protocol))
    _write(frame, transport + offset, segment, offset, pseudo, never_zero=protocol == _UDP)


def _write(
    frame: bytearray,
    offset: int,
    covered: bytearray,
    field_offset: int,
    pseudo: bytes = b"",
    *,
    never_zero: bool = False,
) -> None:
    """Compute a checksum and write it. offset: of the checksum in the frame. covered: a copy of the covered bytes.
    field_offset: offset of the checksum in `covered`. pseudo: the pseudo-header. never_zero: write 0 as 0xFFFF, as UDP
    requires."""
    covered[field_offset : field_offset + 2] = b"\0\0"
    value = internet_checksum(pseudo + covered)
    frame[offset : offset + 2] = (value or 0xFFFF if never_zero else value).to_bytes(2, "big")

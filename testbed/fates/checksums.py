"""Checksums of IPv4, ICMP, ICMPv6, TCP and UDP, recomputed after a frame's fields have changed.

The Internet checksum is RFC 1071's; its coverage is that of RFC 791 (IPv4's header), 792 (ICMP), 4443 (ICMPv6), 768 (UDP)
and 9293 (TCP), the last three with the pseudo-header of RFC 793 or RFC 8200, section 8.1.
"""

from __future__ import annotations

from typing import Final

from testbed.fates.header_fields import IPV4, IPV6, Located

_UDP: Final = 17
_MORE_FRAGMENTS: Final = 0x20
_IPV6_HEADER: Final = 40

TRANSPORT: Final = {1: 2, 6: 16, _UDP: 6, 58: 2}
"""IP protocol number -> offset of the checksum in its header."""


def internet_checksum(raw: bytes) -> int:
    """Compute the Internet checksum of bytes in which the checksum's own field is 0."""
    if len(raw) % 2:
        raw += b"\0"
    total = int.from_bytes(raw, "big") % 0xFFFF  # 2**16 is 1 modulo 0xFFFF: the sum of the words, carries added again
    return 0xFFFF - total if total or not any(raw) else 0


def mend_internet(frame: bytearray, located: Located) -> None:
    """Write the checksums of a frame's IPv4 and transport headers.

    Unchanged: a truncated header, the transport checksum of a fragment, and UDP's 0 over IPv4, which means no checksum.
    """
    ethertype, network, protocol, transport = located
    if ethertype not in (IPV4, IPV6) or protocol < 0:
        return
    if ethertype == IPV4:
        behind = network + (frame[network] & 15) * 4
        if network + 20 <= behind <= len(frame):
            _write(frame, network + 10, frame[network:behind], 10)
        end = network + int.from_bytes(frame[network + 2 : network + 4], "big")
        addresses = frame[network + 12 : network + 20]
        whole = not frame[network + 6] & _MORE_FRAGMENTS
    else:
        end = network + _IPV6_HEADER + int.from_bytes(frame[network + 4 : network + 6], "big")
        addresses = frame[network + 8 : network + 40]
        whole = True
    offset = TRANSPORT.get(protocol, -1)
    if transport < 0 or offset < 0 or not whole or transport + offset + 2 > len(frame):
        return
    if protocol == _UDP and ethertype == IPV4 and not any(frame[transport + 6 : transport + 8]):
        return
    segment = frame[transport:end] if transport + offset + 2 <= end <= len(frame) else frame[transport:]
    pseudo = b"" if protocol == 1 else bytes(addresses) + len(segment).to_bytes(4, "big") + bytes((0, 0, 0, protocol))
    _write(frame, transport + offset, segment, offset, pseudo, never_zero=protocol == _UDP)


def _write(
    frame: bytearray, at: int, covered: bytearray, own: int, pseudo: bytes = b"", *, never_zero: bool = False
) -> None:
    """Write a checksum at `at`. own: its offset in the bytes that it covers. pseudo: the pseudo-header, also covered."""
    covered[own : own + 2] = b"\0\0"
    value = internet_checksum(pseudo + covered)
    frame[at : at + 2] = (value or 0xFFFF if never_zero else value).to_bytes(2, "big")

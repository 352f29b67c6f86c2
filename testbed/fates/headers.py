"""The headers from Ethernet to TCP and UDP and their fields, named as in Scapy and Wireshark: ``eth.type``, ``tcp.dport``.

From IEEE 802.3 and 802.1Q, RFC 826 (ARP), 791 (IPv4), 8200 (IPv6), 792 (ICMP), 768 (UDP) and 9293 (TCP).
"""

from __future__ import annotations

from typing import Final

from testbed.fates.header_fields import FRAME_LENGTH, IPV4, IPV6, Field, Fields, Header, Kind

FRAME: Final = Header("frame", "link")
ETH: Final = Header("eth", "link")
VLAN: Final = Header("vlan", "tag")
ARP: Final = Header("arp", "network", 0x0806)
IP: Final = Header("ip", "network", IPV4)
IP6: Final = Header("ipv6", "network", IPV6)
ICMP: Final = Header("icmp", "transport", 1)
TCP: Final = Header("tcp", "transport", 6)
UDP: Final = Header("udp", "transport", 17)
ICMP6: Final = Header("icmpv6", "transport", 58)

# Header, name, offset in bytes, width in bytes, mask (0: all bits), kind.
_TABLE: Final[tuple[tuple[Header, str, int, int, int, Kind], ...]] = (
    (ETH, "dst", 0, 6, 0, "mac"),
    (ETH, "src", 6, 6, 0, "mac"),
    (ETH, "type", 12, 2, 0, "number"),
    (VLAN, "prio", 0, 2, 0xE000, "number"),
    (VLAN, "id", 0, 2, 0x0FFF, "number"),
    (VLAN, "type", 2, 2, 0, "number"),
    (ARP, "op", 6, 2, 0, "number"),
    (ARP, "hwsrc", 8, 6, 0, "mac"),
    (ARP, "psrc", 14, 4, 0, "ipv4"),
    (ARP, "hwdst", 18, 6, 0, "mac"),
    (ARP, "pdst", 24, 4, 0, "ipv4"),
    (IP, "tos", 1, 1, 0, "number"),
    (IP, "dscp", 1, 1, 0xFC, "number"),
    (IP, "ecn", 1, 1, 0x03, "number"),
    (IP, "len", 2, 2, 0, "number"),
    (IP, "id", 4, 2, 0, "number"),
    (IP, "flags.df", 6, 1, 0x40, "number"),
    (IP, "flags.mf", 6, 1, 0x20, "number"),
    (IP, "frag", 6, 2, 0x1FFF, "number"),
    (IP, "ttl", 8, 1, 0, "number"),
    (IP, "proto", 9, 1, 0, "number"),
    (IP, "chksum", 10, 2, 0, "number"),
    (IP, "src", 12, 4, 0, "ipv4"),
    (IP, "dst", 16, 4, 0, "ipv4"),
    (IP6, "tc", 0, 2, 0x0FF0, "number"),
    (IP6, "fl", 1, 3, 0x0FFFFF, "number"),
    (IP6, "plen", 4, 2, 0, "number"),
    (IP6, "nh", 6, 1, 0, "number"),
    (IP6, "hlim", 7, 1, 0, "number"),
    (IP6, "src", 8, 16, 0, "ipv6"),
    (IP6, "dst", 24, 16, 0, "ipv6"),
    (ICMP, "type", 0, 1, 0, "number"),
    (ICMP, "code", 1, 1, 0, "number"),
    (ICMP, "chksum", 2, 2, 0, "number"),
    (ICMP, "id", 4, 2, 0, "number"),
    (ICMP, "seq", 6, 2, 0, "number"),
    (ICMP6, "type", 0, 1, 0, "number"),
    (ICMP6, "code", 1, 1, 0, "number"),
    (ICMP6, "chksum", 2, 2, 0, "number"),
    (UDP, "sport", 0, 2, 0, "number"),
    (UDP, "dport", 2, 2, 0, "number"),
    (UDP, "len", 4, 2, 0, "number"),
    (UDP, "chksum", 6, 2, 0, "number"),
    (TCP, "sport", 0, 2, 0, "number"),
    (TCP, "dport", 2, 2, 0, "number"),
    (TCP, "seq", 4, 4, 0, "number"),
    (TCP, "ack", 8, 4, 0, "number"),
    (TCP, "flags", 13, 1, 0, "number"),
    (TCP, "flags.fin", 13, 1, 0x01, "number"),
    (TCP, "flags.syn", 13, 1, 0x02, "number"),
    (TCP, "flags.rst", 13, 1, 0x04, "number"),
    (TCP, "flags.psh", 13, 1, 0x08, "number"),
    (TCP, "flags.ack", 13, 1, 0x10, "number"),
    (TCP, "window", 14, 2, 0, "number"),
    (TCP, "chksum", 16, 2, 0, "number"),
)


def standard_fields() -> Fields:
    """Return the standard fields. Protocols can register further fields in the result.

    ``eth.type`` is the EtherType after the addresses; in a tagged frame, it is the TPID. ``vlan.*`` are fields of the
    outermost tag. Headers are found after up to two tags.
    """
    fields = [
        Field(f"{header.name}.{name}", header, offset, width, mask, kind)
        for header, name, offset, width, mask, kind in _TABLE
    ]
    headers = (FRAME, ETH, VLAN, ARP, IP, IP6, ICMP, TCP, UDP, ICMP6)
    checksums = {field.name: field.header.name for field in fields if field.name.endswith(".chksum")}
    return Fields(headers, [Field(FRAME_LENGTH, FRAME, 0, 4), *fields], checksums)

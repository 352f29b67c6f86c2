"""One-line labels of frames: addresses, protocol, main fields and length.

A label is read from the frame's bytes by the headers' layouts and the protocols' codecs; a broken frame is labelled as far
as possible.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from testbed.fates.header_fields import ETHERNET_HEADER, IPV4, IPV6, MIN_ETHERTYPE, TAGS, locate
from testbed.observe.format.frame_format import formatters

_ARP: Final = 0x0806
_ICMP, _TCP, _UDP, _ICMP6 = 1, 6, 17, 58
_TCP_FLAGS: Final = "FSRPAUEW"  # from the lowest bit
_IP_PROTOCOL_NAMES: Final = {_ICMP: "ICMP", _TCP: "TCP", _UDP: "UDP", _ICMP6: "ICMPv6"}
_ICMP_TYPE_NAMES: Final = {
    (_ICMP, 8): "echo request",
    (_ICMP, 0): "echo reply",
    (_ICMP6, 128): "echo request",
    (_ICMP6, 129): "echo reply",
    (_ICMP6, 135): "neighbour solicitation",
    (_ICMP6, 136): "neighbour advertisement",
}


def label(frame: bytes, nics: Mapping[bytes, str] = MappingProxyType({})) -> str:
    """Label a frame in one line, without a line end. nics: names of NICs by hardware address."""
    try:
        text = _describe(frame, nics)
    except IndexError:
        text = "cut short"
    tag = ""
    if len(frame) >= ETHERNET_HEADER + 4 and _read_number(frame, 12, 2) in TAGS:
        tag = f"VLAN {_read_number(frame, 14, 2) & 0xFFF}, "
    return f"{tag}{text}, {len(frame)} bytes"


def _describe(frame: bytes, nics: Mapping[bytes, str]) -> str:
    ethertype, network, protocol, transport = locate(frame)
    source, destination = frame[6:12], frame[:6]
    addresses = f"{nics.get(source) or source.hex(':')} > {nics.get(destination) or destination.hex(':')}"
    if ethertype in (IPV4, IPV6):
        offset, size = (network + 12, 4) if ethertype == IPV4 else (network + 8, 16)
        version = _read_number(frame, network, 1) >> 4
        if version != (4 if ethertype == IPV4 else 6):
            return f"{addresses} EtherType 0x{ethertype:04x} with IP version {version}"
        addresses = f"{_format_address(frame, offset, size)} > {_format_address(frame, offset + size, size)}"
        try:
            return f"{addresses} {_describe_ip(frame, protocol, transport)}"
        except IndexError:
            return f"{addresses} {_protocol_name(protocol)}, cut short"
    if ethertype == _ARP:
        return _describe_arp(frame, network)
    shared = formatters().get(ethertype)
    if shared is not None and network == ETHERNET_HEADER:
        formatter = shared.formatter_of(frame)
        if formatter is not None and (description := formatter.format(frame)):
            return f"{addresses} {description}"
    if ethertype < 0:
        return "not an Ethernet frame"
    kind = "length" if ethertype < MIN_ETHERTYPE else "EtherType"
    return f"{addresses} {kind} 0x{ethertype:04x}"


def _describe_ip(frame: bytes, protocol: int, offset: int) -> str:
    name = _protocol_name(protocol)
    if offset < 0:
        return f"{name}, a later fragment or broken"
    if protocol in (_TCP, _UDP):
        name += f" {_read_number(frame, offset, 2)} > {_read_number(frame, offset + 2, 2)}"
    if protocol == _TCP:
        flags = frame[offset + 13]
        letters = "".join(letter for bit, letter in enumerate(_TCP_FLAGS) if flags >> bit & 1)
        name += f" [{letters}] seq {_read_number(frame, offset + 4, 4)} ack {_read_number(frame, offset + 8, 4)}"
    elif protocol in (_ICMP, _ICMP6):
        kind = frame[offset]
        name += f" {_ICMP_TYPE_NAMES.get((protocol, kind), f'type {kind} code {frame[offset + 1]}')}"
        if _ICMP_TYPE_NAMES.get((protocol, kind), "").startswith("echo"):
            name += f" {_read_number(frame, offset + 4, 2)} seq {_read_number(frame, offset + 6, 2)}"
        elif (protocol, kind) in _ICMP_TYPE_NAMES:
            name += f" of {_format_address(frame, offset + 8, 16)}"
    return name


def _protocol_name(protocol: int) -> str:
    return _IP_PROTOCOL_NAMES.get(protocol, f"protocol {protocol}")


def _describe_arp(frame: bytes, offset: int) -> str:
    sender, target = _format_address(frame, offset + 14, 4), _format_address(frame, offset + 24, 4)
    match _read_number(frame, offset + 6, 2):
        case 1:
            return f"ARP who has {target}? tell {sender}"
        case 2:
            return f"ARP {sender} is at {frame[offset + 8 : offset + 14].hex(':')}"
        case operation:
            return f"ARP operation {operation}"


def _format_address(frame: bytes, offset: int, size: int) -> str:
    if len(frame) < offset + size:
        raise IndexError
    return socket.inet_ntop(socket.AF_INET if size == 4 else socket.AF_INET6, frame[offset : offset + size])


def _read_number(frame: bytes, offset: int, size: int) -> int:
    if len(frame) < offset + size:
        raise IndexError
    return int.from_bytes(frame[offset : offset + size], "big")

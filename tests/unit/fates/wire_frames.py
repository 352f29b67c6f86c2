"""Frames built byte by byte, and their delivery over a modelled link direction."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping

from testbed.fabric.direction import Delivery, LinkDirection
from testbed.fates.records import Record
from testbed.fates.rules import RuleSet
from testbed.fates.stage import FateOptions
from testbed.spec.layout import Impairment

LINK = "n1:eth0--s1:1"
A, B, C = 0x02_00_00_00_00_01, 0x02_00_00_00_00_02, 0x02_00_00_00_00_03
MICROSECOND, MILLISECOND, SECOND = 10**3, 10**6, 10**9


def ethernet(payload: bytes = b"", *, ethertype: int = 0x88B5, source: int = A, destination: int = B) -> bytes:
    return destination.to_bytes(6, "big") + source.to_bytes(6, "big") + ethertype.to_bytes(2, "big") + payload


def tagged(frame: bytes, vlan: int, priority: int = 0, tag: int = 0x8100) -> bytes:
    """Return the frame with another VLAN tag."""
    return frame[:12] + tag.to_bytes(2, "big") + (priority << 13 | vlan).to_bytes(2, "big") + frame[12:]


def ipv4(
    payload: bytes,
    protocol: int,
    sender: str = "10.0.0.1",
    receiver: str = "10.0.0.2",
    options: bytes = b"",
    offset: int = 0,
    macs: tuple[int, int] = (A, B),
) -> bytes:
    """Return an IPv4 packet. offset: of a fragment, in units of eight bytes."""
    length = 20 + len(options)
    header = bytes([0x40 | length // 4, 0]) + (length + len(payload)).to_bytes(2, "big") + b"\x12\x34"
    header += offset.to_bytes(2, "big") + bytes([64, protocol, 0, 0])
    header += ipaddress.ip_address(sender).packed + ipaddress.ip_address(receiver).packed + options
    return ethernet(header + payload, ethertype=0x0800, source=macs[0], destination=macs[1])


def ipv6(payload: bytes, protocol: int, source: str = "fd00::1", destination: str = "fd00::2") -> bytes:
    header = b"\x60\0\0\0" + len(payload).to_bytes(2, "big") + bytes([protocol, 64])
    header += ipaddress.ip_address(source).packed + ipaddress.ip_address(destination).packed
    return ethernet(header + payload, ethertype=0x86DD)


def ports(source: int, destination: int) -> bytes:
    return source.to_bytes(2, "big") + destination.to_bytes(2, "big")


def udp(source: int = 40_000, destination: int = 5001, data: bytes = b"", **ip: object) -> bytes:
    header = ports(source, destination) + (8 + len(data)).to_bytes(2, "big") + b"\0\0"
    return ipv4(header + data, 17, **ip)  # type: ignore[arg-type]


def tcp(source: int = 40_000, destination: int = 5001, flags: int = 0x10, data: bytes = b"", **ip: object) -> bytes:
    header = ports(source, destination) + bytes(8) + bytes([0x50, flags]) + b"\x10\x00" + bytes(4)
    return ipv4(header + data, 6, **ip)  # type: ignore[arg-type]


def arp(operation: int = 1) -> bytes:
    body = b"\0\x01\x08\0\x06\x04" + operation.to_bytes(2, "big") + A.to_bytes(6, "big") + bytes([10, 0, 0, 1])
    return ethernet(body + bytes(6) + bytes([10, 0, 0, 2]), ethertype=0x0806)


def numbered(number: int, size: int = 64, **addresses: int) -> bytes:
    """Return a frame that is distinguishable from others of its flow."""
    return ethernet(number.to_bytes(4, "big").ljust(size - 14, b"\0"), **addresses)


def number_of(frame: bytes) -> int:
    return int.from_bytes(frame[14:18], "big")


def direction(
    impairment: Impairment,
    *,
    seed: int = 1,
    link: str = LINK,
    rules: RuleSet | None = None,
    **changes: object,
) -> LinkDirection:
    """Return a link direction. changes: fields of `FateOptions`."""
    options = FateOptions(seed, rules=rules, **changes)  # type: ignore[arg-type]
    return LinkDirection(link, "forward", impairment, options)


def run_schedule(wire: LinkDirection, schedule: Iterable[tuple[int, bytes]]) -> list[Delivery]:
    """Offer each frame at its time, poll at each deadline, and return all deliveries."""
    delivered: list[Delivery] = []
    for now, frame in schedule:
        while wire.deadline is not None and wire.deadline <= now:
            delivered += wire.poll(wire.deadline)
        wire.offer(now, frame)
    while wire.deadline is not None:
        delivered += wire.poll(wire.deadline)
    return delivered


def deliveries_of(impairment: Impairment, schedule: Iterable[tuple[int, bytes]], **options: object) -> list[Delivery]:
    """Return the deliveries of a schedule of frames over an impaired link direction."""
    return run_schedule(direction(impairment, **options), schedule)  # type: ignore[arg-type]


def fates_of(
    impairment: Impairment,
    schedule: Iterable[tuple[int, bytes]],
    files: Mapping[str, str] | None = None,
    **options: object,
) -> tuple[list[Delivery], list[Record]]:
    """Return the deliveries of a schedule of frames, and the log of their fates."""
    log: list[Record] = []
    delivered = deliveries_of(impairment, schedule, log=log.append, files=files, **options)
    return delivered, log

"""Synthetic captures of EMP frames on two interfaces, with times and fates."""

from __future__ import annotations

from collections.abc import Iterable

from protocols.emp import codec as emp
from testbed.fabric import pcapng

A, B = "02:00:00:00:00:01", "02:00:00:00:00:02"
LINK = "n1:eth0--n2:eth0"
N1, N2 = 0, 1
"""Numbers of the interfaces of a capture."""


def mac_bytes(mac: str) -> bytes:
    return bytes.fromhex(mac.replace(":", ""))


def first_frame(
    message: int, payload: bytes, total: int, *, source: str = A, destination: str = B, sender: int = 1
) -> bytes:
    return emp.pack_message(
        mac_bytes(destination), mac_bytes(source), 0, 3, sender, 2, message, 0, 0, 0, 1, 0x20, total, message, payload
    )


def data(message: int, number: int, payload: bytes, *, source: str = A, destination: str = B, sender: int = 1) -> bytes:
    return emp.pack_frame(
        mac_bytes(destination), mac_bytes(source), emp.TYPE_DATA, 0, 3, sender, 2, message, number, 0, payload
    )


def ack(message: int, number: int, *, source: str = B, destination: str = A, sender: int = 1) -> bytes:
    return emp.pack_frame(mac_bytes(destination), mac_bytes(source), emp.TYPE_ACK, 0, 3, sender, 2, message, number, 0)


def capture(frames: Iterable[tuple[int, int, bytes, pcapng.Bound, str]], *, nics: bool = True) -> bytes:
    """Return a pcapng file. frames: (interface, time in ns, frame, bound, comment). nics: interfaces record NIC and link."""
    ends = [("n1:eth0", A), ("n2:eth0", B)]
    blocks = [pcapng.section_header("a test")]
    blocks += [pcapng.interface(name, LINK if nics else "", mac if nics else "") for name, mac in ends]
    return b"".join([*blocks, *(pcapng.packet(*frame) for frame in frames)])

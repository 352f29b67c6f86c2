"""Synthetic captures of EMP's frames: sender, frame, time, interface and fate."""

from __future__ import annotations

from collections.abc import Iterable

from protocols.emp import codec as emp
from testbed.fabric import pcapng

A, B = "02:00:00:00:00:01", "02:00:00:00:00:02"
LINK = "n1:eth0--n2:eth0"
N1, N2 = 0, 1
"""The interfaces of a capture."""


def raw(mac: str) -> bytes:
    return bytes.fromhex(mac.replace(":", ""))


def first_frame(
    message: int, payload: bytes, total: int, *, source: str = A, destination: str = B, sender: int = 1
) -> bytes:
    return emp.pack_message(
        raw(destination), raw(source), 0, 3, sender, 2, message, 0, 0, 0, 1, 0x20, total, message, payload
    )


def data(message: int, number: int, payload: bytes, *, source: str = A, destination: str = B, sender: int = 1) -> bytes:
    return emp.pack_frame(raw(destination), raw(source), emp.TYPE_DATA, 0, 3, sender, 2, message, number, 0, payload)


def ack(message: int, number: int, *, source: str = B, destination: str = A, sender: int = 1) -> bytes:
    return emp.pack_frame(raw(destination), raw(source), emp.TYPE_ACK, 0, 3, sender, 2, message, number, 0)


def capture(frames: Iterable[tuple[int, int, bytes, pcapng.Bound, str]], *, nics: bool = True) -> bytes:
    """frames: (interface, time in ns, frame, bound, comment). nics: the interfaces name their NICs and links."""
    ends = [("n1:eth0", A), ("n2:eth0", B)]
    blocks = [pcapng.section_header("a test")]
    blocks += [pcapng.interface(name, LINK if nics else "", mac if nics else "") for name, mac in ends]
    return b"".join([*blocks, *(pcapng.packet(*frame) for frame in frames)])

"""Protocols of the kernel's own, which need no NIC's firmware: they run in namespaces only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from protocols.core.protocol import Protocol
from testbed.engine.loop import Loop


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelProtocol(Protocol):
    """ethertype: 0, for no frames. connect: awaited on every node, with its endpoint, its loop and all nodes' addresses by
    rank, before its device is asked for. lossy: messages of a program's first communicator may be lost, come twice and
    overtake each other, and nobody is told; those of the others may not."""

    connect: Callable[[Any, Loop, Sequence[str]], Awaitable[object]]
    lossy: bool = False


def is_lossy(protocol: Protocol) -> bool:
    """Whether it may lose a workload's messages."""
    return isinstance(protocol, KernelProtocol) and protocol.lossy


class NoFirmware:
    """In the place of a NIC's: the kernel does it all. counted: what is told in the place of its counters."""

    deadline = None

    def __init__(self, counted: Callable[[], Mapping[str, int]] = dict) -> None:
        self.counted = counted

    def receive(self, now: int, frame: bytes) -> None:
        """None comes."""

    def ring(self, now: int, index: int) -> None:
        """Nobody does."""

    def tick(self, now: int) -> None:
        """There is no deadline."""

    def waiting(self) -> list[str]:
        return []

"""The kernel's own protocols, which need no NIC firmware and run in namespaces only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from protocols.core.protocol import Protocol
from testbed.engine.loop import Loop


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelProtocol(Protocol):
    """A protocol of the kernel. ethertype: 0, for no frames. connect: awaited on every node, with its endpoint, its loop and
    all nodes' addresses by rank, before its device is made. lossy: messages of a program's first communicator may be lost,
    duplicated and reordered without notice; those of the others may not."""

    connect: Callable[[Any, Loop, Sequence[str]], Awaitable[object]]
    lossy: bool = False


def is_lossy(protocol: Protocol) -> bool:
    """Whether a protocol may lose a workload's messages."""
    return isinstance(protocol, KernelProtocol) and protocol.lossy


class NoFirmware:
    """Null firmware: the kernel does everything. counted: returns counters in place of the firmware's."""

    deadline = None

    def __init__(self, counted: Callable[[], Mapping[str, int]] = dict) -> None:
        self.counted = counted

    def receive(self, now: int, frame: bytes) -> None:
        """Do nothing: no frame comes."""

    def on_doorbell(self, now: int, index: int) -> None:
        """Do nothing: no doorbell is rung."""

    def on_timer(self, now: int) -> None:
        """Do nothing: there is no deadline."""

    def waiting(self) -> list[str]:
        return []

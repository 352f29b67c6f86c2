"""Protocols of the kernel, which need no NIC firmware and run in namespaces only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from protocols.core.protocol import Protocol
from testbed.engine.loop import Loop


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelProtocol(Protocol):
    """A protocol of the kernel. Its `ethertype` is 0, since it has no frames of its own. connect: awaited on every node
    before the node's MPI device is made; called with the node's endpoint, its loop, and the addresses of all nodes by rank.
    lossy: whether messages of a program's first communicator may be lost, duplicated or reordered without notice; those of
    other communicators are reliable."""

    connect: Callable[[Any, Loop, Sequence[str]], Awaitable[object]]
    lossy: bool = False


def is_lossy(protocol: Protocol) -> bool:
    """Whether a protocol may lose messages of a program's first communicator."""
    return isinstance(protocol, KernelProtocol) and protocol.lossy


class NoFirmware:
    """Firmware that does nothing, since the kernel does everything. counter_values: returns counters in place of a
    firmware's."""

    deadline = None

    def __init__(self, counter_values: Callable[[], Mapping[str, int]] = dict) -> None:
        self.counter_values = counter_values

    def receive(self, now: int, frame: bytes) -> None:
        """Do nothing: no frame arrives."""

    def on_doorbell(self, now: int, index: int) -> None:
        """Do nothing: no doorbell is rung."""

    def on_timer(self, now: int) -> None:
        """Do nothing: there is no deadline."""

    def pending_work(self) -> list[str]:
        return []

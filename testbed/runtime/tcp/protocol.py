"""Protocols of the kernel's own, which need no NIC's firmware: they run in namespaces only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from protocols.core.protocol import Protocol
from testbed.engine.loop import Loop


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelProtocol(Protocol):
    """ethertype: 0, for no frames. connect: awaited on every node, with its endpoint, its loop and all nodes' addresses by
    rank, before its device is asked for."""

    connect: Callable[[Any, Loop, Sequence[str]], Awaitable[object]]

"""The agent of a shared NIC that stands beside no run, for host processes that come and go: a process of its own, which a
cluster's steward starts, and starts again when it dies."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from protocols.core.firmware import Adapter
from protocols.core.protocol import Protocol
from testbed import registry
from testbed.errors import TestbedError, UnsupportedError
from testbed.kernel import syscalls
from testbed.runtime.shared.agent import Offer, SharedAgent
from testbed.runtime.shared.functions import MOST, address_of
from testbed.spec.layout import Layout

NAME: Final = "nic {}"
"""What its process is called."""

_NOBODY: Final = bytes(6)  # the address of a node without a NIC


def offers(layout: Layout, protocol: str, functions: int, spin: int = 0) -> Mapping[str, Offer]:
    """By node, what its agent offers; a node without a NIC has none. functions: host processes for each. Where the
    protocol's firmware serves one, a function is a NIC of its own to all others: the numbers of a node's functions follow
    one another, node by node. Where it serves several, they share a node's one NIC.

    Raises NotFoundError and UnsupportedError for what cannot be shared so.
    """
    known = registry.load(registry.PROTOCOLS, protocol)
    if not isinstance(known, Protocol) or known.apart is None:
        raise UnsupportedError(f"protocol {protocol} has no NICs that could be shared")
    most = MOST if known.apart.hosts == 1 else known.apart.hosts
    if not 1 <= functions <= most:
        raise UnsupportedError(f"{functions} functions of a NIC: 1 to {most}")
    hosts, functions = (1, functions) if known.apart.hosts == 1 else (functions, 1)
    owners = [bytes.fromhex(node.nics[0].mac.replace(":", "")) if node.nics else _NOBODY for node in layout.nodes]
    addresses = tuple(
        address_of(owner, function) if any(owner) else owner for owner in owners for function in range(functions)
    )
    real = [address for address in addresses if any(address)]
    if len(set(real)) < len(real):
        raise UnsupportedError(
            "two functions would have the same MAC address: let the NICs' addresses differ in the last bytes"
        )
    found = {}
    routed, ordered = layout.routed(), layout.keeps_order()
    for number, node in enumerate(layout.nodes):
        if node.nics:
            nic, first = node.nics[0], number * functions
            adapters = tuple(
                Adapter(first + function, addresses, nic.mtu, routed=node.name in routed, ordered=ordered)
                for function in range(functions)
            )
            found[node.name] = Offer(known.apart, known.ethertype, nic.name, adapters, hosts, spin)
    return found


def socket_of(directory: Path, node: str) -> Path:
    """Where a node's agent answers what anybody of the cluster's user asks. directory: the cluster's."""
    return directory / f"nic.{node}"


class StandingAgent:
    """Its life, in its process."""

    def __init__(self, offer: Offer, namespace: str, asked: Path) -> None:
        """namespace: the node's, for networks. asked: see `socket_of`."""
        self._offer = replace(offer, asked=asked)
        self._namespace = namespace

    def prepare(self) -> None:
        """It takes host processes from here on. Raises TestbedError, OSError."""
        syscalls.end_with_parent(signal.SIGKILL)
        handle = os.open(self._namespace, os.O_RDONLY | os.O_CLOEXEC)
        try:
            syscalls.setns(handle, syscalls.CLONE_NEWNET)
        finally:
            os.close(handle)
        try:
            self._agent = SharedAgent(self._offer)
        except ValueError as error:
            raise TestbedError(str(error)) from error

    def run(self) -> None:
        self._agent.run()

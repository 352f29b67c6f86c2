"""Standing agent of a shared NIC, for host processes that come and go independently of a run: a process that a cluster's
supervisor starts, and restarts when it dies. It outlives the supervisor, and restarts that in its turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from protocols.core.firmware import Adapter
from testbed import packages
from testbed.errors import TestbedError, UnsupportedError
from testbed.kernel import namespaces
from testbed.runtime.shared.agent import Offer, SharedAgent
from testbed.runtime.shared.functions import MAX
from testbed.runtime.supervision import Supervision
from testbed.spec.layout import Layout
from testbed.spec.placement import address_of

NAME: Final = "nic {}"
"""Name of its process, for a node."""

_NOBODY: Final = bytes(6)  # the address of a node without a NIC


def offers(layout: Layout, protocol: str, functions: int, spin: int = 0) -> Mapping[str, Offer]:
    """Make the offers of the agents by node; a node without a NIC has none. functions: host processes for each NIC.

    Where the protocol's firmware serves one host process, each function is a NIC of its own to the others, and functions are
    numbered consecutively, node by node. Where it serves several, they share the node's one NIC. Raises NotFoundError, and
    UnsupportedError for NICs that cannot be shared so.
    """
    known = packages.protocol(protocol)
    if known.split_driver is None:
        raise UnsupportedError(f"protocol {protocol} has no NICs that could be shared")
    most = MAX if known.split_driver.hosts == 1 else known.split_driver.hosts
    if not 1 <= functions <= most:
        raise UnsupportedError(f"{functions} functions of a NIC: 1 to {most}")
    hosts, functions = (1, functions) if known.split_driver.hosts == 1 else (functions, 1)
    owners = [bytes.fromhex(node.nics[0].mac.replace(":", "")) if node.nics else _NOBODY for node in layout.nodes]
    addresses = tuple(
        address_of(owner, function) if any(owner) else owner for owner in owners for function in range(functions)
    )
    real = [address for address in addresses if any(address)]
    if len(set(real)) < len(real):
        raise UnsupportedError(
            "two functions would have the same MAC address: let the NICs' addresses differ in the last bytes"
        )
    hosts_of = tuple(number - number % functions for number in range(len(addresses))) if functions > 1 else ()
    by_node = {}
    routed, ordered = layout.routed(), layout.keeps_order()
    ethertype = known.ethertype_of(layout.framings())
    for number, node in enumerate(layout.nodes):
        if node.nics:
            nic, first = node.nics[0], number * functions
            adapters = tuple(
                Adapter(
                    first + function, addresses, nic.mtu, routed=node.name in routed, ordered=ordered, hosts=hosts_of
                )
                for function in range(functions)
            )
            by_node[node.name] = Offer(known.split_driver, ethertype, nic.name, adapters, hosts, spin)
    return by_node


def socket_of(directory: Path, node: str) -> Path:
    """Return the path of the socket on which a node's agent answers queries of the cluster's user. directory: the
    cluster's."""
    return directory / f"nic.{node}"


class StandingAgent:
    """The standing agent, in its own process."""

    def __init__(self, offer: Offer, namespace: str, asked: Path, command: Sequence[str]) -> None:
        """namespace: path of the node's network namespace. asked: see `socket_of`. command: starts a supervisor."""
        self._command = command
        self._offer = replace(offer, asked=asked)
        self._namespace = namespace
        self._asked = asked

    def prepare(self) -> None:
        """Enter the node and accept host processes. Raises TestbedError, OSError."""
        namespaces.enter(self._namespace)
        try:
            self._agent = SharedAgent(self._offer)
            supervision = Supervision(self._asked.parent, self._command)
            self._agent.watch(supervision.fileno(), supervision.advance)
        except ValueError as error:
            raise TestbedError(str(error)) from error

    def run(self) -> None:
        self._agent.run()

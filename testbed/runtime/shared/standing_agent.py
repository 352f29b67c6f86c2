"""Standing agent of a shared NIC, for host processes that attach and detach independently of a run. A cluster's supervisor
starts it as a process, and restarts it when it dies. When the supervisor dies, the agent continues and starts a new
supervisor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from protocols.core.firmware import Adapter
from testbed import packages
from testbed.errors import TestbedError, UnsupportedError
from testbed.kernel import namespaces
from testbed.runtime.shared.agent import NicConfig, SharedAgent
from testbed.runtime.shared.functions import MAX_FUNCTIONS
from testbed.runtime.supervision import Supervision
from testbed.spec.layout import Layout
from testbed.spec.placement import address_of, require_distinct_addresses

NAME: Final = "nic {}"
"""Name of the process; the placeholder stands for the node."""

_NO_ADDRESS: Final = bytes(6)  # of a node without a NIC


def nic_configs(layout: Layout, protocol: str, functions: int, spin: int = 0) -> Mapping[str, NicConfig]:
    """Make the configurations of the shared NICs, by node; nodes without a NIC have none. functions: number of host
    processes of each NIC. spin: see `NicConfig`.

    If the protocol's firmware serves one host process, each host process gets a function, which appears as a separate
    NIC on the network; functions are numbered consecutively, node by node. If the firmware serves several host
    processes, they share one function. Raises NotFoundError for an unknown protocol, UnsupportedError if the protocol's
    NICs cannot be shared by `functions` host processes.
    """
    definition = packages.protocol(protocol)
    if definition.split_driver is None:
        raise UnsupportedError(f"protocol {protocol} does not support shared NICs")
    max_functions = MAX_FUNCTIONS if definition.split_driver.hosts == 1 else definition.split_driver.hosts
    if not 1 <= functions <= max_functions:
        raise UnsupportedError(f"a NIC must have 1 to {max_functions} functions, got {functions}")
    hosts, functions = (1, functions) if definition.split_driver.hosts == 1 else (functions, 1)
    owners = [bytes.fromhex(node.nics[0].mac.replace(":", "")) if node.nics else _NO_ADDRESS for node in layout.nodes]
    addresses = tuple(
        address_of(owner, function) if any(owner) else owner for owner in owners for function in range(functions)
    )
    suffixes = [f".{function}" for function in range(functions)] if functions > 1 else [""]
    require_distinct_addresses([node.name + suffix for node in layout.nodes for suffix in suffixes], addresses)
    first_local_ranks = tuple(number - number % functions for number in range(len(addresses))) if functions > 1 else ()
    names = tuple([node.name for node in layout.nodes for _ in range(functions)])
    configs = {}
    routed, ordered = layout.source_routed_nodes(), layout.keeps_order()
    ethertype = definition.ethertype_of(layout.framings())
    for number, node in enumerate(layout.nodes):
        if node.nics:
            nic, first = node.nics[0], number * functions
            adapters = tuple(
                Adapter(
                    first + function,
                    addresses,
                    nic.mtu,
                    routed=node.name in routed,
                    ordered=ordered,
                    hosts=first_local_ranks,
                    names=names,
                )
                for function in range(functions)
            )
            configs[node.name] = NicConfig(definition.split_driver, ethertype, nic.name, adapters, hosts, spin)
    return configs


def query_socket(directory: Path, node: str) -> Path:
    """Return the path of the socket on which a node's agent answers queries of commands. directory: the cluster's
    directory."""
    return directory / f"nic.{node}"


class StandingAgent:
    """The standing agent, in its own process."""

    def __init__(self, config: NicConfig, namespace: str, queries: Path, command: Sequence[str]) -> None:
        """namespace: path of the node's network namespace. queries: see `query_socket`. command: command line that starts a
        supervisor."""
        self._command = command
        self._config = replace(config, queries=queries)
        self._namespace = namespace
        self._directory = queries.parent

    def prepare(self) -> None:
        """Enter the node and accept host processes. Raises TestbedError, OSError, and SystemExit if the cluster is gone."""
        namespaces.enter(self._namespace)
        try:
            self._agent = SharedAgent(self._config)
            supervision = Supervision(self._directory, self._command)
            self._agent.watch(supervision.fileno(), supervision.advance)
        except ValueError as error:
            raise TestbedError(str(error)) from error

    def run(self) -> None:
        """Serve host processes until the process is ended."""
        self._agent.run()

"""The kinds of supervised services: the processes of the relay, and the agents of shared NICs."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Final

from testbed.cluster.records.state import Store
from testbed.cluster.services.services import FormerProcess
from testbed.errors import ConflictError, TestbedError, reason_of
from testbed.kernel import daemons, locks, namespaces, processes
from testbed.kernel.filesystem import remove_file
from testbed.kernel.netlink import RouteSocket
from testbed.kernel.rtnl_dump import counters
from testbed.runtime.relay.orders import Orders, RelayPaths
from testbed.runtime.supervision import service_keys, service_lock

if TYPE_CHECKING:
    from testbed.runtime.relay.process import Process
    from testbed.runtime.shared.agent import NicConfig

RELAY_NAME: Final = "testbed-relay"
LOG: Final = "processes.log"
"""Name of the log of unexpected errors of services, in the cluster's directory."""

_RELAY: Final = "relay"
_NIC: Final = "nic"


def supervisor_command(store: Store, cluster: str) -> list[str]:
    """Return the command line by which a service starts a new supervisor."""
    return [sys.executable, "-m", "testbed.cluster.services.supervisor", str(store.root), cluster]


def _former(directory: Path, kind: str) -> dict[str, FormerProcess]:
    """Return the services of a kind that have been started and not ended, by key."""
    processes_by_key = {}
    for key in service_keys(directory, kind):
        path = service_lock(directory, kind, key)
        specification, pid = locks.read_note(path), locks.holder(path)
        if specification or pid:
            processes_by_key[key] = FormerProcess(processes.identity(pid) if pid else None, specification)
    return processes_by_key


class RelayProcesses:
    """The relay's processes, by number. Implements `services.Kind`."""

    word = "relay"

    def __init__(self, store: Store, cluster: str, route: RouteSocket) -> None:
        """route: a socket of the wire namespace."""
        self._paths = RelayPaths(store.directory(cluster))
        self._command = supervisor_command(store, cluster)
        self._route = route

    def required(self) -> Mapping[int, object]:
        orders = self._paths.read_orders() or Orders(0)
        return dict.fromkeys(orders.numbers(), RELAY_NAME)

    def former(self) -> Mapping[int, FormerProcess]:
        return {int(key): process for key, process in _former(self._paths.directory, _RELAY).items()}

    def start(self, key: int) -> processes.Identity:
        from testbed.runtime.relay.process import Process  # imports the relay's code, which few supervisors need

        relay: list[Process] = []  # made in the child
        locks.make(self._lock(key))

        def prepare() -> None:
            lock = locks.Lock(self._lock(key))
            relay.append(Process(self._paths, key, self._command))
            relay[0].prepare()
            lock.note(RELAY_NAME)

        return daemons.start(RELAY_NAME, (), prepare, lambda: relay[0].run(), str(self._paths.directory / LOG))

    def clean_up(self, key: int) -> None:
        locks.clear(self._lock(key))
        remove_file(self._paths.tallies(key))

    def _lock(self, key: int) -> Path:
        return service_lock(self._paths.directory, _RELAY, key)

    def event_fields(self, key: int) -> Mapping[str, object]:  # noqa: ARG002  events do not tell relay processes apart
        return {}

    def read_counts(self, key: int) -> Mapping[str, int]:
        """Read the number of frames that no protocol accepted, for each interface on which the process receives.

        The kernel counts every frame for another host, whether the relay has forwarded it or not. Only the increase between
        the death of a relay process and the start of the next is meaningful.
        """
        orders = self._paths.read_orders() or Orders(0)
        names = {name for link in orders.share(key).links for name in link.receive_interfaces}
        return {name: counts.rx_unclaimed for name, counts in counters(self._route, names).items()}

    def losses(self, at_death: Mapping[str, int], at_restart: Mapping[str, int]) -> Mapping[str, object]:
        return {
            "lost": sum(max(0, count - at_death[name]) for name, count in at_restart.items() if name in at_death),
            "also_lost": "those that the dead process held or had not read",
            "counts": "go on",
        }


@dataclass(frozen=True, slots=True)
class _Agent:
    """A required agent. namespace: path of the node's namespace. inode: its inode, which changes when the namespace is
    replaced."""

    config: NicConfig
    namespace: str
    inode: int

    @property
    def digest(self) -> str:
        """A digest of the agent's settings, equal in all processes."""
        config = self.config
        settings = (
            config.ethertype, config.device, config.adapters, config.hosts, config.spin, config.heap, self.inode,
        )  # fmt: skip
        return blake2b(repr(settings).encode(), digest_size=16).hexdigest()


class Agents:
    """The agents of shared NICs, by node. Implements `services.Kind`."""

    word = "NIC agent"

    def __init__(self, store: Store, cluster: str) -> None:
        self._store = store
        self._cluster = cluster

    def required(self) -> Mapping[str, str]:
        return {name: agent.digest for name, agent in self._required_agents().items()}

    def former(self) -> Mapping[str, FormerProcess]:
        return _former(self._store.directory(self._cluster), _NIC)

    def _required_agents(self) -> Mapping[str, _Agent]:
        state = self._store.read(self._cluster)
        if state is None or state.nics is None or state.phase == "removing":
            return {}
        from testbed.runtime.shared import standing_agent  # imports the agent's code, which most clusters do not need

        nics = state.nics
        configs = standing_agent.nic_configs(state.layout, nics.protocol, nics.functions, nics.spin)
        paths = {name: state.namespaces.get(name, "") for name in configs}
        return {
            name: _Agent(config, paths[name], os.stat(paths[name]).st_ino)
            for name, config in configs.items()
            if namespaces.is_namespace(paths[name])
        }

    def start(self, key: str) -> processes.Identity:
        from testbed.runtime.shared import standing_agent

        required, directory = self._required_agents().get(key), self._store.directory(self._cluster)
        if required is None:  # the state has changed since `required`
            raise ConflictError(f"{key}: the sharing of its NIC has ended")
        agent = standing_agent.StandingAgent(
            required.config,
            required.namespace,
            standing_agent.query_socket(directory, key),
            supervisor_command(self._store, self._cluster),
        )
        name = standing_agent.NAME.format(key)
        locks.make(self._lock(key))

        def prepare() -> None:
            lock = locks.Lock(self._lock(key))
            if key not in self._required_agents():
                raise ConflictError(f"{key}: the sharing of its NIC has ended")
            agent.prepare()
            lock.note(required.digest)

        try:
            return daemons.start(name, (), prepare, agent.run, str(directory / LOG))
        except (TestbedError, OSError) as error:
            reason = reason_of(error) if isinstance(error, OSError) else str(error)
            raise ConflictError(f"{key}: its NIC cannot be shared: {reason}") from error

    def clean_up(self, key: str) -> None:
        locks.clear(self._lock(key))

    def _lock(self, key: str) -> Path:
        return service_lock(self._store.directory(self._cluster), _NIC, key)

    def event_fields(self, key: str) -> Mapping[str, object]:
        return {"node": key}

    def read_counts(self, key: str) -> Mapping[str, int]:  # noqa: ARG002  frames for a NIC without an agent are not counted
        return {}

    def losses(self, at_death: Mapping[str, int], at_restart: Mapping[str, int]) -> Mapping[str, object]:  # noqa: ARG002
        return {}

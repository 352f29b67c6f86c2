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
from testbed.kernel.rtnl_dump import interfaces
from testbed.runtime.relay.orders import Orders, RelayPaths
from testbed.runtime.relay.process import Process
from testbed.runtime.supervision import service_keys, service_lock

if TYPE_CHECKING:
    from testbed.runtime.shared.agent import Offer

RELAY_NAME: Final = "testbed-relay"
LOG: Final = "processes.log"
"""The log of unexpected errors of services, in the cluster's directory."""

_RELAY: Final = "relay"
_NIC: Final = "nic"


def command(store: Store, cluster: str) -> list[str]:
    """The command line with which a service starts a new supervisor."""
    return [sys.executable, "-m", "testbed.cluster.services.supervisor", str(store.root), cluster]


def _known(directory: Path, kind: str) -> dict[str, FormerProcess]:
    """The services of a kind that have not been ended, by key."""
    processes_by_key = {}
    for key in service_keys(directory, kind):
        path = service_lock(directory, kind, key)
        what, pid = locks.read_note(path), locks.holder(path)
        if what or pid:
            processes_by_key[key] = FormerProcess(processes.identity(pid) if pid else None, what)
    return processes_by_key


class RelayProcesses:
    """The processes of the relay that have links to carry, by number. Implements `services.Kind`."""

    word = "relay"

    def __init__(self, store: Store, cluster: str, route: RouteSocket) -> None:
        """route: a socket of the wire namespace."""
        self._places = RelayPaths(store.directory(cluster))
        self._command = command(store, cluster)
        self._route = route

    def wanted(self) -> Mapping[int, object]:
        orders = self._places.read_orders() or Orders(0)
        return {number: RELAY_NAME for number in range(orders.processes) if orders.share(number).links}

    def known(self) -> Mapping[int, FormerProcess]:
        return {int(key): process for key, process in _known(self._places.directory, _RELAY).items()}

    def start(self, key: int) -> processes.Identity:
        made: list[Process] = []
        locks.make(self._lock(key))

        def prepare() -> None:
            lock = locks.Lock(self._lock(key))
            made.append(Process(self._places, key, self._command))
            made[0].prepare()
            lock.note(RELAY_NAME)

        return daemons.start(RELAY_NAME, (), prepare, lambda: made[0].run(), str(self._places.directory / LOG))

    def forget(self, key: int) -> None:
        locks.clear(self._lock(key))
        remove_file(self._places.tallies(key))

    def _lock(self, key: int) -> Path:
        return service_lock(self._places.directory, _RELAY, key)

    def named(self, key: int) -> Mapping[str, object]:  # noqa: ARG002  there is one relay, however many processes it is
        return {}

    def seen(self, key: int) -> Mapping[str, int]:
        """For each interface on which this process receives, the number of frames that no protocol took.

        The count rises with every frame for another address, carried or not. Only its rise between the death of a relay
        process and the start of the next is meaningful.
        """
        orders = self._places.read_orders() or Orders(0)
        ends = {tap for link in orders.share(key).links for tap in link.heard}
        return {
            interface.name: interface.counters.rx_unclaimed
            for interface in interfaces(self._route)
            if interface.name in ends
        }

    def missed(self, died: Mapping[str, int], back: Mapping[str, int]) -> Mapping[str, object]:
        return {
            "lost": sum(max(0, count - died[end]) for end, count in back.items() if end in died),
            "also_lost": "what the one that died held and what waited in its sockets",
            "counts": "go on",
        }


@dataclass(frozen=True, slots=True)
class _Agent:
    """A wanted agent. inode: of the node's namespace, which changes when the namespace is replaced."""

    offer: Offer
    namespace: str
    inode: int

    @property
    def digest(self) -> str:
        """A digest that identifies the agent, also across processes."""
        offer = self.offer
        settings = (offer.ethertype, offer.device, offer.adapters, offer.hosts, offer.spin, offer.heap, self.inode)
        return blake2b(repr(settings).encode(), digest_size=16).hexdigest()


class Agents:
    """The agents of shared NICs, by node. Implements `services.Kind`."""

    word = "NIC agent"

    def __init__(self, store: Store, cluster: str) -> None:
        self._store = store
        self._cluster = cluster

    def wanted(self) -> Mapping[str, str]:
        return {name: agent.digest for name, agent in self._wanted().items()}

    def known(self) -> Mapping[str, FormerProcess]:
        return _known(self._store.directory(self._cluster), _NIC)

    def _wanted(self) -> Mapping[str, _Agent]:
        state = self._store.read(self._cluster)
        if state is None or state.nics is None or state.phase == "removing":
            return {}
        from testbed.runtime.shared import standing_agent  # imports the agent's code, which most clusters do not need

        nics = state.nics
        offers = standing_agent.offers(state.layout, nics.protocol, nics.functions, nics.spin)
        places = {name: state.namespaces.get(name, "") for name in offers}
        return {
            name: _Agent(offer, places[name], os.stat(places[name]).st_ino)
            for name, offer in offers.items()
            if namespaces.is_namespace(places[name])
        }

    def start(self, key: str) -> processes.Identity:
        from testbed.runtime.shared import standing_agent

        wanted, directory = self._wanted()[key], self._store.directory(self._cluster)
        agent = standing_agent.StandingAgent(
            wanted.offer,
            wanted.namespace,
            standing_agent.socket_of(directory, key),
            command(self._store, self._cluster),
        )
        name = standing_agent.NAME.format(key)
        locks.make(self._lock(key))

        def prepare() -> None:
            lock = locks.Lock(self._lock(key))
            if key not in self._wanted():
                raise ConflictError(f"{key}: its NIC is not to be shared")
            agent.prepare()
            lock.note(wanted.digest)

        try:
            return daemons.start(name, (), prepare, agent.run, str(directory / LOG))
        except (TestbedError, OSError) as error:
            reason = reason_of(error) if isinstance(error, OSError) else str(error)
            raise ConflictError(f"{key}: its NIC cannot be shared: {reason}") from error

    def forget(self, key: str) -> None:
        locks.clear(self._lock(key))

    def _lock(self, key: str) -> Path:
        return service_lock(self._store.directory(self._cluster), _NIC, key)

    def named(self, key: str) -> Mapping[str, object]:
        return {"node": key}

    def seen(self, key: str) -> Mapping[str, int]:  # noqa: ARG002  without an agent, frames that arrive at a NIC are not counted
        return {}

    def missed(self, died: Mapping[str, int], back: Mapping[str, int]) -> Mapping[str, object]:  # noqa: ARG002
        return {}

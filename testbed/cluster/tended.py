"""What a steward tends: the processes of the relay, and the agents of shared NICs."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from testbed.cluster.state import Store
from testbed.errors import ConflictError, TestbedError, reason_of
from testbed.kernel import daemons, namespaces, processes, syscalls
from testbed.kernel.netlink import RouteSocket
from testbed.kernel.survey import interfaces
from testbed.runtime.orders import Orders, Places
from testbed.runtime.process import Process

if TYPE_CHECKING:
    from testbed.runtime.shared.agent import Offer

RELAY_NAME: Final = "testbed-relay"
LOG: Final = "processes.log"
"""Where they write what they did not expect, in the cluster's directory."""


class RelayProcesses:
    """Of the relay, by number: those that have links to carry. Implements `tending.Kind`."""

    word = "relay"

    def __init__(self, places: Places, route: RouteSocket) -> None:
        """route: of the wire namespace."""
        self._places = places
        self._route = route

    def wanted(self) -> Mapping[int, object]:
        orders = self._places.read_orders() or Orders(0)
        return {number: None for number in range(orders.processes) if orders.share(number).links}

    def start(self, key: int) -> processes.Identity:
        made: list[Process] = []

        def prepare() -> None:
            syscalls.end_with_parent(signal.SIGKILL)
            made.append(Process(self._places, key))
            made[0].prepare()

        return daemons.start(RELAY_NAME, (), prepare, lambda: made[0].run(), str(self._places.directory / LOG))

    def named(self, key: int) -> Mapping[str, object]:  # noqa: ARG002  there is one relay, however many processes it is
        return {}

    def seen(self, key: int) -> Mapping[str, int]:
        """By free end of this process's links, the frames that came in and that no protocol took. It rises with every
        frame for another's address, carried or not: it tells something only between a relay's end and the next one's
        beginning."""
        orders = self._places.read_orders() or Orders(0)
        ends = {end for link in orders.share(key).links for end in (link.a, link.b)}
        return {one.name: one.counters.rx_unclaimed for one in interfaces(self._route) if one.name in ends}

    def missed(self, died: Mapping[str, int], back: Mapping[str, int]) -> Mapping[str, object]:
        return {
            "lost": sum(max(0, count - died[end]) for end, count in back.items() if end in died),
            "also_lost": "what the one that died held and what waited in its sockets",
        }


@dataclass(frozen=True, slots=True)
class _Agent:
    """inode: the node's namespace, which may be another one by now."""

    offer: Offer
    namespace: str
    inode: int


class Agents:
    """Of shared NICs, by node. Implements `tending.Kind`."""

    word = "NIC agent"

    def __init__(self, store: Store, cluster: str) -> None:
        self._store = store
        self._cluster = cluster

    def wanted(self) -> Mapping[str, _Agent]:
        state = self._store.read(self._cluster)
        if state is None or state.nics is None:
            return {}
        from testbed.runtime.shared import standing  # with all that an agent is, which most clusters do not need

        nics = state.nics
        offers = standing.offers(state.layout, nics.protocol, nics.functions, nics.spin)
        places = {name: state.namespaces.get(name, "") for name in offers}
        return {
            name: _Agent(offer, places[name], os.stat(places[name]).st_ino)
            for name, offer in offers.items()
            if namespaces.is_namespace(places[name])
        }

    def start(self, key: str) -> processes.Identity:
        from testbed.runtime.shared import standing

        one, directory = self.wanted()[key], self._store.directory(self._cluster)
        agent = standing.StandingAgent(one.offer, one.namespace, standing.socket_of(directory, key))
        name = standing.NAME.format(key)
        try:
            return daemons.start(name, (), agent.prepare, agent.run, str(directory / LOG))
        except (TestbedError, OSError) as error:
            reason = reason_of(error) if isinstance(error, OSError) else str(error)
            raise ConflictError(f"{key}: its NIC cannot be shared: {reason}") from error

    def named(self, key: str) -> Mapping[str, object]:
        return {"node": key}

    def seen(self, key: str) -> Mapping[str, int]:  # noqa: ARG002  nobody counts what comes to a NIC without an agent
        return {}

    def missed(self, died: Mapping[str, int], back: Mapping[str, int]) -> Mapping[str, object]:  # noqa: ARG002
        return {}

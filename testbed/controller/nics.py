"""Shared NICs of a cluster that is up, for scripts and tests that attach to them::

    with share_nics(cluster, functions=2):
        ...  # 'testbed exec n1 -- python my.py', twice: each has a function of n1's NIC to itself

A function is a NIC of its own to all others: the ranks of a node's functions follow one another, node by node.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from protocols.core.firmware import Adapter
from testbed.cluster import programs as in_nodes
from testbed.cluster.running import RunningCluster
from testbed.cluster.state import Store
from testbed.controller.agents import addresses_of, offloading
from testbed.controller.running import protocol_of
from testbed.errors import NotFoundError, UnsupportedError
from testbed.runtime.nodes.places import Orders, Place
from testbed.runtime.shared.functions import MOST, address_of
from testbed.runtime.shared.standing import StandingNics


@contextmanager
def share_nics(
    cluster: RunningCluster, protocol: str = "emp", *, functions: int = 1, spin: int = 0, logs: str | Path = ""
) -> Iterator[StandingNics]:
    """Share every node's first NIC until the end of the block: an agent each, which is started again if it dies.

    functions: how many host processes a node may have. spin: nanoseconds that agents look for something before sleeping.
    logs: a directory for what they say. Raises UnsupportedError for a protocol that cannot be shared, ConflictError where a
    NIC is in use so already.
    """
    known = protocol_of(protocol, "live")
    if known.apart is None:
        raise UnsupportedError(f"protocol {protocol} has no NICs that could be shared")
    if not 1 <= functions <= MOST:
        raise UnsupportedError(f"{functions} functions of a NIC: 1 to {MOST}")
    store, state = Store(), cluster.state
    owners = addresses_of(state.layout)
    addresses = tuple(
        address_of(owner, function) if any(owner) else owner for owner in owners for function in range(functions)
    )
    real = [address for address in addresses if any(address)]
    if len(set(real)) < len(real):
        raise UnsupportedError(
            "two functions would have the same MAC address: let the NICs' addresses differ in the last bytes"
        )
    places = []
    for number, node in enumerate(state.layout.nodes):
        if not node.nics:
            continue
        first = number * functions
        own = tuple(Adapter(first + function, addresses, node.nics[0].mtu) for function in range(functions))
        surroundings = in_nodes.surroundings(store, state, node.name)
        places.append(Place(node.name, surroundings, node.nics[0].name, own[0], functions=own))
    if not places:
        raise NotFoundError(f"no node of cluster {cluster.name} has a NIC")
    offloads_then = partial(offloading, store, cluster.name)
    orders = Orders(
        known.plug, known.ethertype, tuple(places), {}, spin=spin, offloading=offloads_then, shared=known.apart
    )
    with tempfile.TemporaryDirectory(prefix="testbed-nics-") as temporary:
        directory = Path(logs or temporary).absolute()
        directory.mkdir(parents=True, exist_ok=True)
        with StandingNics(orders, directory, store.directory(cluster.name)) as standing:
            yield standing

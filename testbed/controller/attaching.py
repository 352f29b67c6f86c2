"""The NIC of the node in which this process runs, for a script that was started there
(``testbed exec n1 -- python my.py``, ``testbed run star-4 --on n1 'python my.py' --on n2 'python my.py'``)::

    from testbed import attach

    async def greet(comm, node):
        if comm.rank == 0:
            await comm.send(f"hello from {node.name}", 1, tag=7)
        elif comm.rank == 1:
            print(await comm.recv(source=0, tag=7))

    with attach("emp") as nic:
        nic.run(greet)

The firmware works while `run` does, and for a moment when the block ends: whoever waits for an acknowledgement gets it.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from protocols.core.firmware import Adapter
from protocols.mpi.comm import Comm
from testbed.cluster import programs
from testbed.cluster.state import State, Store
from testbed.controller.agents import addresses_of, offloading
from testbed.controller.living import WallClock
from testbed.controller.running import protocol_of
from testbed.errors import ConflictError, NotFoundError, UnsupportedError
from testbed.kernel import offloads
from testbed.kernel.offloads import Offloads
from testbed.runtime.incarnations import incarnation
from testbed.runtime.nodes.node import assembled
from testbed.runtime.nodes.places import Here, Orders
from testbed.runtime.sockets.protocol import KernelProtocol
from testbed.workloads.form import Node

if TYPE_CHECKING:
    from testbed.engine.tasks import Work
    from testbed.kernel.frame_socket import FrameSocket
    from testbed.runtime.nodes.driver import Driver

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_QUIET: Final = 0.1
"""Seconds without a frame after which nobody seems to want anything of a NIC that is given up."""

_LINGER: Final = 2.0
"""Seconds after which it is given up even so."""


class Script(Protocol[T_co]):
    """``async def script(comm, node)``, as a workload's."""

    def __call__(self, comm: Comm, node: Node, /) -> Work[T_co]: ...


class AttachedNic:
    """comm: all nodes of the cluster, as MPI's communicator; a rank is a node's place in the description. node: its name and
    clock; its rows are printed, a line of JSON each."""

    def __init__(self, comm: Comm, node: Node, driver: Driver, wire: FrameSocket) -> None:
        self.comm = comm
        self.node = node
        self._driver = driver
        self._wire = wire

    def run(self, script: Script[T]) -> T:
        """Run it to its end on this NIC: what it returns, or raises."""
        return self._driver.loop.complete(script(self.comm, self.node), "script")

    def linger(self) -> None:
        """Work on until no frame has come for a moment."""
        loop, end = self._driver.loop, time.monotonic() + _LINGER
        before = -1
        while self._wire.taken != before and time.monotonic() < end:
            before = self._wire.taken
            loop.complete(loop.sleep(round(_QUIET * 1e9)))
            self._wire.look()


@contextmanager
def attach(protocol: str = "emp", *, spin: int = 0) -> Iterator[AttachedNic]:
    """This node's first NIC, with a protocol's firmware in this process, until the end of the block.

    spin: nanoseconds to look for a frame before sleeping. Raises NotFoundError outside a cluster's node, ConflictError where
    another process has the NIC, UnsupportedError for a node without one.
    """
    known = protocol_of(protocol, "live")
    if isinstance(known, KernelProtocol):
        raise UnsupportedError(f"{protocol} is the kernel's own: a script has sockets for that")
    store, state, name = _here()
    nodes = state.layout.nodes
    number = [node.name for node in nodes].index(name)
    node = nodes[number]
    if not node.nics:
        raise UnsupportedError(f"node {name} of cluster {state.name} has no NIC")
    adapter = Adapter(number, addresses_of(state.layout), node.nics[0].mtu, incarnation())
    device = node.nics[0].name
    numbers = {node.name: number for number, node in enumerate(nodes)}
    orders = Orders(known.plug, known.ethertype, (), {}, numbers, spin)
    with ExitStack() as stack:
        stack.enter_context(_alone(device, name))
        stack.enter_context(_whole_frames(store, state, name, device))
        wire, _, agent, driver = assembled(orders, device, adapter)
        stack.callback(wire.socket.close)
        stack.callback(driver.close)
        here = Here(name, number, numbers, driver.loop)
        endpoint = known.device(agent.host)
        told = Node(name, list(numbers), 0, WallClock(here), Comm(endpoint, 1), _print_row)
        attached = AttachedNic(Comm(endpoint), told, driver, wire)
        yield attached
        attached.linger()


def _here() -> tuple[Store, State, str]:
    """The node that this process is in."""
    directory, name = os.environ.get(programs.STATE, ""), os.environ.get(programs.NODE, "")
    if not directory or not name:
        raise NotFoundError(
            "this process is in no node of a cluster: start it with 'testbed exec NODE -- python SCRIPT'"
        )
    path = Path(directory)
    store = Store(path.parent)
    state = store.read(path.name)
    if state is None:
        raise NotFoundError(f"cluster {path.name} is not up any more")
    programs.node_of(state, name)
    return store, state, name


@contextmanager
def _alone(device: str, node: str) -> Iterator[None]:
    """No other process of the node has the NIC. An abstract name belongs to the network namespace, and ends with us."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as mark:
        try:
            mark.bind(f"\0testbed/nic/{device}")
        except OSError:
            raise ConflictError(f"another process has attached to the NIC {device} of {node}") from None
        yield


@contextmanager
def _whole_frames(store: Store, state: State, node: str, device: str) -> Iterator[None]:
    """The kernel's own frames on the NIC are whole, as the firmware's are."""
    offloads.allow(device, Offloads.NONE)
    try:
        yield
    finally:
        with offloading(store, state.name) as wanted:
            offloads.allow(device, wanted.get(node, Offloads.NONE))


def _print_row(row: Mapping[str, object]) -> None:
    sys.stdout.write(json.dumps(row) + "\n")
    sys.stdout.flush()

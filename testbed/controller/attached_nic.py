"""The NIC of the node in which this process runs, for a script started there (``testbed exec n1 -- python my.py``,
``testbed run star-4 --on n1 'python my.py' --on n2 'python my.py'``)::

    from testbed import attach

    async def greet(comm, node):
        if comm.rank == 0:
            await comm.send(f"hello from {node.name}", 1, tag=7)
        elif comm.rank == 1:
            print(await comm.recv(source=0, tag=7))

    with attach("emp") as nic:
        nic.run(greet)

A script that uses mpi4py's names can do so within the block::

    from testbed.mpi import MPI

    with attach():
        MPI.COMM_WORLD.send("hello", dest=1)

The firmware runs only within `run`. When the block ends, it continues briefly, so that a peer that still waits for an
acknowledgement receives it. The firmware of a shared NIC (`testbed.controller.shared_nics`) runs all the time, and several
processes of a node can each attach to one of its functions.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from protocols.core.firmware import Adapter, Host
from protocols.core.protocol import Protocol as NicProtocol
from protocols.mpi.comm import Comm
from testbed.cluster.access import node_programs
from testbed.cluster.records.state import State, Store
from testbed.controller.runs.agents import locked_offloads
from testbed.controller.runs.live_execution import WallClock
from testbed.controller.runs.runner import protocol_of
from testbed.engine.tasks import Work
from testbed.errors import ConflictError, NotFoundError, UnsupportedError
from testbed.kernel import offloads
from testbed.kernel.frame_socket import FrameSocket
from testbed.kernel.offloads import Offloads
from testbed.mpi.attached_world import AttachedRank, bind_names
from testbed.registry import DEFAULT_PROTOCOL
from testbed.runtime.nodes.inline_driver import Driver
from testbed.runtime.nodes.node_process import build_inline_nic
from testbed.runtime.nodes.run_orders import ProgramNode, RunOrders
from testbed.runtime.nodes.veth_port import incarnation
from testbed.runtime.shared.attach_protocol import NoAgentError
from testbed.runtime.shared.attachment import Attachment, HostDriver
from testbed.runtime.sockets.protocol import KernelProtocol
from testbed.spec.placement import addresses_of, nodes_of, one_rank_per_node
from testbed.workloads.form import Node

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_IDLE_SECONDS: Final = 0.1
"""Seconds without a received frame after which a NIC is idle, and is released."""

_LINGER_SECONDS: Final = 2.0
"""Seconds after which a NIC that still receives frames is released, unless its host library waits for a peer."""

_RELEASE_TIMEOUT: Final = 10.0
"""Seconds after which a NIC is released in any case. A peer's script may take that long to start."""


class Script(Protocol[T_co]):
    """Coroutine function of a script: ``async def script(comm, node)``, as for a workload."""

    def __call__(self, comm: Comm, node: Node, /) -> Work[T_co]: ...


class AttachedNic:
    """A NIC with its protocol's library and communicator.

    comm: all nodes of the cluster, as an MPI communicator. Ranks are in the order of nodes in the description; where
    several processes share a NIC, each of its functions has a rank. node: name and clock; rows that it reports are
    printed, one line of JSON each. host: the protocol's host library, for operations that MPI does not have. `comm` uses
    this library, too; on AM-II it occupies the first endpoint.
    """

    def __init__(
        self, comm: Comm, node: Node, host: Host, driver: Driver | HostDriver, count_received: Callable[[], int]
    ) -> None:
        """count_received: returns the number of frames received so far."""
        self.comm = comm
        self.host = host
        self.node = node
        self._driver = driver
        self._count_received = count_received

    def run(self, script: Script[T]) -> T:
        """Run a script to its end on this NIC and return its result; raises its exception."""
        return self._driver.loop.complete(script(self.comm, self.node), "script")

    def complete(self, work: Coroutine[Any, None, T]) -> T:
        """Run a coroutine of this NIC's communicator to its end."""
        if self._driver.loop.running:
            work.close()
            raise RuntimeError(
                "a blocking MPI call within 'nic.run' would block its event loop: await the communicator's methods"
            )
        return self._driver.loop.complete(work)

    def linger(self) -> None:
        """Run the firmware until no frame has arrived for _IDLE_SECONDS, for at most _LINGER_SECONDS; longer while the host
        library waits for a peer, such as for an acknowledgement, for at most _RELEASE_TIMEOUT."""
        loop, started = self._driver.loop, time.monotonic()
        previous, received = -1, self._count_received()
        while True:
            elapsed = time.monotonic() - started
            if (received == previous or elapsed > _LINGER_SECONDS) and (
                not self.host.pending_work() or elapsed > _RELEASE_TIMEOUT
            ):
                return
            previous = received
            loop.complete(self._pause())
            received = self._count_received()

    async def _pause(self) -> None:
        await self._driver.loop.sleep(round(_IDLE_SECONDS * 1e9))


@contextmanager
def attach(protocol: str = DEFAULT_PROTOCOL, *, spin: int = 0, function: int | None = None) -> Iterator[AttachedNic]:
    """Attach to this node's first NIC until the end of the block. The protocol's firmware runs in this process; if the NIC
    is shared, attach to one of its functions instead.

    spin: nanoseconds to poll for a frame before sleeping. function: number of a shared NIC's function; by default any free
    one. Raises NotFoundError outside a cluster's node, and for `function` of a NIC that is not shared; ConflictError if
    another process is attached to the NIC, AttachError if other processes are attached to all of its functions,
    UnsupportedError for a node without a NIC, and for a kernel protocol.
    """
    nic_protocol = protocol_of(protocol, "live")
    if isinstance(nic_protocol, KernelProtocol):
        raise UnsupportedError(f"protocol {protocol} runs in the kernel, not on a NIC: use its sockets in the script")
    store, state, name = _current_node()
    nodes = state.layout.nodes
    number = [node.name for node in nodes].index(name)
    node = nodes[number]
    if not node.nics:
        raise UnsupportedError(f"node {name} of cluster {state.name} has no NIC")
    device = node.nics[0].name
    layout = state.layout
    ethertype = nic_protocol.ethertype_of(layout.framings())
    shared = _attachment(device, nic_protocol, ethertype, function)
    if shared is not None:
        with closing(shared):
            yield from _attach_shared(shared, nic_protocol, [node.name for node in nodes], name, spin)
        return
    if function is not None:
        raise NotFoundError(
            f"the NIC of node {name} is not shared: it has no function {function}; leave 'function' out"
        )
    adapter = Adapter(
        number,
        addresses_of(layout, one_rank_per_node(layout)),
        node.nics[0].mtu,
        incarnation(),
        routed=name in layout.source_routed_nodes(),
        ordered=layout.keeps_order(),
        names=nodes_of(one_rank_per_node(layout)),
    )
    numbers = {node.name: number for number, node in enumerate(nodes)}
    orders = RunOrders(nic_protocol.plug, ethertype, (), {}, numbers, spin)
    with ExitStack() as stack:
        stack.enter_context(_claim_nic(device, name))
        stack.enter_context(_without_offloads(store, state, name, device))
        wire, _, agent, driver = build_inline_nic(orders, device, adapter)
        stack.callback(wire.close)
        stack.callback(driver.close)
        program_node = ProgramNode(name, number, numbers, driver.loop)
        mpi_device = nic_protocol.device(agent.host)
        rank_node = Node(name, list(numbers), 0, WallClock(program_node), Comm(mpi_device, 1), _print_row)
        count_received = partial(_count_received, wire)
        yield from _with_mpi_names(AttachedNic(Comm(mpi_device), rank_node, agent.host, driver, count_received))


def _attachment(device: str, nic_protocol: NicProtocol, ethertype: int, function: int | None) -> Attachment | None:
    """Attach to a function of a shared NIC; None where the NIC is not shared."""
    if nic_protocol.split_driver is None:
        return None
    try:
        return Attachment(device, ethertype, nic_protocol.split_driver, function)
    except NoAgentError:
        return None


def _attach_shared(
    nic: Attachment, nic_protocol: NicProtocol, nodes: list[str], name: str, spin: int
) -> Iterator[AttachedNic]:
    """Attach to a function of a shared NIC. nodes: names of all nodes. name: name of this node."""
    driver = HostDriver(nic, nic.host, spin)
    with closing(driver):
        mpi_device = nic_protocol.device(nic.host)
        functions = mpi_device.size // len(nodes)
        names = nodes if functions == 1 else [f"{node}.{function}" for node in nodes for function in range(functions)]
        program_node = ProgramNode(name, mpi_device.rank, {name: rank for rank, name in enumerate(names)}, driver.loop)
        rank_node = Node(names[mpi_device.rank], names, 0, WallClock(program_node), Comm(mpi_device, 1), _print_row)
        yield from _with_mpi_names(
            AttachedNic(Comm(mpi_device), rank_node, nic.host, driver, lambda: int(nic.report()["taken"]))
        )


def _with_mpi_names(attached: AttachedNic) -> Iterator[AttachedNic]:
    """Bind MPI's names to the NIC for the block; finalize and linger at its end."""
    rank = AttachedRank(attached.comm, attached.complete, attached.node.now, attached.node.name)
    with bind_names(rank):
        yield attached
        rank.finalize()
        attached.linger()
        rank.finalize()


def _count_received(wire: FrameSocket) -> int:
    wire.update_counts()
    return wire.received


def _current_node() -> tuple[Store, State, str]:
    """Find the node that this process is in."""
    directory, name = os.environ.get(node_programs.STATE, ""), os.environ.get(node_programs.NODE, "")
    if not directory or not name:
        raise NotFoundError(
            "this process does not run in a node of a cluster: start it with 'testbed exec NODE -- python SCRIPT'"
        )
    path = Path(directory)
    store = Store(path.parent)
    state = store.read(path.name)
    if state is None:
        raise NotFoundError(f"cluster {path.name} is no longer up")
    node_programs.node_of(state, name)
    return store, state, name


@contextmanager
def _claim_nic(device: str, node: str) -> Iterator[None]:
    """Claim the NIC for this process. An abstract socket name is local to the network namespace and is released when the
    process ends."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as claim:
        try:
            claim.bind(f"\0testbed/nic/{device}")
        except OSError:
            raise ConflictError(f"another process is attached to the NIC {device} of node {node}") from None
        yield


@contextmanager
def _without_offloads(store: Store, state: State, node: str, device: str) -> Iterator[None]:
    """Turn off the kernel's segmentation and checksum offloads on the NIC for the block, as the firmware has none."""
    offloads.allow(device, Offloads.NONE)
    try:
        yield
    finally:
        with locked_offloads(store, state.name) as permitted:
            offloads.allow(device, permitted.get(node, Offloads.NONE))


def _print_row(row: Mapping[str, object]) -> None:
    sys.stdout.write(json.dumps(row) + "\n")
    sys.stdout.flush()

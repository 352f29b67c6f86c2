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

The firmware works while `run` does, and lingers briefly when the block ends, so that a peer waiting for an
acknowledgement gets it. A shared NIC (`testbed.controller.nic_options`) works all the time, and several processes of a
node may have one of its functions each.
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
from testbed.controller.runs.agents import offloading
from testbed.controller.runs.live_execution import WallClock
from testbed.controller.runs.runner import protocol_of
from testbed.engine.tasks import Work
from testbed.errors import ConflictError, NotFoundError, UnsupportedError
from testbed.kernel import offloads
from testbed.kernel.frame_socket import FrameSocket
from testbed.kernel.offloads import Offloads
from testbed.mpi.attached_world import AttachedRank, bind_names
from testbed.registry import DEFAULT_PROTOCOL
from testbed.runtime.incarnations import incarnation
from testbed.runtime.nodes.inline_driver import Driver
from testbed.runtime.nodes.node_process import build_inline_nic
from testbed.runtime.nodes.run_orders import ProgramNode, RunOrders
from testbed.runtime.shared.attach_protocol import NoAgentError
from testbed.runtime.shared.attachment import Attachment, HostDriver
from testbed.runtime.sockets.protocol import KernelProtocol
from testbed.spec.placement import addresses_of, one_each
from testbed.workloads.form import Node

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_QUIET: Final = 0.1
"""Seconds without a frame after which a NIC that is being released is taken to be idle."""

_LINGER: Final = 2.0
"""Seconds after which it is released, unless its host waits for answers."""

_TIMEOUT: Final = 10.0
"""Seconds after which it is released in any case: a peer's script may still be starting."""


class Script(Protocol[T_co]):
    """An ``async def script(comm, node)``, like a workload's."""

    def __call__(self, comm: Comm, node: Node, /) -> Work[T_co]: ...


class AttachedNic:
    """A NIC with its protocol's library and communicator.

    comm: all nodes of the cluster, as an MPI communicator; a rank is a node's place in the description or, where
    several processes share a NIC, the place of its function. node: its name and clock; its rows are printed, one line
    of JSON each. host: the protocol's own library, for what MPI has no names for; `comm` uses it, too, and on AM-II has
    its first endpoint.
    """

    def __init__(
        self, comm: Comm, node: Node, host: Host, driver: Driver | HostDriver, taken: Callable[[], int]
    ) -> None:
        """taken: returns the number of frames received until now."""
        self.comm = comm
        self.host = host
        self.node = node
        self._driver = driver
        self._taken = taken

    def run(self, script: Script[T]) -> T:
        """Run a script to its end on this NIC and return its result; raises its exception."""
        return self._driver.loop.complete(script(self.comm, self.node), "script")

    def complete(self, work: Coroutine[Any, None, T]) -> T:
        """Run a coroutine of this NIC's communicator to its end."""
        if self._driver.loop.running:
            work.close()
            raise RuntimeError(
                "a coroutine that 'nic.run' carries on awaits its communicator; blocking calls are for others"
            )
        return self._driver.loop.complete(work)

    def linger(self) -> None:
        """Keep working until no frame has come for _QUIET seconds, at most for _LINGER seconds; and until the host library
        waits for nothing, such as the answer to a message that has left, at most for _TIMEOUT seconds."""
        loop, begun = self._driver.loop, time.monotonic()
        before, taken = -1, self._taken()
        while True:
            lingered = time.monotonic() - begun
            if (taken == before or lingered > _LINGER) and (not self.host.waiting() or lingered > _TIMEOUT):
                return
            before = taken
            loop.complete(self._pause())
            taken = self._taken()

    async def _pause(self) -> None:
        await self._driver.loop.sleep(round(_QUIET * 1e9))


@contextmanager
def attach(protocol: str = DEFAULT_PROTOCOL, *, spin: int = 0, function: int | None = None) -> Iterator[AttachedNic]:
    """Attach to this node's first NIC, with a protocol's firmware in this process, until the end of the block; to one
    of its functions where the NIC is shared.

    spin: nanoseconds to poll for a frame before sleeping. function: the number of a shared NIC's function; by default
    any that is free. Raises NotFoundError outside a cluster's node, ConflictError where another process has the NIC,
    AttachError where other processes have all of its functions, UnsupportedError for a node without a NIC.
    """
    nic_protocol = protocol_of(protocol, "live")
    if isinstance(nic_protocol, KernelProtocol):
        raise UnsupportedError(f"{protocol} is the kernel's own: a script has sockets for that")
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
            yield from _on_shared(shared, nic_protocol, [node.name for node in nodes], name, spin)
        return
    if function is not None:
        raise NotFoundError(f"the NIC of node {name} is not shared: it has no function {function}")
    adapter = Adapter(
        number,
        addresses_of(layout, one_each(layout)),
        node.nics[0].mtu,
        incarnation(),
        routed=name in layout.routed(),
        ordered=layout.keeps_order(),
    )
    numbers = {node.name: number for number, node in enumerate(nodes)}
    orders = RunOrders(nic_protocol.plug, ethertype, (), {}, numbers, spin)
    with ExitStack() as stack:
        stack.enter_context(_claimed(device, name))
        stack.enter_context(_without_offloads(store, state, name, device))
        wire, _, agent, driver = build_inline_nic(orders, device, adapter)
        stack.callback(wire.close)
        stack.callback(driver.close)
        here = ProgramNode(name, number, numbers, driver.loop)
        endpoint = nic_protocol.device(agent.host)
        rank_node = Node(name, list(numbers), 0, WallClock(here), Comm(endpoint, 1), _print_row)
        yield from _with_mpi_names(AttachedNic(Comm(endpoint), rank_node, agent.host, driver, partial(_taken, wire)))


def _attachment(device: str, nic_protocol: NicProtocol, ethertype: int, function: int | None) -> Attachment | None:
    """Attach to a function of a shared NIC; None where the NIC is not shared."""
    if nic_protocol.split_driver is None:
        return None
    try:
        return Attachment(device, ethertype, nic_protocol.split_driver, function)
    except NoAgentError:
        return None


def _on_shared(
    nic: Attachment, nic_protocol: NicProtocol, nodes: list[str], name: str, spin: int
) -> Iterator[AttachedNic]:
    """nodes: the names of all nodes. name: ours."""
    driver = HostDriver(nic, nic.host, spin)
    with closing(driver):
        endpoint = nic_protocol.device(nic.host)
        functions = endpoint.size // len(nodes)
        names = nodes if functions == 1 else [f"{node}.{function}" for node in nodes for function in range(functions)]
        here = ProgramNode(name, endpoint.rank, {name: rank for rank, name in enumerate(names)}, driver.loop)
        rank_node = Node(names[endpoint.rank], names, 0, WallClock(here), Comm(endpoint, 1), _print_row)
        yield from _with_mpi_names(
            AttachedNic(Comm(endpoint), rank_node, nic.host, driver, lambda: int(nic.report()["taken"]))
        )


def _with_mpi_names(attached: AttachedNic) -> Iterator[AttachedNic]:
    """Bind MPI's names to the NIC for the block; finalize and linger at its end."""
    rank = AttachedRank(attached.comm, attached.complete, attached.node.now, attached.node.name)
    with bind_names(rank):
        yield attached
        rank.finalize()
        attached.linger()
        rank.finalize()


def _taken(wire: FrameSocket) -> int:
    wire.update_counts()
    return wire.received


def _current_node() -> tuple[Store, State, str]:
    """Find the node that this process is in."""
    directory, name = os.environ.get(node_programs.STATE, ""), os.environ.get(node_programs.NODE, "")
    if not directory or not name:
        raise NotFoundError(
            "this process is in no node of a cluster: start it with 'testbed exec NODE -- python SCRIPT'"
        )
    path = Path(directory)
    store = Store(path.parent)
    state = store.read(path.name)
    if state is None:
        raise NotFoundError(f"cluster {path.name} is not up any more")
    node_programs.node_of(state, name)
    return store, state, name


@contextmanager
def _claimed(device: str, node: str) -> Iterator[None]:
    """Claim the NIC for this process: an abstract socket name belongs to the network namespace, and ends with the
    process."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as mark:
        try:
            mark.bind(f"\0testbed/nic/{device}")
        except OSError:
            raise ConflictError(f"another process has attached to the NIC {device} of {node}") from None
        yield


@contextmanager
def _without_offloads(store: Store, state: State, node: str, device: str) -> Iterator[None]:
    """Turn off the kernel's segmentation and checksum offloads on the NIC for the block, as the firmware has none."""
    offloads.allow(device, Offloads.NONE)
    try:
        yield
    finally:
        with offloading(store, state.name) as wanted:
            offloads.allow(device, wanted.get(node, Offloads.NONE))


def _print_row(row: Mapping[str, object]) -> None:
    sys.stdout.write(json.dumps(row) + "\n")
    sys.stdout.flush()

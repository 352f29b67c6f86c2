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

A script in mpi4py's names has them within the block, too::

    from testbed.mpi import MPI

    with attach():
        MPI.COMM_WORLD.send("hello", dest=1)

The firmware works while `run` does, and for a moment when the block ends: whoever waits for an acknowledgement gets it.
Where the NIC is shared (`testbed.controller.nics`) it works all the time, and several processes of a node may have one.
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
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from protocols.core.firmware import Adapter, Host
from protocols.core.protocol import Protocol as NicProtocol
from protocols.mpi.comm import Comm
from testbed.cluster import programs
from testbed.cluster.state import State, Store
from testbed.controller.agents import addresses_of, offloading
from testbed.controller.living import WallClock
from testbed.controller.running import protocol_of
from testbed.errors import ConflictError, NotFoundError, UnsupportedError
from testbed.kernel import offloads
from testbed.kernel.offloads import Offloads
from testbed.mpi.attached import Attached, meant
from testbed.runtime.incarnations import incarnation
from testbed.runtime.nodes.node import assembled
from testbed.runtime.nodes.places import Here, Orders
from testbed.runtime.shared.attached import Attachment, HostDriver
from testbed.runtime.shared.introduction import NoAgentError
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
    """comm: all nodes of the cluster, as MPI's communicator; a rank is a node's place in the description, or, where NICs are
    shared by several processes, its function's. node: its name and clock; its rows are printed, a line of JSON each. host:
    the protocol's own library, for what MPI has no names for; `comm` uses it, too, and on AM-II has its first endpoint."""

    def __init__(
        self, comm: Comm, node: Node, host: Host, driver: Driver | HostDriver, taken: Callable[[], int]
    ) -> None:
        """taken: frames that have come until now."""
        self.comm = comm
        self.host = host
        self.node = node
        self._driver = driver
        self._taken = taken

    def run(self, script: Script[T]) -> T:
        """Run it to its end on this NIC: what it returns, or raises."""
        return self._driver.loop.complete(script(self.comm, self.node), "script")

    def complete(self, work: Coroutine[Any, None, T]) -> T:
        """Carry a coroutine of our communicator on to its end."""
        if self._driver.loop.running:
            work.close()
            raise RuntimeError(
                "a coroutine that 'nic.run' carries on awaits its communicator; blocking calls are for others"
            )
        return self._driver.loop.complete(work)

    def linger(self) -> None:
        """Work on until no frame has come for a moment."""
        loop, end = self._driver.loop, time.monotonic() + _LINGER
        before, taken = -1, self._taken()
        while taken != before and time.monotonic() < end:
            before = taken
            loop.complete(loop.sleep(round(_QUIET * 1e9)))
            taken = self._taken()


@contextmanager
def attach(protocol: str = "emp", *, spin: int = 0, function: int | None = None) -> Iterator[AttachedNic]:
    """This node's first NIC, with a protocol's firmware in this process, until the end of the block; one of its functions,
    where the NIC is shared.

    spin: nanoseconds to look for a frame before sleeping. function: which one of a shared NIC; any that is free if not said.
    Raises NotFoundError outside a cluster's node, ConflictError where another process has the NIC, AttachError where other
    processes have all of its functions, UnsupportedError for a node without one.
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
    device = node.nics[0].name
    shared = _function_of(device, known, function)
    if shared is not None:
        with closing(shared):
            yield from _on_shared(shared, known, [node.name for node in nodes], name, spin)
        return
    if function is not None:
        raise NotFoundError(f"the NIC of node {name} is not shared: it has no function {function}")
    layout = state.layout
    adapter = Adapter(
        number,
        addresses_of(layout),
        node.nics[0].mtu,
        incarnation(),
        routed=name in layout.routed(),
        ordered=layout.keeps_order(),
    )
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
        yield from _going(AttachedNic(Comm(endpoint), told, agent.host, driver, partial(_taken, wire)))


def _function_of(device: str, known: NicProtocol, function: int | None) -> Attachment | None:
    """None where the NIC is not shared."""
    if known.apart is None:
        return None
    try:
        return Attachment(device, known.ethertype, known.apart, function)
    except NoAgentError:
        return None


def _on_shared(nic: Attachment, known: NicProtocol, nodes: list[str], name: str, spin: int) -> Iterator[AttachedNic]:
    """nodes: the names of all, of which ours is one."""
    driver = HostDriver(nic, nic.host, spin)
    with closing(driver):
        endpoint = known.device(nic.host)
        functions = endpoint.size // len(nodes)
        names = nodes if functions == 1 else [f"{node}.{function}" for node in nodes for function in range(functions)]
        here = Here(name, endpoint.rank, {name: rank for rank, name in enumerate(names)}, driver.loop)
        told = Node(names[endpoint.rank], names, 0, WallClock(here), Comm(endpoint, 1), _print_row)
        yield from _going(AttachedNic(Comm(endpoint), told, nic.host, driver, lambda: int(nic.report()["taken"])))


def _going(attached: AttachedNic) -> Iterator[AttachedNic]:
    """MPI's names mean it; in the end it lingers."""
    rank = Attached(attached.comm, attached.complete, attached.node.now, attached.node.name)
    with meant(rank):
        yield attached
        rank.finalize()
        attached.linger()


def _taken(wire: FrameSocket) -> int:
    wire.look()
    return wire.taken


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

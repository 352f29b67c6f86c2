"""Execution of a plan: operations are encoded as netlink requests, which are batched by namespace."""

from __future__ import annotations

import errno
import os
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import groupby
from types import TracebackType

from testbed.cluster.plan import namespace_names
from testbed.cluster.plan.kernel_operations import (
    AwaitCarrier,
    Drain,
    EndEgress,
    EndRedirect,
    InNamespace,
    MakeCable,
    MakeNamespace,
    MakeTunnel,
    Operation,
    Part,
    PrepareEgress,
    PrepareRedirect,
    RemoveAddress,
    RemoveDevice,
    RemoveForwarding,
    RemoveLoss,
    RemoveNamespace,
    RemoveQdisc,
    RemoveRoute,
    SetLimits,
    SetNodeContext,
    SetOffloads,
    SetRouting,
    Undivert,
)
from testbed.cluster.plan.operation_requests import requests_of
from testbed.cluster.records.ownership import Mark
from testbed.cluster.removal import end_groups, end_programs
from testbed.errors import ConflictError, KernelError, reason_of
from testbed.kernel import cgroups, namespaces, netlink_messages, offloads, processes, syscalls
from testbed.kernel.filesystem import write_setting
from testbed.kernel.netlink import RequestError, RouteSocket
from testbed.kernel.rtnl_dump import ROUTING, Contents, has_pending_carrier, interface, node_contents, wire_contents

# Errors of the kernel which mean that an operation has no effect left, such as the removal of an object that does not exist.
_HARMLESS_ERRORS = {
    RemoveDevice: {errno.ENODEV},
    RemoveForwarding: {errno.ENOENT},
    RemoveAddress: {errno.EADDRNOTAVAIL},
    RemoveRoute: {errno.ESRCH},
    Part: {errno.ENOENT, errno.EINVAL},  # no hook was ever added; the hook was removed
    PrepareRedirect: {errno.EEXIST},
    EndRedirect: {errno.ENOENT, errno.EINVAL},
    PrepareEgress: {errno.ENOENT},
    EndEgress: {errno.ENOENT, errno.EINVAL},
    Undivert: {errno.ENOENT, errno.EINVAL},
    RemoveQdisc: {errno.ENOENT, errno.EINVAL},
    RemoveLoss: {errno.ENOENT, errno.EINVAL},
}

_SPARE_DESCRIPTORS = 64  # beyond those of the namespaces
_CARRIER_TIMEOUT = 5.0  # s; the kernel takes up to 1 s
_DRAIN_TIMEOUT = 1.0  # s
_DRAIN_RATE = 10**10  # bytes/s; in effect unlimited
_POLL_INTERVAL = 0.001  # s
_REMOVAL_GROUP = 0x7E57  # link group of interfaces that are removed by one request


class NetlinkExecutor:
    """Executor of one change. It opens the cluster's namespaces on demand, and closes them at the end.

    paths, inodes: paths and inodes of the namespaces, by key. made: keys of new namespaces. named: whether new namespaces
    get names in /run/netns; otherwise their holder must get copies of `descriptors`. alias: maps the key of a new namespace
    to the alias of its loopback interface. early: link -> number of frames that left a drained qdisc early. lost: link ->
    number of frames that were still in it at the timeout.
    """

    def __init__(self, cluster: str, alias: Callable[[str], str], *, named: bool) -> None:
        self.cluster = cluster
        self.paths: dict[str, str] = {}
        self.made: list[str] = []
        self.alias = alias
        self.named = named
        self.inodes: dict[str, int] = {}
        self.early: dict[str, int] = {}
        self.lost: dict[str, int] = {}
        self._open: dict[str, namespaces.OpenNamespace] = {}
        self._machine_route: RouteSocket | None = None  # in the namespace in which tunnels send
        self._limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    def __enter__(self) -> NetlinkExecutor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for namespace in self._open.values():
            namespace.close()
        self._open.clear()
        if self._machine_route is not None:
            self._machine_route.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, self._limits)

    def make_space(self, count: int) -> None:
        """Raise the limit on open files for `count` namespaces, two files each, as far as the hard limit permits."""
        soft, hard = self._limits
        needed = 2 * count + _SPARE_DESCRIPTORS + len(os.listdir("/proc/self/fd"))
        if needed > soft and soft != resource.RLIM_INFINITY:
            raised = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(raised, soft), hard))

    def open(self, key: str) -> namespaces.OpenNamespace:
        """Open the namespace of a key, which stays open until the end."""
        if key not in self._open:
            self._open[key] = namespaces.open_path(self.paths[key])
        return self._open[key]

    def descriptors(self) -> dict[str, int]:
        """Return the descriptors of all open namespaces, by key; the executor still owns them."""
        return {key: namespace.descriptor for key, namespace in self._open.items()}

    def contents(self, keys: Sequence[str]) -> dict[str, Contents]:
        """Read the kernel objects in each of these namespaces, by key. Raises KernelError if the kernel rejects a dump."""
        contents_by_key = {}
        with namespaces.restore_namespace():
            for key in keys:
                namespace = self.open(key)
                syscalls.setns(namespace.descriptor, syscalls.CLONE_NEWNET)
                try:
                    contents_by_key[key] = (node_contents if key else wire_contents)(namespace.route)
                except RequestError as error:
                    name = namespace_names.namespace(self.cluster, key)
                    raise KernelError(f"namespace {name} cannot be read: {error.refusals[0].reason}") from error
        return contents_by_key

    def apply(self, operations: Sequence[Operation], progress: Callable[[int], None]) -> None:
        """Execute operations. progress: called with the number of operations done. Raises KernelError with the failed
        operation and the reason, ConflictError for a namespace name or VXLAN id in use."""
        if self._machine_route is None and any(isinstance(operation, MakeTunnel) for operation in operations):
            self._machine_route = RouteSocket()  # a tunnel sends in the namespace from which it is made
        first = 0
        with namespaces.restore_namespace():
            while first < len(operations):
                last = first + 1
                key = _batch_key(operations[first])
                while key is not None and last < len(operations) and _batch_key(operations[last]) == key:
                    last += 1
                batch = operations[first:last]
                try:
                    if key is None:
                        self._execute(batch[0])
                    elif isinstance(key, str):
                        self._send(key, batch)
                    else:
                        self._make_tunnels([operation for operation in batch if isinstance(operation, MakeTunnel)])
                except OSError as error:
                    raise KernelError(f"{batch[0]} failed: {_describe_error(error)}") from error
                except RequestError as error:
                    raise KernelError(f"{batch[0]} failed: {error.refusals[0].reason}") from error
                progress(last)
                first = last

    def _execute(self, operation: Operation) -> None:
        """Execute an operation that is not a netlink request."""
        match operation:
            case MakeNamespace(key):
                self._make_namespace(key)
            case RemoveNamespace(key):
                end_programs(self.cluster, [os.stat(self.paths[key]).st_ino])
                end_groups([group for group in cgroups.groups_of(self.cluster) if cgroups.node_of(group) == key])
                if key in self._open:
                    self._open.pop(key).close()
                namespaces.remove_name(namespace_names.namespace(self.cluster, key))
                del self.paths[key]
            case SetRouting(key, version, on):
                with namespaces.inside(self.paths[key]):
                    write_setting(ROUTING[version], str(int(on)))
            case SetOffloads(key, device, _, accepted):
                with namespaces.inside(self.paths[key]):
                    offloads.allow(device, accepted)
            case AwaitCarrier(_, index):
                self._await_carrier(index)
            case Drain(link, _, index):
                self._drain(link, index)
            case SetNodeContext():
                pass  # state and files are written with every change
            case SetLimits(key, cpu_share, memory):
                group = cgroups.group(self.cluster, key)
                cgroups.make(group, cpu_share, memory)
                if key not in self.made:  # limits also apply to programs that already run
                    cgroups.add_processes(group, processes.inside([os.stat(self.paths[key]).st_ino]))
            case _:
                raise AssertionError(f"unknown operation {operation!r}")

    def _make_tunnels(self, operations: Sequence[MakeTunnel]) -> None:
        assert self._machine_route is not None
        link_requests: list[bytes] = []
        alias_requests: dict[str, list[bytes]] = {}
        for operation in operations:
            descriptor, tunnel = self.open(operation.key).descriptor, operation.tunnel
            link_requests.append(
                netlink_messages.make_vxlan(
                    operation.device,
                    tunnel.local,
                    tunnel.remote,
                    tunnel.vni,
                    operation.index,
                    operation.mtu,
                    descriptor,
                    operation.mac or None,
                )
            )
            set_alias = netlink_messages.set_alias(operation.index, tunnel.alias)
            alias_requests.setdefault(operation.key, []).append(set_alias)
        try:
            self._machine_route.execute(link_requests, f"netlink: {len(operations)} tunnels")
        except RequestError as error:
            refusal = error.refusals[0]
            operation = operations[refusal.position]
            if refusal.errno == errno.EEXIST:
                raise ConflictError(
                    f"{operation} failed: another VXLAN interface of this machine has that id; take its cluster down, or "
                    "give this one another name with --name"
                ) from error
            raise KernelError(f"{operation} failed: {refusal.reason}") from error
        for key, requests in alias_requests.items():
            self.open(key).route.execute(requests, f"netlink: the aliases of {len(requests)} tunnels")

    def await_link_watch(self, operations: Sequence[Operation]) -> None:
        """Wait until the kernel's link watch has noticed the carriers of new cables: until then, an interface drops the
        frames that it is to send.

        Returns without an error after `_CARRIER_TIMEOUT`, as on a machine whose RTNL lock is always held.
        """
        deadline = time.monotonic() + _CARRIER_TIMEOUT
        for key in {operation.key for operation in operations if isinstance(operation, MakeCable)}:
            route = self.open(key).route
            while has_pending_carrier(route) and time.monotonic() < deadline:
                time.sleep(_POLL_INTERVAL)

    def _await_carrier(self, index: int) -> None:
        """Wait until the kernel's link watch has noticed that the interface's peer is up; until then, the interface sends
        nothing. TimeoutError after `_CARRIER_TIMEOUT`."""
        deadline = time.monotonic() + _CARRIER_TIMEOUT
        while not interface(self.open(namespace_names.WIRE).route, index).is_operational:
            if time.monotonic() > deadline:
                raise TimeoutError(errno.ETIMEDOUT, f"no carrier after {_CARRIER_TIMEOUT:g} s")
            time.sleep(_POLL_INTERVAL)

    def _drain(self, link: str, index: int) -> None:
        """Wait until an interface's qdisc is empty; frames left in it at the timeout count as lost."""
        from testbed.kernel import qdiscs, shapers

        route = self.open(namespace_names.WIRE).route
        qdisc = qdiscs.qdiscs(route).get(index)
        if qdisc is not None and qdisc.kind == shapers.KIND and qdisc.queued:
            self.early[link] = self.early.get(link, 0) + qdisc.queued
            route.execute(shapers.requests(index, replace(shapers.decode(qdisc.options), rate=_DRAIN_RATE)))
        deadline = time.monotonic() + _DRAIN_TIMEOUT
        while qdisc is not None and qdisc.queued and time.monotonic() < deadline:
            time.sleep(_POLL_INTERVAL)
            qdisc = qdiscs.qdiscs(route).get(index)
        if qdisc is not None and qdisc.queued:
            self.lost[link] = self.lost.get(link, 0) + qdisc.queued

    def _make_namespace(self, key: str) -> None:
        settings = namespaces.NODE_SETTINGS if key else namespaces.WIRE_SETTINGS
        self._open[key] = namespaces.make(self.alias(key), settings)
        if self.named:
            name = namespace_names.namespace(self.cluster, key)
            try:
                namespaces.give_name(name)
            except FileExistsError as error:
                raise ConflictError(name_taken_message(name)) from error
            self.paths[key] = str(namespaces.NAMES / name)
        else:
            self.paths[key] = f"/proc/self/fd/{self._open[key].descriptor}"
        self.made.append(key)
        self.inodes[key] = os.fstat(self._open[key].descriptor).st_ino

    def _send(self, key: str, operations: Sequence[Operation]) -> None:
        requests: list[bytes] = []
        encoded: list[Operation] = []  # the operation of each request
        namespace_name = namespace_names.namespace(self.cluster, key)
        with ExitStack() as resources:
            for _, group in groupby(operations, lambda operation: isinstance(operation, RemoveDevice)):
                for operation, request in self._encode(list(group), resources):
                    requests.append(request)
                    encoded.append(operation)
            try:
                self.open(key).route.execute(requests, f"netlink: {namespace_name}: {len(operations)} operations")
            except RequestError as error:
                request_error = error
            else:
                return
        for refusal in request_error.refusals:
            operation = encoded[refusal.position]
            if refusal.errno not in _HARMLESS_ERRORS.get(type(operation), ()):
                raise KernelError(f"{operation} failed: {refusal.reason}") from request_error

    def _encode(self, operations: Sequence[Operation], resources: ExitStack) -> Iterator[tuple[Operation, bytes]]:
        """Encode the requests of operations; yield each with its operation. All of the operations remove devices, which are
        then removed as a group, or none does."""
        removals = [operation for operation in operations if isinstance(operation, RemoveDevice)]
        if len(removals) < 2:
            for operation in operations:
                for request in requests_of(operation, self.open, resources):
                    yield operation, request
            return
        for removal in removals:
            yield removal, netlink_messages.set_group(removal.index, _REMOVAL_GROUP)
        yield removals[-1], netlink_messages.remove_group(_REMOVAL_GROUP)


def name_taken_message(name: str) -> str:
    """Return the error message for the name of a namespace that is already in use."""
    if namespaces.is_unfinished(name) or Mark.parse(namespaces.alias_of(str(namespaces.NAMES / name))) is not None:
        return f"a network namespace named {name} is left of a cluster whose state is lost: 'testbed gc' removes it"
    return (
        f"a network namespace named {name} exists already and is not this cluster's: it was left alone; "
        f"remove it ('ip netns del {name}') or give the cluster another name with --name"
    )


def _batch_key(operation: Operation) -> str | type[MakeTunnel] | None:
    """Return the key of the namespace in which an operation's netlink requests are sent; MakeTunnel for requests that are
    sent in the machine's namespace; None for an operation that is not executed by requests."""
    if isinstance(operation, MakeTunnel):
        return MakeTunnel
    if isinstance(operation, MakeNamespace | RemoveNamespace | SetRouting | SetLimits | SetNodeContext | SetOffloads):
        return None
    if isinstance(operation, AwaitCarrier | Drain):
        return None
    return operation.key if isinstance(operation, InNamespace | MakeCable) else namespace_names.WIRE


def _describe_error(error: OSError) -> str:
    """Describe an OSError for users."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "no file descriptors are left; a cluster needs two per node while it is made (see 'ulimit -n')"
    return reason_of(error)

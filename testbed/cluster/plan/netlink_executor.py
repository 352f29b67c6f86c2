"""Execute a plan: operations become netlink requests, batched per namespace and section of the plan."""

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
from testbed.cluster.removal import end_programs
from testbed.errors import ConflictError, KernelError, reason_of
from testbed.kernel import cgroups, namespaces, netlink_messages, offloads, processes, syscalls
from testbed.kernel.filesystem import write_setting
from testbed.kernel.netlink import RequestError, RouteSocket
from testbed.kernel.rtnl_dump import ROUTING, Contents, interface, node_contents, wire_contents

# Errors of the kernel that mean that the object to remove is already gone.
_GONE = {
    RemoveDevice: {errno.ENODEV},
    RemoveForwarding: {errno.ENOENT},
    RemoveAddress: {errno.EADDRNOTAVAIL},
    RemoveRoute: {errno.ESRCH},
    Part: {errno.ENOENT, errno.EINVAL},  # never had the hook; had it once
    PrepareRedirect: {errno.EEXIST},
    EndRedirect: {errno.ENOENT, errno.EINVAL},
    PrepareEgress: {errno.ENOENT},
    EndEgress: {errno.ENOENT, errno.EINVAL},
    Undivert: {errno.ENOENT, errno.EINVAL},
    RemoveQdisc: {errno.ENOENT, errno.EINVAL},
    RemoveLoss: {errno.ENOENT, errno.EINVAL},
}

_SPARE_DESCRIPTORS = 64
_CARRIER_TIMEOUT = 5.0  # s; the kernel takes up to one
_DRAIN_TIMEOUT = 1.0  # s
_NO_LIMIT = 10**10  # bytes/s
_POLL_INTERVAL = 0.001  # s
_DOOMED = 0x7E57  # the group of interfaces that are about to be removed together


class NetlinkExecutor:
    """The namespaces of one cluster during a change: opened on demand, closed at the end.

    named: new namespaces get names in /run/netns; otherwise their holder takes copies of `descriptors`. alias(key): the
    alias of a new namespace's loopback interface. early, lost: link -> frames that left a drained discipline early, or
    were still in it at the end.
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
        self._own: RouteSocket | None = None
        self._limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    def __enter__(self) -> NetlinkExecutor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for namespace in self._open.values():
            namespace.close()
        self._open.clear()
        if self._own is not None:
            self._own.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, self._limits)

    def make_space(self, count: int) -> None:
        """Raise the descriptor limit for `count` namespaces, two each, as far as the hard limit permits."""
        soft, hard = self._limits
        needed = 2 * count + _SPARE_DESCRIPTORS + len(os.listdir("/proc/self/fd"))
        if needed > soft and soft != resource.RLIM_INFINITY:
            raised = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(raised, soft), hard))

    def open(self, key: str) -> namespaces.OpenNamespace:
        if key not in self._open:
            self._open[key] = namespaces.open_path(self.paths[key])
        return self._open[key]

    def descriptors(self) -> dict[str, int]:
        """The descriptors of all open namespaces, by key; the executor still owns them."""
        return {key: namespace.descriptor for key, namespace in self._open.items()}

    def contents(self, keys: Sequence[str]) -> dict[str, Contents]:
        """Read the kernel objects in each of these namespaces."""
        found = {}
        with namespaces.restore_namespace():
            for key in keys:
                namespace = self.open(key)
                syscalls.setns(namespace.descriptor, syscalls.CLONE_NEWNET)
                found[key] = (node_contents if key else wire_contents)(namespace.route)
        return found

    def apply(self, operations: Sequence[Operation], progress: Callable[[int], None]) -> None:
        """Execute the operations; KernelError names the one that failed and why. progress(n): n are done."""
        if self._own is None and any(isinstance(operation, MakeTunnel) for operation in operations):
            self._own = RouteSocket()  # tunnels are made from the machine's own namespace, which they send in
        first = 0
        with namespaces.restore_namespace():
            while first < len(operations):
                last = first + 1
                key = _batch_key(operations[first])
                while key is not None and last < len(operations) and _batch_key(operations[last]) == key:
                    last += 1
                stretch = operations[first:last]
                try:
                    if key is None:
                        self._perform(stretch[0])
                    else:
                        self._send(key, stretch)
                except OSError as error:
                    raise KernelError(f"{stretch[0]} failed: {_advice(error)}") from error
                progress(last)
                first = last

    def _perform(self, operation: Operation) -> None:
        """Execute an operation that is not a netlink request."""
        match operation:
            case MakeNamespace(key):
                self._make_namespace(key)
            case MakeTunnel():
                self._make_tunnel(operation)
            case RemoveNamespace(key):
                end_programs(self.cluster, [os.stat(self.paths[key]).st_ino])
                if key in self._open:
                    self._open.pop(key).close()
                namespaces.remove_name(namespace_names.namespace(self.cluster, key))
                for group in cgroups.groups_of(self.cluster):
                    if cgroups.node_of(group) == key:
                        cgroups.end(group)
                del self.paths[key]
            case SetRouting(key, version, on):
                with namespaces.inside(self.paths[key]):
                    write_setting(ROUTING[version], str(int(on)))
            case SetOffloads(key, device, _, taken):
                with namespaces.inside(self.paths[key]):
                    offloads.allow(device, taken)
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

    def _make_tunnel(self, operation: MakeTunnel) -> None:
        assert self._own is not None
        tunnel, wire = operation.tunnel, self.open(namespace_names.WIRE)
        made = netlink_messages.make_vxlan(
            operation.device, tunnel.local, tunnel.remote, tunnel.vni, operation.index, operation.mtu, wire.descriptor
        )
        try:
            self._own.execute([made], str(operation))
            wire.route.execute([netlink_messages.set_alias(operation.index, tunnel.alias)])
        except RequestError as error:
            refusal = error.refusals[0]
            if refusal.errno == errno.EEXIST:
                raise ConflictError(
                    f"{operation} failed: another VXLAN of this machine has that id; take its cluster down, or give this "
                    "one another name with --name"
                ) from error
            raise KernelError(f"{operation} failed: {refusal.reason}") from error

    def _await_carrier(self, index: int) -> None:
        """Wait until the kernel's link watch has seen that the interface's other end has come up; it sends nothing
        before."""
        deadline = time.monotonic() + _CARRIER_TIMEOUT
        while not interface(self.open(namespace_names.WIRE).route, index).sends:
            if time.monotonic() > deadline:
                raise TimeoutError(errno.ETIMEDOUT, f"no carrier after {_CARRIER_TIMEOUT:g} s")
            time.sleep(_POLL_INTERVAL)

    def _drain(self, link: str, index: int) -> None:
        """Wait until an interface's discipline is empty; frames left at the timeout count as lost."""
        from testbed.kernel import qdiscs, shapers

        route = self.open(namespace_names.WIRE).route
        found = qdiscs.qdiscs(route).get(index)
        if found is not None and found.kind == shapers.KIND and found.queued:
            self.early[link] = self.early.get(link, 0) + found.queued
            route.execute(shapers.requests(index, replace(shapers.decode(found.options), rate=_NO_LIMIT)))
        deadline = time.monotonic() + _DRAIN_TIMEOUT
        while found is not None and found.queued and time.monotonic() < deadline:
            time.sleep(_POLL_INTERVAL)
            found = qdiscs.qdiscs(route).get(index)
        if found is not None and found.queued:
            self.lost[link] = self.lost.get(link, 0) + found.queued

    def _make_namespace(self, key: str) -> None:
        settings = namespaces.NODE_SETTINGS if key else namespaces.WIRE_SETTINGS
        self._open[key] = namespaces.make(self.alias(key), settings)
        if self.named:
            name = namespace_names.namespace(self.cluster, key)
            try:
                namespaces.give_name(name)
            except FileExistsError as error:
                raise ConflictError(taken(name)) from error
            self.paths[key] = str(namespaces.NAMES / name)
        else:
            self.paths[key] = f"/proc/self/fd/{self._open[key].descriptor}"
        self.made.append(key)
        self.inodes[key] = os.fstat(self._open[key].descriptor).st_ino

    def _send(self, key: str, operations: Sequence[Operation]) -> None:
        requests: list[bytes] = []
        owners: list[Operation] = []
        where = namespace_names.namespace(self.cluster, key)
        with ExitStack() as needed:
            for _, run in groupby(operations, lambda operation: isinstance(operation, RemoveDevice)):
                for operation, request in self._encode(list(run), needed):
                    requests.append(request)
                    owners.append(operation)
            try:
                self.open(key).route.execute(requests, f"netlink: {where}: {len(operations)} operations")
            except RequestError as error:
                refused = error
            else:
                return
        for refusal in refused.refusals:
            operation = owners[refusal.position]
            if refusal.errno not in _GONE.get(type(operation), ()):
                raise KernelError(f"{operation} failed: {refusal.reason}") from refused

    def _encode(self, operations: Sequence[Operation], needed: ExitStack) -> Iterator[tuple[Operation, bytes]]:
        """The requests of these operations; either all or none of them remove devices, which are removed in groups."""
        doomed = [operation for operation in operations if isinstance(operation, RemoveDevice)]
        if len(doomed) < 2:
            for operation in operations:
                for request in requests_of(operation, self.open, needed):
                    yield operation, request
            return
        for removal in doomed:
            yield removal, netlink_messages.set_group(removal.index, _DOOMED)
        yield doomed[-1], netlink_messages.remove_group(_DOOMED)


def taken(name: str) -> str:
    """An error message for a namespace name that is in use."""
    if namespaces.is_unfinished(name) or Mark.parse(namespaces.alias_of(str(namespaces.NAMES / name))) is not None:
        return f"a network namespace named {name} is left of a cluster whose state is lost: 'testbed gc' removes it"
    return (
        f"a network namespace named {name} exists already and is not this cluster's: it was left alone; "
        f"remove it ('ip netns del {name}') or give the cluster another name with --name"
    )


def _batch_key(operation: Operation) -> str | None:
    """The key of the namespace for an operation's netlink request; None if it is no request."""
    if isinstance(operation, MakeNamespace | RemoveNamespace | SetRouting | SetLimits | SetNodeContext | SetOffloads):
        return None
    if isinstance(operation, AwaitCarrier | Drain | MakeTunnel):
        return None
    return operation.key if isinstance(operation, InNamespace | MakeCable) else namespace_names.WIRE


def _advice(error: OSError) -> str:
    """Explain an OSError to the user."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "no file descriptors are left; a cluster needs two per node while it is made (see 'ulimit -n')"
    return reason_of(error)

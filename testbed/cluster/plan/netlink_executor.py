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
from testbed.cluster.plan.operations import (
    AddAddress,
    AddForwarding,
    AddHook,
    AddRoute,
    AwaitCarrier,
    Divert,
    Drain,
    EndRedirect,
    ForgetLearned,
    ForgetPort,
    InNamespace,
    Join,
    MakeCable,
    MakeNamespace,
    MakeSwitch,
    Operation,
    Part,
    PrepareRedirect,
    Redirect,
    RemoveAddress,
    RemoveDevice,
    RemoveForwarding,
    RemoveLoss,
    RemoveNamespace,
    RemoveQdisc,
    RemoveRoute,
    SetDevice,
    SetDown,
    SetLimits,
    SetLoss,
    SetNetem,
    SetOffloads,
    SetPort,
    SetRouting,
    SetShaper,
    SetSurroundings,
    SetUp,
    Undivert,
)
from testbed.cluster.records.ownership import Mark
from testbed.cluster.removal import end_programs
from testbed.errors import ConflictError, KernelError, reason_of
from testbed.kernel import cgroups, diversion, namespaces, netlink, netlink_messages, offloads, processes, syscalls
from testbed.kernel.filesystem import write_setting
from testbed.kernel.netlink import RequestError
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
    Undivert: {errno.ENOENT, errno.EINVAL},
    RemoveQdisc: {errno.ENOENT, errno.EINVAL},
    RemoveLoss: {errno.ENOENT, errno.EINVAL},
}

_SPARE_DESCRIPTORS = 64
_CARRIER_PATIENCE = 5.0  # s; the kernel takes up to one
_DRAIN_PATIENCE = 1.0  # s
_NO_LIMIT = 10**10  # bytes/s
_MOMENT = 0.001  # s
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
        self._limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    def __enter__(self) -> NetlinkExecutor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for namespace in self._open.values():
            namespace.close()
        self._open.clear()
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
        with namespaces.staying():
            for key in keys:
                namespace = self.open(key)
                syscalls.setns(namespace.descriptor, syscalls.CLONE_NEWNET)
                found[key] = (node_contents if key else wire_contents)(namespace.route)
        return found

    def apply(self, operations: Sequence[Operation], progress: Callable[[int], None]) -> None:
        """Execute the operations; KernelError names the one that failed and why. progress(n): n are done."""
        first = 0
        with namespaces.staying():
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
            case RemoveNamespace(key):
                end_programs(self.cluster, [os.stat(self.paths[key]).st_ino])
                if key in self._open:
                    self._open.pop(key).close()
                namespaces.remove_name(namespace_names.namespace(self.cluster, key))
                for group in cgroups.of_cluster(self.cluster):
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
            case SetSurroundings():
                pass  # state and files are written with every change
            case SetLimits(key, cpu_share, memory):
                group = cgroups.group(self.cluster, key)
                cgroups.make(group, cpu_share, memory)
                if key not in self.made:  # limits also apply to programs that already run
                    cgroups.take_in(group, processes.inside([os.stat(self.paths[key]).st_ino]))
            case _:
                raise AssertionError(f"no way to perform {operation!r}")

    def _await_carrier(self, index: int) -> None:
        """Wait until the kernel's link watch has seen that the interface's other end has come up; it sends nothing
        before."""
        deadline = time.monotonic() + _CARRIER_PATIENCE
        while not interface(self.open(namespace_names.WIRE).route, index).sends:
            if time.monotonic() > deadline:
                raise TimeoutError(errno.ETIMEDOUT, f"it has no carrier after {_CARRIER_PATIENCE:g} s")
            time.sleep(_MOMENT)

    def _drain(self, link: str, index: int) -> None:
        """Wait until an interface's discipline is empty; frames left at the timeout count as lost."""
        from testbed.kernel import qdiscs, shapers

        route = self.open(namespace_names.WIRE).route
        found = qdiscs.qdiscs(route).get(index)
        if found is not None and found.kind == shapers.KIND and found.queued:
            self.early[link] = self.early.get(link, 0) + found.queued
            route.execute(shapers.requests(index, replace(shapers.decoded(found.options), rate=_NO_LIMIT)))
        deadline = time.monotonic() + _DRAIN_PATIENCE
        while found is not None and found.queued and time.monotonic() < deadline:
            time.sleep(_MOMENT)
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
                for operation, request in self._requests_of(list(run), needed):
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

    def _requests_of(self, operations: Sequence[Operation], needed: ExitStack) -> Iterator[tuple[Operation, bytes]]:
        """The requests of these operations: either all or none of them remove devices, which are removed in groups."""
        doomed = [operation for operation in operations if isinstance(operation, RemoveDevice)]
        if len(doomed) < 2:
            for operation in operations:
                for request in self._requests(operation, needed):
                    yield operation, request
            return
        for removal in doomed:
            yield removal, netlink_messages.set_group(removal.index, _DOOMED)
        yield doomed[-1], netlink_messages.remove_group(_DOOMED)

    def _requests(self, operation: Operation, needed: ExitStack) -> list[bytes]:
        """The netlink requests of an operation, in the namespace that `_batch_key` names. needed: objects that must
        stay open until they are sent."""
        match operation:
            case MakeSwitch(_, device, index, mac):
                return [netlink_messages.make_bridge(device, index, mac)]
            case MakeCable():
                up_later = operation.up and bool(operation.hooks)
                made = [
                    netlink_messages.make_veth(
                        operation.device,
                        operation.index,
                        operation.mtu,
                        self.open(operation.peer_key).descriptor,
                        operation.peer_device,
                        operation.peer_index,
                        operation.mtu,
                        operation.mac or None,
                        operation.peer_mac or None,
                        operation.switch or None,
                        int(operation.up and not up_later),
                    )
                ]
                made += [netlink_messages.add_clsact(index) for index in operation.hooks]
                return [*made, netlink_messages.set_up(operation.index)] if up_later else made
            case RemoveDevice(_, _, index):
                return [netlink_messages.remove_link(index)]
            case SetDevice():
                return [netlink_messages.set_link(operation.index, operation.mtu, operation.mac, operation.switch)]
            case SetUp(_, _, index):
                return [netlink_messages.set_up(index)]
            case SetPort(_, index, learning, flooding):
                return [netlink_messages.set_bridge_port(index, int(learning), int(flooding))]
            case AddForwarding(_, _, index, mac):
                return [netlink_messages.add_forwarding(index, mac)]
            case RemoveForwarding(_, index, mac):
                return [netlink_messages.remove_forwarding(index, mac)]
            case ForgetLearned(_, index):
                return [netlink_messages.forget_learned(index)]
            case Join(_, _, a, _, b):
                return [
                    netlink_messages.add_clsact(a),
                    netlink_messages.add_clsact(b),
                    netlink_messages.redirect_incoming(a, b),
                    netlink_messages.redirect_incoming(b, a),
                ]
            case Part(_, index):
                return [netlink_messages.remove_clsact(index)]
            case PrepareRedirect(_, index):
                return [netlink_messages.prepare_redirection(index, netlink.STAGING)]
            case Redirect(_, index, _, out, prepared):
                if prepared:
                    return [netlink_messages.redirect_incoming(index, out, netlink.STAGING, netlink_messages.PREPARED)]
                return [
                    netlink_messages.add_clsact(index),
                    netlink_messages.redirect_incoming(index, out, netlink.STAGING),
                ]
            case EndRedirect(_, index, prepared):
                return [
                    netlink_messages.end_redirection(
                        index, netlink.STAGING, netlink_messages.PREPARED if prepared else 0
                    )
                ]
            case ForgetPort(_, index):
                return [netlink_messages.forget_port(index)]
            case AddHook(_, index):
                return [netlink_messages.add_clsact(index)]
            case Divert(_, index, tap, back):
                mark = index
                coming = diversion.divert(index, diversion.INGRESS, tap, mark)
                if not back:
                    return [coming]
                return [
                    netlink_messages.add_clsact(tap),
                    diversion.put_back(tap, index, mark),
                    coming,
                    diversion.divert(index, diversion.EGRESS, tap, mark, leaving=True),
                ]
            case Undivert(_, index, _):
                return [diversion.remove(index, diversion.EGRESS), diversion.remove(index, diversion.INGRESS)]
            case SetDown(_, _, index):
                return [netlink_messages.set_down(index)]
            case SetNetem() | SetShaper() | SetLoss() | RemoveLoss():
                return self._discipline(operation, needed)
            case RemoveQdisc(_, index):
                return [netlink_messages.remove_qdisc(index)]
            case AddAddress(_, _, index, address):
                return [netlink_messages.add_address(index, address)]
            case RemoveAddress(_, _, index, address):
                return [netlink_messages.remove_address(index, address)]
            case AddRoute(_, destination, via):
                return [netlink_messages.add_route(destination, via)]
            case RemoveRoute(_, destination, via):
                return [netlink_messages.remove_route(destination, via)]
            case _:
                raise AssertionError(f"no request for {operation!r}")

    def _discipline(self, operation: SetNetem | SetShaper | SetLoss | RemoveLoss, needed: ExitStack) -> list[bytes]:
        from testbed.kernel import (  # encoders that an unimpaired cluster does not need
            loss_classifier,
            netem,
            shapers,
        )

        match operation:
            case SetNetem():
                return [netem.request(operation.index, operation.options)]
            case SetShaper():
                return shapers.requests(operation.index, operation.options, operation.before)
            case SetLoss():
                return [netlink_messages.add_clsact(operation.index), self._classifier(operation, needed)]
            case RemoveLoss(_, index):
                return [loss_classifier.detach(index)]

    def _classifier(self, operation: SetLoss, needed: ExitStack) -> bytes:
        """The request that attaches a new classifier, which continues the counters of the one it replaces."""
        from testbed.kernel import loss_classifier

        with loss_classifier.opened(self.open(namespace_names.WIRE).route, operation.index) as old:
            counters = old.maps["counters"] if old is not None else None
            new = needed.enter_context(loss_classifier.load(operation.losses, counters))
        return loss_classifier.attach(operation.index, new)


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
    if isinstance(operation, MakeNamespace | RemoveNamespace | SetRouting | SetLimits | SetSurroundings | SetOffloads):
        return None
    if isinstance(operation, AwaitCarrier | Drain):
        return None
    return operation.key if isinstance(operation, InNamespace | MakeCable) else namespace_names.WIRE


def _advice(error: OSError) -> str:
    """Explain an OSError to the user."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "no file descriptors are left; a cluster needs two per node while it is made (see 'ulimit -n')"
    return reason_of(error)

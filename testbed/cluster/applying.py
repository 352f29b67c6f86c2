"""Carrying out a plan: operations become netlink requests, gathered into one batch per namespace and stretch of the plan."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import groupby
from types import TracebackType

from testbed.cluster import names
from testbed.cluster.operations import (
    AddAddress,
    AddForwarding,
    AddRoute,
    ForgetLearned,
    Join,
    MakeCable,
    MakeNamespace,
    MakeSwitch,
    Operation,
    Part,
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
)
from testbed.cluster.ownership import Mark
from testbed.cluster.removal import end_programs
from testbed.errors import ConflictError, KernelError, reason_of
from testbed.kernel import cgroups, messages, namespaces, offloads, processes, syscalls
from testbed.kernel.files import write_setting
from testbed.kernel.netlink import RequestError
from testbed.kernel.survey import ROUTING, Contents, node_contents, wire_contents

# What the kernel answers when what is to be removed is gone already: then it is as wished.
_GONE = {
    RemoveDevice: {errno.ENODEV},
    RemoveForwarding: {errno.ENOENT},
    RemoveAddress: {errno.EADDRNOTAVAIL},
    RemoveRoute: {errno.ESRCH},
    Part: {errno.ENOENT, errno.EINVAL},  # it never had the hook; it had it once
    RemoveQdisc: {errno.ENOENT, errno.EINVAL},
    RemoveLoss: {errno.ENOENT, errno.EINVAL},
}

_SPARE_DESCRIPTORS = 64
_DOOMED = 0x7E57  # the group of interfaces that are about to be removed together


class Workshop:
    """The namespaces of one cluster while they are being worked on: opened when needed, closed at the end.

    named: new namespaces get names in /run/netns; otherwise whoever shall hold them takes copies of `descriptors`.
    alias(key): what a new namespace's loopback is to be called.
    """

    def __init__(self, cluster: str, alias: Callable[[str], str], *, named: bool) -> None:
        self.cluster = cluster
        self.paths: dict[str, str] = {}
        self.made: list[str] = []
        self.alias = alias
        self.named = named
        self.inodes: dict[str, int] = {}
        self._open: dict[str, namespaces.OpenNamespace] = {}
        self._limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    def __enter__(self) -> Workshop:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for namespace in self._open.values():
            namespace.close()
        self._open.clear()
        resource.setrlimit(resource.RLIMIT_NOFILE, self._limits)

    def make_space(self, count: int) -> None:
        """Allow for the descriptors that `count` namespaces take, two each, as far as the hard limit goes."""
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
        """The descriptors of all open namespaces, by key; they stay the workshop's."""
        return {key: namespace.descriptor for key, namespace in self._open.items()}

    def contents(self, keys: Sequence[str]) -> dict[str, Contents]:
        """What the kernel has in each of these namespaces."""
        found = {}
        with namespaces.staying():
            for key in keys:
                namespace = self.open(key)
                syscalls.setns(namespace.descriptor, syscalls.CLONE_NEWNET)
                found[key] = (node_contents if key else wire_contents)(namespace.route)
        return found

    def apply(self, operations: Sequence[Operation], progress: Callable[[int], None]) -> None:
        """Carry out the plan; KernelError names the operation that failed and why. progress(n): n are done."""
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
        """Carry out an operation that is not a netlink request."""
        match operation:
            case MakeNamespace(key):
                self._make_namespace(key)
            case RemoveNamespace(key):
                end_programs(self.cluster, [os.stat(self.paths[key]).st_ino])
                if key in self._open:
                    self._open.pop(key).close()
                namespaces.remove_name(names.namespace(self.cluster, key))
                for group in cgroups.of_cluster(self.cluster):
                    if cgroups.node_of(group) == key:
                        cgroups.end(group)
                del self.paths[key]
            case SetRouting(key, version, on):
                with namespaces.staying():
                    syscalls.setns(self.open(key).descriptor, syscalls.CLONE_NEWNET)
                    write_setting(ROUTING[version], str(int(on)))
            case SetOffloads(key, device, _, taken):
                with namespaces.staying():
                    syscalls.setns(self.open(key).descriptor, syscalls.CLONE_NEWNET)
                    offloads.allow(device, taken)
            case SetSurroundings():
                pass  # the state and the files beside it are written with every change
            case SetLimits(key, cpu_share, memory):
                group = cgroups.group(self.cluster, key)
                cgroups.make(group, cpu_share, memory)
                if key not in self.made:  # what runs in the node already is limited, too
                    cgroups.take_in(group, processes.inside([os.stat(self.paths[key]).st_ino]))
            case _:
                raise AssertionError(f"no way to perform {operation!r}")

    def _make_namespace(self, key: str) -> None:
        settings = namespaces.NODE_SETTINGS if key else namespaces.WIRE_SETTINGS
        self._open[key] = namespaces.make(self.alias(key), settings)
        if self.named:
            name = names.namespace(self.cluster, key)
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
        where = names.namespace(self.cluster, key)
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
        """The requests of operations that are all removals of devices or none; several devices go together."""
        doomed = [operation for operation in operations if isinstance(operation, RemoveDevice)]
        if len(doomed) < 2:
            for operation in operations:
                for request in self._requests(operation, needed):
                    yield operation, request
            return
        for removal in doomed:
            yield removal, messages.set_group(removal.index, _DOOMED)
        yield doomed[-1], messages.remove_group(_DOOMED)

    def _requests(self, operation: Operation, needed: ExitStack) -> list[bytes]:
        """The netlink requests that an operation comes to, in the namespace that `_batch_key` names. needed: what has to
        stay open until they are sent."""
        match operation:
            case MakeSwitch(_, device, index, mac):
                return [messages.make_bridge(device, index, mac)]
            case MakeCable():
                return [
                    messages.make_veth(
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
                        int(operation.up),
                    )
                ]
            case RemoveDevice(_, _, index):
                return [messages.remove_link(index)]
            case SetDevice():
                return [messages.set_link(operation.index, operation.mtu, operation.mac, operation.switch)]
            case SetUp(_, _, index):
                return [messages.set_up(index)]
            case SetPort(_, index, learning, flooding):
                return [messages.set_bridge_port(index, int(learning), int(flooding))]
            case AddForwarding(_, _, index, mac):
                return [messages.add_forwarding(index, mac)]
            case RemoveForwarding(_, index, mac):
                return [messages.remove_forwarding(index, mac)]
            case ForgetLearned(_, index):
                return [messages.forget_learned(index)]
            case Join(_, _, a, _, b):
                return [
                    messages.add_clsact(a),
                    messages.add_clsact(b),
                    messages.redirect_incoming(a, b),
                    messages.redirect_incoming(b, a),
                ]
            case Part(_, index):
                return [messages.remove_clsact(index)]
            case SetDown(_, _, index):
                return [messages.set_down(index)]
            case SetNetem() | SetShaper() | SetLoss() | RemoveLoss():
                return self._discipline(operation, needed)
            case RemoveQdisc(_, index):
                return [messages.remove_qdisc(index)]
            case AddAddress(_, _, index, address):
                return [messages.add_address(index, address)]
            case RemoveAddress(_, _, index, address):
                return [messages.remove_address(index, address)]
            case AddRoute(_, destination, via):
                return [messages.add_route(destination, via)]
            case RemoveRoute(_, destination, via):
                return [messages.remove_route(destination, via)]
            case _:
                raise AssertionError(f"no request for {operation!r}")

    def _discipline(self, operation: SetNetem | SetShaper | SetLoss | RemoveLoss, needed: ExitStack) -> list[bytes]:
        from testbed.kernel import (  # encoders, which an unimpaired cluster does not need
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
                return [messages.add_clsact(operation.index), self._classifier(operation, needed)]
            case RemoveLoss(_, index):
                return [loss_classifier.detach(index)]

    def _classifier(self, operation: SetLoss, needed: ExitStack) -> bytes:
        """The request that hooks a new classifier in; it goes on in the counters of the one that it takes the place of."""
        from testbed.kernel import loss_classifier

        with loss_classifier.opened(self.open(names.WIRE).route, operation.index) as old:
            counters = old.maps["counters"] if old is not None else None
            new = needed.enter_context(loss_classifier.load(operation.losses, counters))
        return loss_classifier.attach(operation.index, new)


def taken(name: str) -> str:
    """Why a new namespace cannot have this name, and what to do."""
    if namespaces.is_unfinished(name) or Mark.parse(namespaces.alias_of(str(namespaces.NAMES / name))) is not None:
        return f"a network namespace named {name} is left of a cluster whose state is lost: 'testbed gc' removes it"
    return (
        f"a network namespace named {name} exists already and is not this cluster's: it was left alone; "
        f"remove it ('ip netns del {name}') or give the cluster another name with --name"
    )


def _batch_key(operation: Operation) -> str | None:
    """The key of the namespace in which an operation is a netlink request; None when it is no request."""
    match operation:
        case MakeNamespace() | RemoveNamespace() | SetRouting() | SetLimits() | SetSurroundings() | SetOffloads():
            return None
        case MakeSwitch() | SetPort() | AddForwarding() | RemoveForwarding() | ForgetLearned() | Join() | Part():
            return names.WIRE
        case SetNetem() | SetShaper() | RemoveQdisc() | SetLoss() | RemoveLoss():
            return names.WIRE
        case _:
            return operation.key


def _advice(error: OSError) -> str:
    """An OSError in a user's words."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "no file descriptors are left; a cluster needs two per node while it is made (see 'ulimit -n')"
    return reason_of(error)

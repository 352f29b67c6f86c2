"""Model of the kernel that executes plans and checks each intermediate state."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace

from testbed.cluster.plan import namespace_names
from testbed.cluster.plan.draft import ExistingState
from testbed.cluster.plan.kernel_operations import (
    AddAddress,
    AddForwarding,
    AddHook,
    AddRoute,
    AwaitCarrier,
    Divert,
    Drain,
    EndEgress,
    EndRedirect,
    FlushLearned,
    FlushPort,
    Join,
    MakeCable,
    MakeNamespace,
    MakeSwitch,
    MakeTunnel,
    Operation,
    Part,
    PrepareEgress,
    PrepareRedirect,
    Redirect,
    RedirectEgress,
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
    SetUp,
    Undivert,
)
from testbed.cluster.plan.link_services import LinkServices
from testbed.cluster.plan.planner import plan
from testbed.kernel import loss_classifier, netem, shapers
from testbed.kernel.diversion import Diversion
from testbed.kernel.netlink import attributes
from testbed.kernel.offloads import Offloads
from testbed.kernel.qdiscs import Qdisc
from testbed.kernel.rtnl_dump import Contents, Counters, Interface
from testbed.spec.layout import Layout
from testbed.spec.model import Description
from testbed.spec.resolver import resolve

_HEADERS_SIZE = 16 + 20  # struct nlmsghdr, struct tcmsg
_TCA_OPTIONS = 2

UNUSED = Counters(0, 0, 0, 0, 0, 0)


class Kernel:
    """Kernel objects of a cluster; an operation that the kernel would reject fails an assertion."""

    def __init__(self) -> None:
        self.interfaces: dict[str, dict[int, Interface]] = {}
        self.addresses: dict[str, dict[int, set[str]]] = {}
        self.routes: dict[str, set[tuple[str, str]]] = {}
        self.routing: dict[str, set[int]] = {}
        self.forwarding: dict[tuple[int, str], int] = {}
        self.redirections: dict[int, int] = {}
        self.staged: dict[int, int] = {}
        self.prepared: set[int] = set()
        self.prepared_egress: dict[int, tuple[str, str]] = {}
        self.redirected_egress: dict[int, int] = {}
        self.hooks: set[int] = set()
        self.offloads: dict[str, dict[int, Offloads]] = {}
        self.qdiscs: dict[int, Qdisc] = {}
        self.classifiers: dict[int, str] = {}
        self.diversions: dict[int, Diversion] = {}
        self.link_services: LinkServices = {}
        self.limits: dict[str, tuple[float, int]] = {}
        self.nics: set[tuple[str, str]] = set()

    def existing(self) -> ExistingState:
        return ExistingState(
            {
                key: Contents(
                    {interface.name: interface for interface in device.values()},
                    {index: frozenset(texts) for index, texts in self.addresses[key].items() if texts},
                    frozenset(self.routes[key]),
                    dict(self.forwarding) if key == namespace_names.WIRE else {},
                    dict(self.redirections) if key == namespace_names.WIRE else {},
                    dict(self.staged) if key == namespace_names.WIRE else {},
                    dict(self.redirected_egress) if key == namespace_names.WIRE else {},
                    frozenset(self.routing[key]),
                    dict(self.offloads[key]),
                    frozenset(self.hooks) if key == namespace_names.WIRE else frozenset(),
                    dict(self.qdiscs) if key == namespace_names.WIRE else {},
                    dict(self.classifiers) if key == namespace_names.WIRE else {},
                    self._seen_diversions() if key == namespace_names.WIRE else {},
                )
                for key, device in self.interfaces.items()
            },
            dict(self.limits),
            frozenset(self.nics),
            link_services=self.link_services,
        )

    def converge(
        self, layout: Layout, link_services: LinkServices | None = None, files: Mapping[str, str] | None = None
    ) -> list[Operation]:
        """Plan and execute; assert after each operation that no frame can loop or be duplicated."""
        operations = plan(layout, self.existing(), link_services or {}, files or {})
        for operation in operations:
            self.execute(operation)
            self.assert_no_loops_or_duplicates(operation)
        self.link_services = link_services or {}
        self.nics = {(node.name, nic.name) for node in layout.nodes for nic in node.nics}
        return operations

    def assert_no_loops_or_duplicates(self, after: Operation) -> None:
        wire = self.interfaces.get(namespace_names.WIRE, {})
        for index, target in self.redirections.items():
            assert not wire[index].master, f"{wire[index].name} is both plugged in and joined after: {after}"
            assert target not in wire or not wire[target].master, (
                f"two paths lead to {wire[target].name} after: {after}"
            )
        by_name = {device.name: device for device in wire.values()}
        for port in wire.values():
            patch, free_end = (by_name.get(name) for name in namespace_names.patch(port.name))
            if port.index in self.redirected_egress:
                assert patch is not None, f"egress of {port.name} is lost after: {after}"
                assert free_end is not None, f"egress of {port.name} is lost after: {after}"
                assert self.redirected_egress[port.index] == patch.index
                assert self._leads_to(free_end, port), f"egress of {port.name} is lost after: {after}"
                assert by_name.get(self.prepared_egress[port.index][1]) == wire[self._exit_to(port)]
            if patch is not None and patch.master and free_end is not None and self._leads_to(free_end, port):
                assert not patch.flooding, f"frames are duplicated towards {port.name} after: {after}"
                if port.index in self.staged and port.master:  # otherwise the switch sends nothing by it
                    is_returned = self.prepared_egress.get(port.index, ("", ""))[0] != patch.name
                    assert not is_returned, f"{port.name} gets its own frames back after: {after}"
        for index, diversion in self.diversions.items():  # diverted ports stay plugged in, cables joined
            for tap in {*diversion} - {0}:
                plugged_in = tap in wire and wire[tap].master and diversion.outgoing
                assert not plugged_in, f"{wire[index].name} is diverted into a switch after: {after}"
        ports = [port for port in wire.values() if port.master and port.up]
        arrivals = {port.index: arrival for port in ports if port.flooding and (arrival := self._arrival(port))}
        checked: set[int] = set()

        def follow(arrived: Interface, path: tuple[int, ...]) -> None:
            assert arrived.index not in path, f"a broadcast loops through {arrived.name} after: {after}"
            if arrived.index not in checked:
                for port in ports:
                    is_own = self.prepared_egress.get(port.index, ("", ""))[0] == arrived.name
                    if port.master == arrived.master and port is not arrived and port.index in arrivals and not is_own:
                        follow(arrivals[port.index], (*path, arrived.index))
                checked.add(arrived.index)

        for arrival in arrivals.values():
            follow(arrival, ())

    def _arrival(self, port: Interface) -> Interface | None:
        """Return the port by which a frame that leaves by this one enters another switch."""
        wire = self.interfaces[namespace_names.WIRE]
        port = wire[self.redirected_egress.get(port.index, port.index)]
        for _ in wire:
            end = wire.get(port.peer)
            if end is None or not end.up or end.peer != port.index:
                return None
            target = self.staged.get(end.index)
            if target is None and end.master:
                return end
            target = self.redirections.get(end.index) if target is None else target
            if target not in wire:
                return None
            port = wire[target]
        return None

    def _leads_to(self, free_end: Interface, port: Interface) -> bool:
        """Return whether frames that enter a patch's free end pass a stage and leave by the port."""
        wire = self.interfaces[namespace_names.WIRE]
        entered = wire.get(self.staged.get(free_end.index, 0))
        return entered is not None and self.staged.get(entered.peer) == port.index

    def _exit_to(self, port: Interface) -> int:
        """Return the end of the stage that is redirected to the port."""
        return next(source for source, target in self.staged.items() if target == port.index)

    def _by_name(self, name: str) -> Interface | None:
        return next(
            (interface for interface in self.interfaces[namespace_names.WIRE].values() if interface.name == name), None
        )

    def set_attributes(self, key: str, index: int, **values: object) -> None:
        self.interfaces[key][index] = replace(self.interfaces[key][index], **values)  # type: ignore[arg-type]

    def make(self, key: str, index: int, name: str, kind: str, mac: str, mtu: int, **attributes: int) -> None:
        interfaces = self.interfaces[key]
        assert index not in interfaces, f"index {index} is taken in {key!r}"
        assert name not in {interface.name for interface in interfaces.values()}, f"{name} is taken in {key!r}"
        assert 1 <= len(name) <= 15
        is_up, master, peer = bool(attributes.get("up")), attributes.get("master", 0), attributes.get("peer", 0)
        interfaces[index] = Interface(index, name, kind, mac, mtu, is_up, master, peer, "", UNUSED)
        if kind in ("veth", "vxlan"):
            self.offloads[key][index] = Offloads.ALL

    def remove(self, key: str, index: int) -> None:
        if index not in self.interfaces[key]:
            return  # removed with its peer
        removed = self.interfaces[key].pop(index)
        self.addresses[key].pop(index, None)
        if key == namespace_names.WIRE:
            self.forwarding = {source: port for source, port in self.forwarding.items() if port != index}
            self._remove_hook(index)
            self.qdiscs.pop(index, None)
            self.staged = {source: 0 if target == index else target for source, target in self.staged.items()}
            self.redirected_egress = {
                source: 0 if target == index else target for source, target in self.redirected_egress.items()
            }
        self.offloads[key].pop(index, None)
        for other_index, interface in self.interfaces.items():
            partner = interface.get(removed.peer)
            if partner is not None and removed.kind == partner.kind == "veth" and partner.peer == index:
                self.remove(other_index, removed.peer)
                break

    def _remove_hook(self, index: int) -> None:
        self.hooks.discard(index)
        self.redirections.pop(index, None)
        self.staged.pop(index, None)
        self.prepared.discard(index)
        self.prepared_egress.pop(index, None)
        self.redirected_egress.pop(index, None)
        self.classifiers.pop(index, None)
        self.diversions.pop(index, None)

    def _seen_diversions(self) -> dict[int, Diversion]:
        """Return the diversions as dumped: -1 stands for a removed interface."""
        existing_indices = {*self.interfaces[namespace_names.WIRE], 0}
        return {
            source: Diversion(*(target if target in existing_indices else -1 for target in diversion))
            for source, diversion in self.diversions.items()
        }

    def execute(self, operation: Operation) -> None:
        match operation:
            case MakeNamespace(key):
                assert key not in self.interfaces
                self.interfaces[key], self.addresses[key], self.routes[key] = {}, {}, set()
                self.routing[key] = set()
                self.offloads[key] = {}
                self.make(key, 1, "lo", "", "00:00:00:00:00:00", 65536, up=1)
            case RemoveNamespace(key):
                for index in list(self.interfaces[key]):
                    self.remove(key, index)
                for table in (
                    self.interfaces, self.addresses, self.routes, self.routing, self.limits, self.offloads,
                ):  # fmt: skip
                    table.pop(key, None)
            case SetRouting(key, version, on):
                self.routing[key] = self.routing[key] | {version} if on else self.routing[key] - {version}
            case SetLimits(key, share, memory):
                self.limits[key] = (share, memory)
            case MakeSwitch(_, device, index, mac):
                self.make(namespace_names.WIRE, index, device, "bridge", mac, 1500, up=1)
            case MakeCable():
                local, remote = operation.index, operation.peer_index
                self.make(
                    operation.key, local, operation.device, "veth", operation.mac, operation.mtu,
                    up=operation.up, master=operation.switch, peer=remote,
                )  # fmt: skip
                self.hooks |= {*operation.hooks}
                peer = operation.peer_key, remote, operation.peer_device
                self.make(*peer, "veth", operation.peer_mac, operation.mtu, peer=local)
            case MakeTunnel(_, key, device, index, mtu, tunnel, mac):
                self.make(key, index, device, "vxlan", mac, mtu)
                self.set_attributes(key, index, alias=tunnel.alias)
            case RemoveDevice(key, _, index):
                self.remove(key, index)
            case SetDevice(key, _, index, mtu, mac, switch):
                desired_values = {"mtu": mtu, "mac": mac, "master": switch}
                if switch is not None:
                    desired_values |= {"learning": True, "flooding": True}
                    self.forwarding = {source: port for source, port in self.forwarding.items() if port != index}
                self.set_attributes(
                    key, index, **{name: value for name, value in desired_values.items() if value is not None}
                )
            case SetUp(key, _, index):
                self.set_attributes(key, index, up=True)
            case SetDown(key, _, index):
                assert self.interfaces[key][index].up
                self.set_attributes(key, index, up=False)
            case SetOffloads(key, _, index, accepted):
                assert self.offloads[key][index] != accepted
                self.offloads[key][index] = accepted
            case SetPort(_, index, learning, flooding):
                assert self.interfaces[namespace_names.WIRE][index].master
                self.set_attributes(namespace_names.WIRE, index, learning=learning, flooding=flooding)
            case AddForwarding(_, _, index, mac):
                self.forwarding[self.interfaces[namespace_names.WIRE][index].master, mac] = index
            case RemoveForwarding(_, index, mac):
                del self.forwarding[self.interfaces[namespace_names.WIRE][index].master, mac]
            case FlushLearned():
                pass
            case Join(_, a, b):
                assert not {a, b} & self.redirections.keys()
                self.hooks |= {a, b}
                self.redirections |= {a: b, b: a}
            case Part(_, index):
                self._remove_hook(index)
            case PrepareRedirect(_, index):
                assert index in self.hooks
                self.prepared.add(index)
            case Redirect(_, index, _, out, prepared):
                assert index not in self.staged
                assert prepared <= (index in self.prepared)
                assert out in self.interfaces[namespace_names.WIRE]
                self.hooks.add(index)
                self.staged[index] = out
            case EndRedirect(_, index, prepared):
                self.staged.pop(index, None)
                if not prepared:
                    self.prepared.discard(index)
            case Drain(_, _, index):
                entering = [source for source, target in self.staged.items() if target == index]
                wire = self.interfaces[namespace_names.WIRE]
                for port in wire.values():
                    patch, free_end = (self._by_name(name) for name in namespace_names.patch(port.name))
                    if patch is not None and free_end is not None and free_end.index in entering:
                        is_receiving = port.index in self.redirected_egress or (patch.master and patch.learning)
                        assert not is_receiving, f"frames still enter by {free_end.name} while draining"
            case PrepareEgress(_, index, patch, stage):
                assert index in self.hooks
                assert self._by_name(patch) is not None
                assert self._by_name(stage) is not None
                self.prepared_egress[index] = patch, stage
            case RedirectEgress(_, index, _, patch_index):
                assert index in self.prepared_egress
                assert index not in self.redirected_egress
                assert patch_index in self.interfaces[namespace_names.WIRE]
                self.redirected_egress[index] = patch_index
            case EndEgress(_, index, prepared):
                self.redirected_egress.pop(index, None)
                if not prepared:
                    self.prepared_egress.pop(index, None)
            case FlushPort(_, index):
                assert self.interfaces[namespace_names.WIRE][index].master
            case AddHook(_, index):
                assert index in self.interfaces[namespace_names.WIRE]
                self.hooks.add(index)
            case AwaitCarrier(_, index):
                end = self.interfaces[namespace_names.WIRE][index]
                assert end.up
                assert self.interfaces[namespace_names.WIRE][end.peer].up
            case Divert(_, index, tap, back):
                assert index in self.hooks, "adding a hook to a port with traffic loses frames"
                assert index not in self.diversions
                self.diversions[index] = Diversion(tap, tap if back else 0)
                if back:
                    assert self.interfaces[namespace_names.WIRE][index].master
                    assert tap not in self.diversions
                    self.hooks.add(tap)
                    self.diversions[tap] = Diversion(index)
            case Undivert(_, index, _):
                del self.diversions[index]
            case SetNetem(_, index, _, options):
                report = netem_report(options)
                self.qdiscs[index] = qdisc(index, netem.KIND, netem.HANDLE, report, options.sizes is not None)
            case SetShaper(_, index, _, shaping):
                report = tbf_report(shaping)
                self.qdiscs[index] = qdisc(index, shapers.KIND, shapers.HANDLE, report, shaping.sizes is not None)
            case RemoveQdisc(_, index):
                del self.qdiscs[index]
            case SetLoss(_, index, _, losses):
                self.hooks.add(index)
                self.classifiers[index] = loss_classifier.name_of(losses)
            case RemoveLoss(_, index):
                del self.classifiers[index]
            case AddAddress(key, _, index, address):
                self.addresses[key].setdefault(index, set()).add(address)
            case RemoveAddress(key, _, index, address):
                self.addresses[key][index].discard(address)
            case AddRoute(key, destination, via):
                assert any(interface.up and interface.name != "lo" for interface in self.interfaces[key].values())
                self.routes[key].add((destination, via))
            case RemoveRoute(key, destination, via):
                self.routes[key].discard((destination, via))


def qdisc(index: int, kind: str, handle: int, options: bytes, sized: bool) -> Qdisc:
    """Return a qdisc with unused counters."""
    attributes = {"index": index, "kind": kind, "handle": handle, "options": options, "sized": sized}
    return Qdisc(**{field.name: attributes.get(field.name, 0) for field in fields(Qdisc)})  # type: ignore[arg-type]


def netem_report(options: netem.Options) -> bytes:
    """Return netem's options as the kernel reports them, without the tables."""
    request = memoryview(netem.request(1, options.reportable))
    return bytes(attributes(request[_HEADERS_SIZE:])[_TCA_OPTIONS])


def tbf_report(options: shapers.Options) -> bytes:
    """Return TBF's options as the kernel reports them, with the burst as a time in units of 64 ns."""
    buffer = (options.burst * 1_000_000_000 // options.rate) >> 6
    rate = struct.pack("=BBHhHI", 0, 1, 0, 0, 0, options.rate)
    parms = rate + bytes(12) + struct.pack("=III", options.limit, buffer, 0)
    return struct.pack("=HH", 4 + len(parms), shapers.TCA_TBF_PARMS) + parms


def converged(cluster: Description | Layout) -> Kernel:
    """Return a kernel in which a cluster is up."""
    kernel = Kernel()
    kernel.converge(cluster if isinstance(cluster, Layout) else resolve(cluster))
    return kernel


def interface_named(kernel: Kernel, key: str, name: str) -> Interface:
    return next(interface for interface in kernel.interfaces[key].values() if interface.name == name)


def lines(operations: Sequence[Operation]) -> list[str]:
    return [str(operation) for operation in operations]


def operations_of_change(before: Description, after: Description) -> list[str]:
    """Return the operations that change a cluster, and check that planning again needs none."""
    kernel = converged(before)
    operations = kernel.converge(resolve(after))
    assert kernel.converge(resolve(after)) == []
    return lines(operations)

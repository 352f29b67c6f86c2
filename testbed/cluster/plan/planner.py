"""The planner: derive the ordered kernel operations that turn the existing kernel state into the desired layout.

It performs no I/O. It relies on the kernel's state instead of records, since a link may have been removed by hand, or an
earlier change interrupted. The wire namespace is managed completely; in a node's namespace, only the NICs of the layout,
their addresses and the static routes are.

This module orders the steps. The steps themselves are in `cables`, `switch_ports`, `stages` (links that the kernel
impairs), `diversions` (links that the relay forwards) and `node_settings`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from testbed.cluster.plan import namespace_names, node_settings
from testbed.cluster.plan.cables import Joins, OffloadChanges, make_cable, make_tunnels
from testbed.cluster.plan.diversions import Diversions
from testbed.cluster.plan.draft import Draft, ExistingState, is_pair
from testbed.cluster.plan.kernel_operations import MakeSwitch, Operation, RemoveDevice, RemoveNamespace, SetUp
from testbed.cluster.plan.link_services import LinkServices
from testbed.cluster.plan.stages import Stages
from testbed.cluster.plan.switch_ports import SwitchPorts
from testbed.cluster.plan.veth_wiring import Device
from testbed.spec.layout import Layout, Switch

# Kinds of interfaces that the kernel makes in a new namespace and that cannot be removed.
_KERNEL_KINDS = {"ipip", "sit", "gre", "gretap", "erspan", "vti", "ip6tnl", "ip6gre", "ip6gretap", "ip6erspan", "vti6"}


def plan(
    desired: Layout,
    existing: ExistingState,
    link_services: LinkServices = MappingProxyType({}),
    files: Mapping[str, str] = MappingProxyType({}),
    no_gso: frozenset[Device] = frozenset(),
    *,
    keeps_settings: bool = False,
) -> list[Operation]:
    """Derive the operations that turn the existing state into the desired layout; none if nothing has to change.

    link_services: services of the layout's links. files: path -> text of the tables that their impairments name. no_gso:
    devices on which no GSO frames may be sent, whatever their links allow. keeps_settings: whether nodes that have all their
    NICs keep the addresses, routes and forwarding that programs such as routing daemons have set.

    Raises ValueError if a link that is declared direct is to be impaired or cut; UnsupportedError, BrokenFileError and
    NotFoundError for datapaths and files of links.
    """
    draft = Draft(desired, existing, link_services)
    kept_nodes = node_settings.complete_nodes(draft) if keeps_settings else frozenset()
    ports = SwitchPorts(draft)
    joins, diversions, stages = Joins(draft), Diversions(draft), Stages(draft, ports, files)
    ports.check_port_counts()
    offloads = OffloadChanges(draft, no_gso)

    _remove_obsolete(draft, ports)
    node_settings.make_namespaces(draft, kept_nodes)
    for switch in draft.bridges:
        _make_switch(draft, switch)
    for device in sorted(draft.down & draft.up):
        draft.set_down(device)
    diversions.end_unneeded()
    stages.restore_short_paths()
    joins.part(diversions, stages)
    stages.remove_qdiscs_and_classifiers()
    make_tunnels(draft, ports)
    for cable in draft.wiring.cables:
        make_cable(draft, ports, cable)
    ports.change_settings(stages.unused_patches())
    for cable in draft.wiring.cables:
        if cable.patch:
            draft.set_up(cable.near)
            draft.set_up(cable.far)
    offloads.lower()
    stages.set_qdiscs_and_classifiers()
    joins.make()
    stages.take_long_paths()
    ports.flush_learned()
    for device in draft.wiring.wire_devices:
        draft.set_up(device)
    running = diversions.running_links()
    diversions.divert(draft.wiring.detours.keys() - running)
    offloads.raise_again()
    for node in desired.nodes:
        if node.name not in kept_nodes:
            node_settings.configure(draft, node)
    stages.remove_last_redirections()
    draft.operations += draft.late_removals
    diversions.await_carriers()
    diversions.divert(running)
    return draft.operations


def _remove_obsolete(draft: Draft, ports: SwitchPorts) -> None:
    """Remove objects that the layout does not have.

    Interfaces of patches and stages that may still carry frames are removed by `late_removals`.
    """
    nodes = {node.name for node in draft.desired.nodes}
    wire_indexes = {interface.index for interface in draft.wire.interfaces.values()}
    desired = set(draft.wiring.wire_devices)
    patches_and_stages = {end for name in draft.wire.interfaces for end in _patch_and_stage(name)}
    beside_kept = {end for _, name in draft.kept_in_wire() for end in _patch_and_stage(name)}
    for name, interface in draft.wire.interfaces.items():
        if name == "lo" or interface.kind in _KERNEL_KINDS or (namespace_names.WIRE, name) in draft.kept:
            continue
        removal = RemoveDevice(namespace_names.WIRE, name, interface.index)
        if name in beside_kept and (namespace_names.WIRE, name) not in desired:
            draft.late_removals.append(removal)
            continue
        draft.operations.append(removal)
        if interface.kind == "veth" and interface.peer in wire_indexes and name not in patches_and_stages:
            ports.rerouted = True
    draft.operations += _obsolete_nics(draft, nodes)
    for key in draft.existing.namespaces:
        if key != namespace_names.WIRE and key not in nodes:
            draft.operations.append(RemoveNamespace(key))


def _obsolete_nics(draft: Draft, nodes: set[str]) -> Iterator[RemoveDevice]:
    """Remove obsolete NICs of kept nodes, except those that are removed with their peer."""
    managed = draft.existing.nics | {(node.name, nic.name) for node in draft.desired.nodes for nic in node.nics}
    for key, name in sorted(managed):
        nic = draft.existing_interface((key, name))
        if nic is None or (key, name) in draft.kept or key not in nodes:
            continue
        wire_end = draft.wire.interfaces.get(namespace_names.far_end(key, name))
        if wire_end is None or not is_pair(nic, wire_end):
            yield RemoveDevice(key, name, nic.index)


def _patch_and_stage(device: str) -> tuple[str, ...]:
    """Return the names of the patch and stage interfaces that an impaired link may have beside this device."""
    return (*namespace_names.patch(device), *namespace_names.stage(device))


def _make_switch(draft: Draft, switch: Switch) -> None:
    device = (namespace_names.WIRE, namespace_names.switch(switch.name))
    if device not in draft.kept:
        mac = namespace_names.switch_mac(switch.name)
        draft.operations.append(MakeSwitch(switch.name, device[1], draft.index(device), mac))
    elif not draft.kept[device].up:
        draft.operations.append(SetUp(*device, draft.index(device)))

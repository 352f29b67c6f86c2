"""Changes of a running cluster without a complete plan: pulled and plugged cables, and changes in the relay alone.

A plan inspects every namespace, which takes too much processor time for a flapping cable during a run: only the cable's ends
are set up or down.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial

from testbed.cluster.faults.injections import Injection
from testbed.cluster.plan import namespace_names
from testbed.cluster.plan.kernel_operations import Operation, SetDown, SetUp
from testbed.cluster.plan.link_decisions import Decisions
from testbed.cluster.plan.link_services import DIRECT_SERVICE, LinkServices
from testbed.cluster.plan.netlink_executor import NetlinkExecutor
from testbed.cluster.plan.veth_wiring import Wiring
from testbed.cluster.records.state import State, Store
from testbed.cluster.transitions import is_namespace_at
from testbed.kernel import rtnl_dump
from testbed.kernel.rtnl_dump import Interface
from testbed.runtime.relay.orders import Orders, RelayPaths
from testbed.spec.layout import Layout


def changed_cuts(before: Sequence[Injection], after: Sequence[Injection]) -> set[str]:
    """Return the links that a change of the injections cuts or restores; empty if it also changes anything else."""
    differing = [injection for injection in (*before, *after) if injection not in before or injection not in after]
    if any(injection.places or injection.rules or injection.programs for injection in differing):
        return set()
    return _down(before) ^ _down(after)


def _down(injected: Sequence[Injection]) -> set[str]:
    return {link for injection in injected for link in injection.down}


def cut_operations(
    layout: Layout,
    link_services: LinkServices,
    links: Collection[str],
    find_interface: Callable[[str], Interface | None],
) -> list[Operation] | None:
    """Return the operations that set these links up or down, as in a plan; None if an end is missing, so that a plan is
    needed.

    find_interface: looks up an interface of the wire namespace by name; None if it does not exist.
    """
    wiring = Wiring.from_datapaths(
        layout, {name: link_service.datapath for name, link_service in link_services.items()}
    )
    changes: list[Operation] = []
    for link in sorted(links):
        down = link_services.get(link, DIRECT_SERVICE).down
        for key, device in wiring.link_devices[link]:
            end = find_interface(device)
            if end is None:
                return None
            if end.up == down:
                changes.append(SetDown(key, device, end.index) if down else SetUp(key, device, end.index))
    return changes


def apply_alone(store: Store, intent: State, before: State, decisions: Decisions) -> list[Operation] | None:
    """Apply a change that only pulls or plugs in cables; return its operations.

    intent: the state to write before them. None, without any effect, if more has to change or an interrupted change needs
    repair.
    """
    if before.phase != "up" or intent.datapaths != before.datapaths:
        return None
    links, path = changed_cuts(before.injected, intent.injected), before.namespaces.get(namespace_names.WIRE, "")
    if not links or not is_namespace_at(path, before.inodes.get(namespace_names.WIRE, 0)):
        return None
    with NetlinkExecutor(before.name, lambda key: key, named=False) as executor:
        executor.paths[namespace_names.WIRE] = path
        route = executor.open(namespace_names.WIRE).route
        changes = cut_operations(
            before.layout, decisions.link_services, links, partial(rtnl_dump.interface_named, route)
        )
        if changes is not None:
            store.write(intent)
            executor.apply(changes, lambda _: None)
        return changes


def is_relay_only(store: Store, before: State, decisions: Decisions) -> bool:
    """Whether a change needs no kernel operations: the relay forwards all impaired links before and after it.

    False if an interrupted change may have left the kernel in another state.
    """
    current_orders = RelayPaths(store.directory(before.name)).read_orders() or Orders(0)
    after = {
        link: link_service.datapath
        for link, link_service in decisions.link_services.items()
        if not link_service.is_direct
    }
    return (
        before.phase == "up"
        and after == dict(before.datapaths)
        and set(after.values()) <= {"relay"}
        and _down(before.injected)
        == {link for link, link_service in decisions.link_services.items() if link_service.down}
        and _gso_of(current_orders) == _gso_of(decisions.orders)
    )


def _gso_of(orders: Orders) -> dict[str, tuple[bool, bool]]:
    return {link.name: link.gso for link in orders.links if any(link.gso)}

"""Offloads of devices on spliced links and of agents, by the current state and the relay's orders.

The planner computes this for the wanted state; this module is for code that restores offloads after a pause.
"""

from __future__ import annotations

from testbed.cluster.faults.injections import BOTH
from testbed.cluster.plan.veth_wiring import Device, Wiring
from testbed.cluster.records.state import State, Store, shared_devices
from testbed.kernel.offloads import Offloads
from testbed.runtime.relay.orders import Orders, Places


def offloads_wanted(store: Store, state: State) -> dict[Device, Offloads]:
    """Map devices to their offloads; devices that are missing may use all."""
    shared = dict.fromkeys(shared_devices(state.layout, state.nics), Offloads.NONE)
    wiring = Wiring.of(state.layout, state.datapaths)
    shared |= dict.fromkeys(wiring.uplinks, Offloads.NONE)
    splices = wiring.splices
    if not splices:
        return shared
    from testbed.cluster.plan.datapath_choice import (
        carries_pieces,  # imports code that a cluster without impairments does not need
    )

    orders = Places(store.directory(state.name)).read_orders() or Orders(0)
    carried = {link.name: link for link in orders.links}
    links = {link.name: link for link in state.layout.links}
    found = dict.fromkeys((device for splice in splices.values() for device in splice.senders), Offloads.NONE)
    for name in splices.keys() & carried.keys():
        sides = carried[name].forward, carried[name].backward
        for device, side, direction in zip(splices[name].senders, sides, BOTH, strict=True):
            if carries_pieces(state.layout, links[name], direction, side, orders.files):
                found[device] = Offloads.TCP
    return found | shared

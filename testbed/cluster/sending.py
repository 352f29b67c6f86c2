"""Which unfinished frames those may take that send towards spliced links, or that agents have, as the state and the relay's
orders have it now.

The plan knows the same of what will be; this is for who has had offloads off for a while and puts them back.
"""

from __future__ import annotations

from testbed.cluster.injections import BOTH
from testbed.cluster.shared_nics import shared_devices
from testbed.cluster.state import State, Store
from testbed.cluster.wiring import Device, Wiring
from testbed.kernel.offloads import Offloads
from testbed.runtime.orders import Orders, Places


def offloads_wanted(store: Store, state: State) -> dict[Device, Offloads]:
    """By device; those that are not in it may take all."""
    shared = dict.fromkeys(shared_devices(state.layout, state.nics), Offloads.NONE)
    wiring = Wiring(state.layout, list(state.datapaths))
    shared |= dict.fromkeys(wiring.uplinks, Offloads.NONE)
    splices = wiring.splices
    if not splices:
        return shared
    from testbed.cluster.choosing import carries_pieces  # with all that a cluster without impairments does not need

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

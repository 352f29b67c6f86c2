"""What Myrinet's switches of a cluster that is up have counted, in a run of theirs."""

from __future__ import annotations

from collections.abc import Mapping

from testbed.cluster import carrying
from testbed.cluster.running import RunningCluster
from testbed.cluster.state import Store
from testbed.runtime.orders import DIRECTIONS

Counts = Mapping[str, Mapping[str, int]]
"""By switch: frames that did not go on there, or not whole, by cause; stops, how often NICs at it were told STOP."""


def crossbars(cluster: RunningCluster) -> Counts:
    """Until now; none where the relay does not answer."""
    layout = cluster.state.layout
    names = layout.crossbars()
    said = carrying.report(Store(), cluster.state) if names else None
    if said is None:
        return {}
    found = {name: {**counted, "stops": 0} for name, counted in said["switches"].items()}
    for link in layout.links:
        for direction in DIRECTIONS:
            stops = said["links"].get(link.name, {}).get(direction, {}).get("stops", 0)
            if stops:
                found[(link.b if direction == "forward" else link.a).owner]["stops"] += stops
    return found


def since(before: Counts, now: Counts) -> Counts:
    """What has been counted in between. A relay that has begun anew has counted from nothing."""
    found = {}
    for name, counted in now.items():
        had = before.get(name, {})
        risen = {cause: count - had.get(cause, 0) for cause, count in counted.items()}
        found[name] = risen if min(risen.values()) >= 0 else dict(counted)
    return found

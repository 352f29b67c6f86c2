"""Static IP routes between layer-2 segments, through nodes that have NICs on several of them.

Routes follow paths through the fewest segments; of several gateways at equal distance, the first by name is used.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from testbed.spec.addresses import Network
from testbed.spec.layout import Route

Presence = Mapping[str, Mapping[int, str]]
"""node -> index of a segment -> the node's address in the segment, without prefix length."""


def routes(presence: Presence, networks: Sequence[Network | None]) -> dict[str, list[Route]]:
    """Return the routes of each node to the reachable segments to which it is not attached. networks: by segment."""
    routers = {node: segments for node, segments in sorted(presence.items()) if len(segments) > 1}
    routers_of: dict[int, list[str]] = {}
    for node, segments in routers.items():
        for segment in segments:
            routers_of.setdefault(segment, []).append(node)
    result: dict[str, list[Route]] = {node: [] for node in presence}
    for target, network in enumerate(networks):
        if network is None or target not in routers_of:
            continue
        # By segment from which the target is reachable: the distance, and the first router on the way.
        nearest: dict[int, tuple[int, str]] = {target: (0, "")}
        queue = deque([target])
        while queue:
            segment = queue.popleft()
            for router in routers_of.get(segment, ()):
                for next_segment in routers[router]:
                    distance, best = nearest.get(next_segment, (0, ""))
                    if next_segment not in nearest:
                        queue.append(next_segment)
                        nearest[next_segment] = (nearest[segment][0] + 1, router)
                    elif distance == nearest[segment][0] + 1 and router < best:
                        nearest[next_segment] = (distance, router)
        destination = str(network)
        for node, segments in presence.items():
            if target in segments:
                continue
            reachable = [(nearest[segment], segment) for segment in segments if segment in nearest]
            if reachable:
                (_, router), segment = min(reachable)
                result[node].append(Route(destination, presence[router][segment]))
    return result

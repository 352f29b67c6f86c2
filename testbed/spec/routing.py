"""Static IP routes between layer-2 segments, through nodes that have NICs on several of them.

Shortest paths, counted in segments; among equally near gateways the first by name.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from testbed.spec.addresses import Network
from testbed.spec.layout import Route

Presence = Mapping[str, Mapping[int, str]]
"""node -> segment's place -> the node's address there, without prefix length."""


def routes(presence: Presence, networks: Sequence[Network | None]) -> dict[str, list[Route]]:
    """Return each node's routes to the segments that it is not on; none to unreachable ones."""
    routers = {node: segments for node, segments in sorted(presence.items()) if len(segments) > 1}
    on: dict[int, list[str]] = {}
    for node, segments in routers.items():
        for segment in segments:
            on.setdefault(segment, []).append(node)
    result: dict[str, list[Route]] = {node: [] for node in presence}
    for target, network in enumerate(networks):
        if network is None or target not in on:
            continue
        # For each segment that reaches the target: how far, and through which router that is on it.
        nearest: dict[int, tuple[int, str]] = {target: (0, "")}
        queue = deque([target])
        while queue:
            segment = queue.popleft()
            for router in on.get(segment, ()):
                for further in routers[router]:
                    distance, best = nearest.get(further, (0, ""))
                    if further not in nearest:
                        queue.append(further)
                        nearest[further] = (nearest[segment][0] + 1, router)
                    elif distance == nearest[segment][0] + 1 and router < best:
                        nearest[further] = (distance, router)
        text = str(network)
        for node, segments in presence.items():
            if target in segments:
                continue
            reachable = [(nearest[segment], segment) for segment in segments if segment in nearest]
            if reachable:
                (_, router), segment = min(reachable)
                result[node].append(Route(text, presence[router][segment]))
    return result

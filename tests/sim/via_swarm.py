"""Swarm of MPI over VIA, with RDMA areas and descriptors so few that they wrap around and run out often.

A case has one or two ranks on a node, areas, depths and messages that are registered on the fly. At its end, credits are
conserved: a rank's counts of written and sent parts equal its peer's counts of consumed and received ones, and memory and
descriptors are free.

    python -m tests.sim.via_swarm 4711        run one case again, and shrink it if it fails
    python -m tests.sim.via_swarm 0 1000      a range of them
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from typing import Final, cast

from protocols.mpi.device import Device
from protocols.mpi.via.endpoint import ViaEndpoint
from protocols.via.host import ViaNic, plug
from protocols.via.settings import Settings
from testbed.controller.conformance import message_swarm
from testbed.controller.conformance.message_swarm import TIMEOUT, Case, DeviceTransport, Subject, smaller
from testbed.controller.conformance.network_faults import MICROSECOND, MILLISECOND
from testbed.controller.conformance.trials import Swarm, Violation
from testbed.engine.sources import Source
from testbed.sim.sim_node import SimNode


class ViaTransport(DeviceTransport):
    """Messages by MPI's device on VIA, with its endpoint."""

    def __init__(self, node: SimNode) -> None:
        self.endpoint: Final = ViaEndpoint(cast(ViaNic, node.endpoint))
        super().__init__(Device(self.endpoint))


def _settings(rng: Source, eager: bool) -> dict[str, int]:  # noqa: ARG001  used by other protocols
    timeout = rng.choice((200 * MICROSECOND, MILLISECOND, 5 * MILLISECOND))
    area = rng.choice((512, 2_048, 8_192, 32_768))
    window = rng.choice((1, 2, 16, 32))
    return {
        "timeout": timeout,
        "longest_timeout": timeout * rng.choice((1, 4, 32)),
        "window": window,
        "acknowledge": min(window, rng.choice((1, 8))),
        "area": area,
        "buffer": area // rng.choice((4, 8)),
        "depth": rng.choice((8, 12, 32)),
        "register_from": rng.choice((0, 60, 2_000)),
        "connect_all": rng.choice((0, 1)),
    }


def check_rest(nodes: Sequence[SimNode], transports: Sequence[ViaTransport]) -> None:
    """Check that nothing is leaked, or lost between ranks. Raises Violation."""
    endpoints = [transport.endpoint for transport in transports]
    for node, endpoint in zip(nodes, endpoints, strict=True):
        nic = cast(ViaNic, node.endpoint)
        if nic.registered != 2 * len(endpoint.pairs):
            raise Violation(f"{node.name} leaks memory: {nic.registered} for {len(endpoint.pairs)} connections")
        posted_count = sum(pair.depth for pair in endpoint.pairs.values())
        if (
            nic.settings.slots - nic.free_descriptors != posted_count + 2
        ):  # a command waits for requests, one for errors
            raise Violation(
                f"{node.name} leaks descriptors: {nic.free_descriptors} are free, {posted_count} are posted"
            )
        for pair in endpoint.pairs.values():
            reverse_pair = endpoints[pair.peer].pairs[endpoint.rank]
            if (pair.sent_part_count, pair.written) != (reverse_pair.received_part_count, reverse_pair.consumed):
                raise Violation(f"{node.name} to rank {pair.peer}: credits are lost, or there are too many")


VIA: Final = Subject("via", lambda settings: plug(Settings(**settings)), ViaTransport, _settings, check=check_rest)


def draw(seed: int) -> Case:
    """Draw the case of a seed."""
    return message_swarm.draw(seed, VIA)


def run(case: Case, timeout: int = TIMEOUT) -> Counter[str]:
    """Run a case; return its NICs' counters. Raises Violation."""
    return message_swarm.run(case, VIA, timeout)


SWARM: Final = Swarm("python -m tests.sim.via_swarm", draw, run, smaller)


if __name__ == "__main__":
    sys.exit(SWARM.main(sys.argv[1:]))

"""Cases of EMP's swarm on its host library, with so few descriptors that they run out.

python -m tests.sim.swarm 4711        repeat one case, and shrink it if it fails
python -m tests.sim.swarm 0 1000      a range of them
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from typing import Final, Protocol, cast

from protocols.core.completion import Completion
from protocols.core.firmware import Host
from protocols.emp import host as emp
from protocols.emp.settings import Settings
from testbed.controller.conformance import message_swarm
from testbed.controller.conformance.message_swarm import TIMEOUT, Case, Subject, smaller
from testbed.controller.conformance.network_faults import MICROSECOND, MILLISECOND
from testbed.controller.conformance.trials import Swarm, Violation
from testbed.engine.sources import Source
from testbed.sim.sim_node import SimNode


class Matching(Host, Protocol):
    """A host library with posted sends and receives."""

    def post_send(self, destination: int, tag: int, data: bytes | bytearray) -> Completion[emp.ReceiveResult]: ...
    def post_receive(self, source: int, tag: int, buffer: bytearray) -> Completion[emp.ReceiveResult]: ...
    def post_probe(self, source: int, tag: int, *, claim: bool) -> Completion[emp.ProbeResult | None]: ...
    def post_claimed(self, probed: emp.ProbeResult, buffer: bytearray) -> Completion[emp.ReceiveResult]: ...
    @property
    def free_descriptors(self) -> int: ...
    @property
    def pinned(self) -> int: ...


class EmpTransport:
    """Messages through EMP's host library. free_descriptors: number of them at the beginning."""

    wildcards = (emp.ANY_SOURCE, emp.ANY_TAG)
    failures: tuple[type[Exception], ...] = (emp.EmpError,)

    def __init__(self, node: SimNode) -> None:
        self.endpoint: Final = cast(Matching, node.endpoint)
        self.free_descriptors: Final = self.endpoint.free_descriptors

    async def connect(self) -> None:
        """Do nothing: EMP has no connections."""

    def send(self, destination: int, tag: int, data: bytearray, synchronous: bool) -> Completion[emp.ReceiveResult]:
        assert not synchronous
        return self.endpoint.post_send(destination, tag, data)

    def receive(self, source: int, tag: int, buffer: bytearray) -> Completion[emp.ReceiveResult]:
        return self.endpoint.post_receive(source, tag, buffer)


def _settings(rng: Source, eager: bool) -> dict[str, int]:
    timeout = rng.choice((200 * MICROSECOND, MILLISECOND, 5 * MILLISECOND))
    return {
        "unit": rng.choice((1, 2, 3, 3, 5)),
        "timeout": timeout,
        "longest_timeout": timeout * rng.choice((1, 4, 32)),
        "window": rng.choice((1, 2, 16)),
        # With few, receives posted in another order than the messages arrive in would deadlock.
        "held": 640 if eager else rng.choice((1, 3, 640)),
    }


def _check(nodes: Sequence[SimNode], transports: Sequence[EmpTransport]) -> None:
    for node, transport in zip(nodes, transports, strict=True):
        endpoint = transport.endpoint
        if endpoint.pinned or endpoint.free_descriptors != transport.free_descriptors:
            raise Violation(
                f"{node.name} leaks: {endpoint.pinned} regions, {transport.free_descriptors - endpoint.free_descriptors} "
                "descriptors"
            )


EMP: Final = Subject(
    "emp", lambda settings: emp.plug(Settings(**settings)), EmpTransport, _settings, is_mpi=False, rest=0, check=_check
)


def draw(seed: int) -> Case:
    """Draw the case of a seed."""
    return message_swarm.draw(seed, EMP)


def run(case: Case, timeout: int = TIMEOUT) -> Counter[str]:
    """Run a case; return its NICs' counters. Raises Violation."""
    rows = message_swarm.run(case, EMP, timeout)
    if rows["messages_sent"] != len(case.messages) or rows["messages_received"] != len(case.messages):
        raise Violation(f"{len(case.messages)} messages, but counters {rows}")
    return rows


async def await_success(completion: Completion[emp.ReceiveResult]) -> emp.ReceiveResult:
    """Wait for a completion that must not fail. Raises Violation if it does."""
    try:
        return await completion
    except emp.EmpError as error:
        raise Violation(f"{completion} failed: {error}") from error


SWARM: Final = Swarm("python -m tests.sim.swarm", draw, run, smaller)


if __name__ == "__main__":
    sys.exit(SWARM.main(sys.argv[1:]))

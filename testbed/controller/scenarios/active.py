"""Active faults and the interfaces of their stage and programs, common to the simulation and namespaces."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from testbed.controller.scenarios.moments import Occurrence

Counts = Mapping[str, int]


@dataclass(slots=True)
class Active:
    """A fault in force.

    counted: its counters since its beginning, by name. needed: the counters of which one must have moved; empty: any.
    lift takes it out of force; its argument is whether the run has ended before the fault's own end. reason: why it
    could have no effect.
    """

    occurrence: Occurrence
    counted: Callable[[], Counts]
    lift: Callable[[bool], object]
    needed: tuple[str, ...] = ()
    reason: str = ""

    def moved(self, counts: Counts) -> bool:
        """Whether the fault had an effect."""
        return any(counts.get(name, 0) for name in self.needed or counts)


class Programs(Protocol):
    """Programs on nodes: node processes (`runtime.nodes.node_run.Run`) or commands."""

    @property
    def begun(self) -> int:
        """When the programs begin, monotonic nanoseconds; the present until it is known."""
        ...

    @property
    def pids(self) -> Mapping[str, int]:
        """Process IDs, one for each node, by node."""
        ...

    def at(self, when: int, act: Callable[[], object]) -> None:
        """Schedule a call, nanoseconds after the programs begin."""
        ...

    def has_ended(self, node: str) -> bool: ...

    def ranks_on(self, node: str) -> Sequence[str]: ...
    def crash(self, node: str, *, returns: bool = False) -> None: ...
    def restart(self, node: str) -> None: ...
    def pause(self, node: str) -> None: ...
    def resume(self, node: str) -> None: ...


class Stage(Protocol):
    """A mode's implementation of faults."""

    def begin(self, occurrence: Occurrence) -> Active:
        """Put a fault in force. Raises TestbedError where that is impossible."""
        ...


GONE: Final = "no program ran there any more"

ELSEWHERE: Final = "it is on other machines"

NOTHING_PRICED: Final = (
    "the profile 'ideal' prices nothing, so that nothing in a NIC can take longer; --profile says another one"
)

HOLD: Final = "drop eth.type == 0xffff"
"""A rule that matches no frame. Only the relay knows rules: it carries the links that have one."""

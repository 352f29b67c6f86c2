"""Active faults, and the interfaces of their injector and of programs, common to the simulation and namespaces."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from testbed.controller.scenarios.timeline import Occurrence

Counts = Mapping[str, int]


@dataclass(slots=True)
class ActiveFault:
    """A fault in force.

    read_counts: returns counters since the fault began, by name. lift: ends the fault; its argument is whether the run has
    ended before the fault's own end. decisive: counters of which at least one rises if the fault has an effect; empty: any
    counter. reason: why the fault cannot have an effect, or empty.
    """

    occurrence: Occurrence
    read_counts: Callable[[], Counts]
    lift: Callable[[bool], object]
    decisive: tuple[str, ...] = ()
    reason: str = ""

    def had_effect(self, counts: Counts) -> bool:
        """Whether the fault had an effect, by its counters."""
        return any(counts.get(name, 0) for name in self.decisive or counts)


class Programs(Protocol):
    """Programs on nodes: node processes (`runtime.nodes.node_run.Run`) or commands. Except for `ranks_on`, `node` is the
    name of a rank, which is the node's name if it has one rank."""

    @property
    def start_time(self) -> int:
        """When the programs began, monotonic nanoseconds; the current time until they begin."""
        ...

    @property
    def pids(self) -> Mapping[str, int]:
        """Process ID by rank."""
        ...

    def at(self, when: int, act: Callable[[], object]) -> None:
        """Schedule a call. when: nanoseconds after the programs began."""
        ...

    def has_ended(self, node: str) -> bool: ...

    def ranks_on(self, node: str) -> Sequence[str]:
        """Return the names of a node's ranks."""
        ...

    def crash(self, node: str, *, restarts: bool = False) -> None: ...
    def restart(self, node: str) -> None: ...
    def pause(self, node: str) -> None: ...
    def resume(self, node: str) -> None: ...


class FaultInjector(Protocol):
    """Implementation of faults in one mode."""

    def begin(self, occurrence: Occurrence) -> ActiveFault:
        """Put a fault in force. Raises TestbedError if that is impossible."""
        ...


NO_PROGRAM: Final = "no program was running there"

ELSEWHERE: Final = "it is on other machines"

NO_COSTS: Final = "the profile 'ideal' has no costs, so a NIC cannot become slower; --profile selects another profile"

HOLD: Final = "drop eth.type == 0xffff"
"""Rule that matches no frame. Only the relay implements rules, so it carries every link with this rule."""

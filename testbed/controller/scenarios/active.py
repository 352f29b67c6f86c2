"""What both ways of carrying out faults have in common: a fault in force, what it has done, and its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from testbed.controller.scenarios.timeline import Occurrence

Counts = Mapping[str, int]


@dataclass(slots=True)
class Active:
    """A fault in force.

    counted: what it has done since its beginning, by name. needed: of which counters one must have moved; empty: any. lift
    takes it out of force; over: because the run is over, and not at its own end. reason: why it could do nothing.
    """

    occurrence: Occurrence
    counted: Callable[[], Counts]
    lift: Callable[[bool], object]
    needed: tuple[str, ...] = ()
    reason: str = ""

    def moved(self, counts: Counts) -> bool:
        """Whether it has happened."""
        return any(counts.get(name, 0) for name in self.needed or counts)


class Programs(Protocol):
    """What runs on nodes: node processes (`runtime.nodes.run.Run`) or commands."""

    @property
    def begun(self) -> int:
        """When all had begun, monotonic nanoseconds."""
        ...

    @property
    def pids(self) -> Mapping[str, int]:
        """A process of each node, by node."""
        ...

    def at(self, when: int, act: Callable[[], object]) -> None: ...
    def has_ended(self, node: str) -> bool: ...
    def crash(self, node: str, *, returns: bool = False) -> None: ...
    def restart(self, node: str) -> None: ...
    def pause(self, node: str) -> None: ...
    def resume(self, node: str) -> None: ...


class Stage(Protocol):
    """Where faults are carried out."""

    def begin(self, occurrence: Occurrence) -> Active:
        """Put it in force. Raises TestbedError where that cannot be."""
        ...


GONE: Final = "no program ran there any more"

NOTHING_PRICED: Final = (
    "the profile 'ideal' prices nothing, so that nothing in a NIC can take longer; --profile says another one"
)

HOLD: Final = "drop eth.type == 0xffff"
"""A rule that no frame meets. Only the relay knows rules: it carries the links that have one."""

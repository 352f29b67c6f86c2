"""Counters of one direction of a link, by cause.

Conservation of frames: offered + duplicated = delivered + dropped + in flight, at all times.

Rules and random impairments count frames in cells of `Tallies`, which may be persistent.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, Protocol, TypeAlias

from protocols.core.compiled_build import mypyc_attr


class Outcome(Enum):
    """Result of `LinkDirection.offer`. All but ACCEPTED are causes of drops."""

    ACCEPTED = "accepted"
    RULE = "rule"
    LOSS = "loss"
    GEMODEL = "gemodel"
    PATTERN = "loss_pattern"
    QUEUE = "queue"

    @property
    def dropped(self) -> bool:
        return self is not Outcome.ACCEPTED


CAUSES: Final = ("rule", "loss", "gemodel", "loss_pattern", "queue")
"""Causes of drops: the counters' names."""

FATES: Final = ("corrupted", "duplicated", "reordered", "delayed")
"""Fates other than drops: the counters' names."""


_NAMES: Final = (
    "blocked", "corrupted", "delayed", "delivered", "delivered_bytes", "duplicated", "gemodel", "loss", "loss_pattern",
    "offered", "queue", "reordered", "rule",
)  # fmt: skip


class Counters:
    """Counters of frames; `delivered_bytes` counts bytes. `queue` also counts copies, the other causes only offered
    frames."""

    __slots__ = _NAMES

    def __init__(self) -> None:
        self.offered = 0
        self.delivered = 0
        self.delivered_bytes = 0
        self.blocked = 0
        """Offers rejected by back-pressure."""
        self.rule = 0
        self.loss = 0
        self.gemodel = 0
        self.loss_pattern = 0
        self.queue = 0
        self.corrupted = 0
        self.duplicated = 0
        self.reordered = 0
        self.delayed = 0
        """Frames delayed by a rule, beyond the direction's own delay."""

    def drop(self, cause: Outcome) -> None:
        """Count a dropped frame."""
        setattr(self, cause.value, getattr(self, cause.value) + 1)

    @property
    def dropped(self) -> int:
        """Number of frames dropped, for all causes."""
        return self.rule + self.loss + self.gemodel + self.loss_pattern + self.queue

    def by_name(self) -> dict[str, int]:
        """Return all counters by name."""
        return {name: getattr(self, name) for name in _NAMES}


class Numbers(Protocol):
    __slots__ = ()

    def __getitem__(self, index: int, /) -> int: ...

    def __setitem__(self, index: int, value: int, /) -> None: ...


Cell: TypeAlias = tuple[Numbers, int]
"""The counts of which one is the cell's, and its index."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Tallies:
    """Cells of counts, in memory."""

    __slots__ = ()

    @property
    def is_persistent(self) -> bool:
        """Whether the counts outlive the process."""
        return False

    def cell(self, key: tuple[object, ...], within: int | None = None) -> Cell:  # noqa: ARG002  for persistent cells
        """Make a cell for a count. It starts at 0, or continues with a persistent count.

        key: identifies the count among those with the same `within`. within: index of the count of which this one is a part.
        """
        return [0], 0

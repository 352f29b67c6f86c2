"""Outcomes and fates by which frames are counted, and the storage of the counts by which fates are decided.

Rules and random impairments count frames in cells of `Tallies`, which may be persistent.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, Protocol, TypeAlias


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


class Numbers(Protocol):
    """A mutable sequence of counts, such as a list or a memory-mapped array."""

    def __getitem__(self, index: int, /) -> int: ...

    def __setitem__(self, index: int, value: int, /) -> None: ...


Cell: TypeAlias = tuple[Numbers, int]
"""A sequence of counts, and the index of the cell's count in it."""


class Tallies:
    """Storage of counts, in memory."""

    __slots__ = ()

    @property
    def is_persistent(self) -> bool:
        """Whether the counts outlive the process."""
        return False

    def cell(self, key: tuple[object, ...], within: int | None = None) -> Cell:  # noqa: ARG002  for persistent cells
        """Make a cell for a count. The count starts at 0, or continues a persistent count.

        key: identifies the count among those with the same `within`. within: index of the parent count; None: the count is
        not a part of another one.
        """
        return [0], 0

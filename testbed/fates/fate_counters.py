"""Counters of one direction of a link, by cause.

Conservation of frames: offered + duplicated = delivered + dropped + held, at every moment.

Rules, and what leaves fates to chance, count in cells of `Tallies`, which may outlive a process.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, Protocol, TypeAlias


class Outcome(Enum):
    """Result of `LinkDirection.offer`. Each but ACCEPTED is the cause of a drop."""

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


class Counters:
    """Counters of frames, unless the name says bytes. queue counts copies too, the other causes only offered frames."""

    __slots__ = (
        "blocked",
        "corrupted",
        "delayed",
        "delivered",
        "delivered_bytes",
        "duplicated",
        "gemodel",
        "loss",
        "loss_pattern",
        "offered",
        "queue",
        "reordered",
        "rule",
    )

    def __init__(self) -> None:
        self.offered = 0
        self.delivered = 0
        self.delivered_bytes = 0
        self.blocked = 0
        """Offers that were refused by back-pressure."""
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
        """Frames dropped by any cause."""
        return self.rule + self.loss + self.gemodel + self.loss_pattern + self.queue

    def by_name(self) -> dict[str, int]:
        """Return all counters."""
        return {name: getattr(self, name) for name in self.__slots__}


class Numbers(Protocol):
    def __getitem__(self, place: int, /) -> int: ...

    def __setitem__(self, place: int, number: int, /) -> None: ...


Cell: TypeAlias = tuple[Numbers, int]
"""The numbers among which a count stands, and its place there."""


class Tallies:
    """Cells in memory."""

    __slots__ = ()

    @property
    def is_kept(self) -> bool:
        """Whether they outlive the process."""
        return False

    def cell(self, key: tuple[object, ...], within: int | None = None) -> Cell:  # noqa: ARG002  kept ones are told apart
        """Make a cell for a count that begins, at 0, or, where cells are kept, goes on.

        key: tells it from all others of its kind. within: the place of the count of which it is a part, if it is one.
        """
        return [0], 0

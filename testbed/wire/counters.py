"""What one direction has done, counted by cause.

What goes in comes out: offered + duplicated = delivered + dropped + held, at every moment.
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class Outcome(Enum):
    """What `Direction.offer` says about a frame. Everything but ACCEPTED and BLOCKED is a drop and says its cause."""

    ACCEPTED = "accepted"
    BLOCKED = "blocked"
    """Back-pressure: the frame was not taken and nothing has counted it; offer it again when there is space."""
    RULE = "rule"
    LOSS = "loss"
    GEMODEL = "gemodel"
    PATTERN = "loss_pattern"
    QUEUE = "queue"

    @property
    def dropped(self) -> bool:
        return self is not Outcome.ACCEPTED and self is not Outcome.BLOCKED


CAUSES: Final = ("rule", "loss", "gemodel", "loss_pattern", "queue")
"""Of drops: the counters' names."""


class Counters:
    """Frames, unless the name says bytes. queue counts copies too, the other causes of drops only frames offered."""

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
        """By a rule, beyond the direction's own delay."""

    @property
    def dropped(self) -> int:
        """For whatever cause."""
        return self.rule + self.loss + self.gemodel + self.loss_pattern + self.queue

    def by_name(self) -> dict[str, int]:
        """All of them."""
        return {name: getattr(self, name) for name in self.__slots__}

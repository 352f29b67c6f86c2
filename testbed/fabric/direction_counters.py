"""Counters of the frames in one direction of a link, by outcome and by cause of drops.

Conservation of frames: offered + duplicated = delivered + dropped + in flight, at all times.
"""

from __future__ import annotations

from typing import Final

from testbed.fates.fate_counters import Outcome

_NAMES: Final = (
    "blocked", "corrupted", "delayed", "delivered", "delivered_bytes", "duplicated", "gemodel", "loss", "loss_pattern",
    "offered", "queue", "reordered", "rule",
)  # fmt: skip


class Counters:
    """Counters of frames; only `delivered_bytes` counts bytes. `queue` also counts dropped copies, the other causes only
    offered frames."""

    __slots__ = _NAMES

    def __init__(self) -> None:
        self.offered = 0
        self.delivered = 0
        self.delivered_bytes = 0
        self.blocked = 0
        """Number of offers rejected by back-pressure."""
        self.rule = 0
        self.loss = 0
        self.gemodel = 0
        self.loss_pattern = 0
        self.queue = 0
        self.corrupted = 0
        self.duplicated = 0
        self.reordered = 0
        self.delayed = 0
        """Number of frames delayed by a rule, beyond the direction's own delay."""

    def drop(self, cause: Outcome) -> None:
        """Count a dropped frame."""
        setattr(self, cause.value, getattr(self, cause.value) + 1)

    @property
    def dropped(self) -> int:
        """Number of frames dropped, of all causes."""
        return self.rule + self.loss + self.gemodel + self.loss_pattern + self.queue

    def by_name(self) -> dict[str, int]:
        """Return all counters by name."""
        return {name: getattr(self, name) for name in _NAMES}

"""Firmware stand-in that queues events while a node is paused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from protocols.core.firmware import Firmware


class Standstill:
    """Replaces the firmware of a paused node. came: received frames and rung descriptors, in order."""

    __slots__ = ("came", "deadline", "firmware")

    def __init__(self, firmware: Firmware) -> None:
        self.firmware: Final = firmware
        self.came: Final[list[bytes | int]] = []
        self.deadline: int | None = None

    def receive(self, now: int, frame: bytes) -> None:  # noqa: ARG002
        self.came.append(frame)

    def ring(self, now: int, index: int) -> None:  # noqa: ARG002
        self.came.append(index)

    def tick(self, now: int) -> None:
        """Ignore a deadline that passed before the pause took effect."""

    def counted(self) -> Mapping[str, int]:
        return self.firmware.counted()

    def waiting(self) -> list[str]:
        return [f"its node stands still, {len(self.came)} frames and descriptors wait", *self.firmware.waiting()]

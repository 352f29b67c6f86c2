"""The entrance of a link's direction in a network whose switches are modelled: its cable, fates and counters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from testbed.errors import UnsupportedError
from testbed.fabric.direction import check
from testbed.fates.fate_counters import Counters, Outcome
from testbed.fates.stage import FateOptions, FateStage
from testbed.spec.kinds import Kind
from testbed.spec.layout import DirectionName, Impairment


class Entrance:
    """The entrance of a channel: cable, fates and counters; the network decides when frames pass.

    take: called with each frame that enters; an observer may replace it. lost: frames that entered while the cable was out.
    put_aside: frames that a rule has just delayed or duplicated, each with the time at which it enters again. A rule that
    reorders has no effect, since no frame can be overtaken.
    """

    __slots__ = ("_kind", "_link", "_name", "counters", "fates", "is_cut", "lost", "put_aside", "take")

    def __init__(
        self, link: str, direction: DirectionName, impairment: Impairment, options: FateOptions, kind: Kind
    ) -> None:
        """Raises what `Direction` does, and UnsupportedError for impairments that no link at such switches can have."""
        self._link = link
        self._name = direction
        self._kind = kind
        self._check(impairment)
        self.fates: Final = FateStage(link, direction, impairment, options)
        self.counters: Final = Counters()
        self.is_cut = False
        self.lost = 0
        self.put_aside: Final[list[tuple[int, bytes]]] = []
        self.take: Callable[[int, bytes], bytes | None] = self.enter

    def change(
        self, now: int, impairment: Impairment, files: Mapping[str, str] | None = None, restart: bool | None = None
    ) -> None:
        """Set another impairment, as `Direction.change`. Raises what the constructor does; then nothing has changed."""
        self._check(impairment)
        self.fates.change(now, impairment, files, restart)

    def enter(self, now: int, frame: bytes) -> bytes | None:
        """Let a frame enter; return it as the network gets it, or None if it is lost or delayed."""
        if self.is_cut:
            self.lost += 1
            return None
        counters = self.counters
        counters.offered += 1
        if self.fates.is_uneventful:
            return frame  # flows are counted only while frames may have a fate
        verdict = self.fates.decide(now, frame)
        if verdict is None:
            return frame
        if verdict.outcome is not Outcome.ACCEPTED:
            counters.drop(verdict.outcome)
            return None
        counters.corrupted += verdict.flipped
        counters.delayed += verdict.late > 0
        counters.reordered += verdict.skip
        counters.duplicated += verdict.copy
        is_late = verdict.late > 0
        self.put_aside.extend([(now + verdict.late, verdict.frame)] * (is_late + verdict.copy))
        return None if is_late else verdict.frame

    def came(self, frame: bytes) -> None:
        """Count a frame that has crossed the channel."""
        counters = self.counters
        counters.delivered += 1
        counters.delivered_bytes += len(frame)

    def _check(self, impairment: Impairment) -> None:
        if found := self._kind.unsupported(impairment):
            raise UnsupportedError(f"{self._link}: {self._kind.why_lacks}: it can have no {', '.join(found)}")
        check(self._link, self._name, impairment)

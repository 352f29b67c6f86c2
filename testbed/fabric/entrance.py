"""Entrance of a link's direction in a modelled network: cable, fates and counters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from testbed.errors import UnsupportedError
from testbed.fabric.direction import check_impairment
from testbed.fabric.direction_counters import Counters
from testbed.fabric.interface import Receive, discard
from testbed.fates.fate_counters import Outcome
from testbed.fates.stage import FateOptions, FateStage
from testbed.spec.kinds import Kind
from testbed.spec.layout import DirectionName, Impairment


class Entrance:
    """Entrance of a channel: cable, fates and counters. The network determines when frames enter. A rule that reorders
    frames has no effect, since no frame can be overtaken.

    take: called by the network with each frame that enters; calls `enter`, and the observer if there is one. is_cut: whether
    the cable is pulled. lost: number of frames that entered while it was. deferred: frames that a rule has just delayed or
    duplicated, with the times at which they enter the network.
    """

    __slots__ = ("_kind", "_link", "_name", "_observer", "counters", "deferred", "fates", "is_cut", "lost", "take")

    def __init__(
        self, link: str, direction: DirectionName, impairment: Impairment, options: FateOptions, kind: Kind
    ) -> None:
        """kind: kind of the network. Raises the errors of `LinkDirection`, and UnsupportedError for impairments that this
        kind of network does not support."""
        self._link = link
        self._name = direction
        self._kind = kind
        self._check(impairment)
        self.fates: Final = FateStage(link, direction, impairment, options)
        self.counters: Final = Counters()
        self.is_cut = False
        self.lost = 0
        self.deferred: Final[list[tuple[int, bytes]]] = []
        self.take: Callable[[int, bytes], bytes | None] = self.enter
        self._observer: Receive = discard

    def change(
        self, now: int, impairment: Impairment, files: Mapping[str, str] | None = None, restart: bool | None = None
    ) -> None:
        """Set another impairment, as `LinkDirection.change`. Raises the constructor's errors before anything changes."""
        self._check(impairment)
        self.fates.change(now, impairment, files, restart)

    @property
    def overflowed(self) -> int:
        """Always 0, since the entrance has no queue; the network counts the frames that it drops."""
        return 0

    def observe(self, observer: Receive | None) -> None:
        """Call `observer` after each frame that enters, even if the frame is lost; None: call none."""
        self._observer = discard if observer is None else observer
        self.take = self.enter if observer is None else self._enter_observed

    def enter(self, now: int, frame: bytes) -> bytes | None:
        """Decide a frame's fate; return the frame for the network, or None if it is lost or delayed."""
        if self.is_cut:
            self.lost += 1
            return None
        counters = self.counters
        counters.offered += 1
        if self.fates.passes_all:
            return frame  # the frames of flows are counted only while a frame may not pass
        verdict = self.fates.decide(now, frame)
        if verdict is None:
            return frame
        if verdict.outcome is not Outcome.ACCEPTED:
            counters.drop(verdict.outcome)
            return None
        counters.corrupted += verdict.flipped
        counters.delayed += verdict.extra_delay > 0
        counters.reordered += verdict.skip
        counters.duplicated += verdict.copy
        is_delayed = verdict.extra_delay > 0
        self.deferred.extend([(now + verdict.extra_delay, verdict.frame)] * (is_delayed + verdict.copy))
        return None if is_delayed else verdict.frame

    def _enter_observed(self, now: int, frame: bytes) -> bytes | None:
        accepted = self.enter(now, frame)
        self._observer(now, frame)
        return accepted

    def count_delivered(self, frame: bytes) -> None:
        """Count a frame that the channel has delivered."""
        counters = self.counters
        counters.delivered += 1
        counters.delivered_bytes += len(frame)

    def _check(self, impairment: Impairment) -> None:
        if unsupported := self._kind.unsupported(impairment):
            raise UnsupportedError(f"{self._link}: {self._kind.why_lacks}: it can have no {', '.join(unsupported)}")
        check_impairment(self._link, self._name, impairment)

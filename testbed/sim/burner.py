"""Who uses a node's core, in the model: as in namespaces (`testbed.cluster.contention`) a share of every 10 ms."""

from __future__ import annotations

from typing import Final

from testbed.engine.loop import Loop
from testbed.engine.server import Server

_PERIOD: Final = 10_000_000  # ns


class Burner:
    """Takes a share of a core. busy: nanoseconds that it has taken."""

    def __init__(self, loop: Loop, core: Server, share: float) -> None:
        self._loop = loop
        self._core = core
        self._cost = round(share * _PERIOD)
        self._goes_on = True
        self.busy = 0
        self._burn(loop.now())

    def stop(self) -> None:
        self._goes_on = False

    def _burn(self, now: int) -> None:
        if self._goes_on:
            self._core.reserve(now, self._cost)
            self.busy += self._cost
            self._loop.at(now + _PERIOD, self._burn)

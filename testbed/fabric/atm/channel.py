"""Channel: one direction of an ATM link, with the cells that wait at its start and the cells in flight.

Cells wait in a NIC's output FIFO, which accepts no cell while it is full, or in the output buffer of a switch, which drops
cells while it is full. A cell leaves the buffer when its first bit is sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from protocols.atm.cell import ETHERNET, cells_of
from testbed.fabric.entrance import Entrance
from testbed.fabric.interface import Receive, SwitchPort, discard
from testbed.fates.fate_counters import Outcome
from testbed.fates.stage import FateOptions
from testbed.spec.kinds import ATM
from testbed.spec.layout import DirectionName, Impairment

if TYPE_CHECKING:
    from testbed.fabric.atm.network import Network

_BITS: Final = 8 * 10**9
"""A byte at a rate in bit/s takes _BITS / rate nanoseconds."""


class Channel:
    """One direction of a link. Implements `fabric.interface.Channel`; the frames on it have one cell each.

    start, end: the switch ports at its start and end; None: a NIC.
    """

    __slots__ = (
        "_buffer", "_busy", "_busy_fraction", "_cell_bits", "_delay", "_hop", "_is_space_requested", "_last",
        "_network", "_rate", "_waiting", "end", "entrance", "in_flight", "on_space", "receive", "start",
    )  # fmt: skip

    def __init__(
        self,
        link: str,
        direction: DirectionName,
        impairment: Impairment,
        options: FateOptions,
        network: Network,
        start: SwitchPort | None,
        end: SwitchPort | None,
    ) -> None:
        """Raises the errors of `Entrance`."""
        self.entrance: Final = Entrance(link, direction, impairment, options, ATM)
        self.start: Final = start
        self.end: Final = end
        self.on_space: Callable[[int], object] | None = None
        self.receive: Receive = discard
        self.in_flight = 0
        """Number of cells that wait, are in flight, or are delayed by a rule."""
        self._network = network
        # Times at which the first bit of each cell is sent, ns; includes sent cells until the next clean-up.
        self._waiting: deque[int] = deque()
        self._busy = 0  # time until which the link is sending
        self._busy_fraction = 0  # fraction of a nanosecond of `_busy`, in units of 1 / _rate
        self._last = 0  # arrival of the last cell in order
        self._is_space_requested = False  # whether the NIC waits for space
        self._hop = 0 if end is None else network.settings.hop
        self._apply(impairment)

    def change(
        self, now: int, impairment: Impairment, files: Mapping[str, str] | None = None, restart: bool | None = None
    ) -> None:
        """Set another impairment, as `LinkDirection.change`. Accepted cells keep their schedule."""
        self.entrance.change(now, impairment, files, restart)
        if impairment.rate != self._rate:
            self._busy_fraction = 0
        self._apply(impairment)

    def offer(self, now: int, frame: bytes) -> bool:
        """Offer a NIC's frame of one or more cells. Return False if the output FIFO is full; `on_space` is called when it
        has space."""
        self._remove_sent(now)
        if len(self._waiting) >= self._buffer:
            self.entrance.counters.blocked += 1
            if not self._is_space_requested:
                self._is_space_requested = True
                self._network.at(self._waiting[0], self._on_fifo_space, frame)
            return False
        for cell in cells_of(frame):
            self.enter(now, cell)
        return True

    def enter(self, now: int, frame: bytes) -> bool:
        """Accept a cell from a NIC or a switch. Return False if the cell is lost because the buffer is full."""
        accepted = self.entrance.take(now, frame)
        for when, delayed in self.entrance.deferred:
            self.in_flight += 1
            self._network.at(when, self._reenter, delayed)
        self.entrance.deferred.clear()
        return accepted is None or self._send(now, accepted)

    def leave(self) -> None:
        """Remove the direction; its cells in flight are lost."""
        self.receive = discard
        self._network.leave(self)

    def _send(self, now: int, frame: bytes) -> bool:
        self._remove_sent(now)
        start_time = self._busy
        if start_time <= now:
            start_time, self._busy_fraction = now, 0
        elif self.start is not None and len(self._waiting) >= self._buffer:
            self.entrance.counters.drop(Outcome.QUEUE)
            return False
        else:
            self._waiting.append(start_time)
        nanoseconds, self._busy_fraction = divmod(self._cell_bits + self._busy_fraction, self._rate)
        self._busy = start_time + nanoseconds
        self._last = max(self._last, self._busy + self._delay)  # no cell overtakes when the delay becomes shorter
        self.in_flight += 1
        self._network.at(self._last + self._hop, self._arrive, frame)
        return True

    def _arrive(self, now: int, frame: bytes) -> None:
        self.in_flight -= 1
        self.entrance.count_delivered(frame)
        if self.end is None:
            self.receive(now, frame)
        else:
            self._network.forward(now, self.end, frame)

    def _reenter(self, now: int, frame: bytes) -> None:
        """Send a cell that a rule has delayed or duplicated."""
        self.in_flight -= 1
        if not self._send(now, frame):
            self._network.drop_at_full_buffer(now, self, frame)

    def _on_fifo_space(self, now: int, _: bytes) -> None:
        """Notify the NIC that its output FIFO has space."""
        self._is_space_requested = False
        if self.on_space is not None:
            self.on_space(now)

    def _remove_sent(self, now: int) -> None:
        waiting = self._waiting
        while waiting and waiting[0] <= now:
            waiting.popleft()

    def _apply(self, impairment: Impairment) -> None:
        settings = self._network.settings
        self._delay = impairment.delay
        self._rate = impairment.rate or settings.rate
        self._cell_bits = max(settings.cell + impairment.overhead, 0) * _BITS
        self._buffer = impairment.queue_frames or (settings.fifo if self.start is None else settings.buffer)


def cell_in(frame: bytes) -> bytes:
    """Return the cell of a frame."""
    return frame[ETHERNET:]

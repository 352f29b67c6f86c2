"""Channel: one direction of an ATM link, with the cells that wait at its beginning and those under way.

Cells wait in a NIC's output FIFO, which takes no cell while it is full, or in the output buffer of a switch, which loses
a cell that finds it full. A cell leaves the buffer when its first bit is sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from protocols.atm.cell import ETHERNET, cells_of
from testbed.fabric.entrance import Entrance
from testbed.fabric.interface import Plug, Receive, ignore
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

    start: the switch's port at its beginning; None: a NIC. end: at its end.
    """

    __slots__ = (
        "_asked", "_buffer", "_busy", "_carry", "_delay", "_hop", "_last", "_network", "_per_cell", "_rate", "_waiting",
        "end", "entrance", "held", "on_space", "receive", "start",
    )  # fmt: skip

    def __init__(
        self,
        link: str,
        direction: DirectionName,
        impairment: Impairment,
        options: FateOptions,
        network: Network,
        start: Plug | None,
        end: Plug | None,
    ) -> None:
        """Raises what `Entrance` does."""
        self.entrance: Final = Entrance(link, direction, impairment, options, ATM)
        self.start: Final = start
        self.end: Final = end
        self.on_space: Callable[[int], object] | None = None
        self.receive: Receive = ignore
        self.held = 0
        """Cells that wait, or are under way, and those that a rule delays."""
        self._network = network
        self._waiting: deque[int] = deque()  # when the first bit of each is sent; some have left since
        self._busy = 0  # until when the link is sending
        self._carry = 0  # of `_busy`, the part below a nanosecond, in units of 1 / _rate
        self._last = 0  # when the last cell in order arrives
        self._asked = False  # whether the NIC waits for space
        self._hop = 0 if end is None else network.settings.hop
        self._lay(impairment)

    def change(
        self, now: int, impairment: Impairment, files: Mapping[str, str] | None = None, restart: bool | None = None
    ) -> None:
        """Set another impairment, as `Direction.change`. Cells that have been accepted keep their schedule."""
        self.entrance.change(now, impairment, files, restart)
        if impairment.rate != self._rate:
            self._carry = 0
        self._lay(impairment)

    def offer(self, now: int, frame: bytes) -> bool:
        """Offer a NIC's frame of one or more cells. False: the output FIFO is full; `on_space` says when it is not."""
        self._leave(now)
        if len(self._waiting) >= self._buffer:
            self.entrance.counters.blocked += 1
            if not self._asked:
                self._asked = True
                self._network.at(self._waiting[0], self._tell, frame)
            return False
        for cell in cells_of(frame):
            self.enter(now, cell)
        return True

    def enter(self, now: int, frame: bytes) -> bool:
        """Let a cell enter, from a NIC or a switch. False: it found the buffer full, and is lost."""
        accepted = self.entrance.take(now, frame)
        for when, late in self.entrance.put_aside:
            self.held += 1
            self._network.at(when, self._come_back, late)
        self.entrance.put_aside.clear()
        return accepted is None or self._send(now, accepted)

    def leave(self) -> None:
        """Remove the direction; its cells under way are lost."""
        self.receive = ignore
        self._network.leave(self)

    def _send(self, now: int, frame: bytes) -> bool:
        self._leave(now)
        begin = self._busy
        if begin <= now:
            begin, self._carry = now, 0
        elif self.start is not None and len(self._waiting) >= self._buffer:
            self.entrance.counters.drop(Outcome.QUEUE)
            return False
        else:
            self._waiting.append(begin)
        nanoseconds, self._carry = divmod(self._per_cell + self._carry, self._rate)
        self._busy = begin + nanoseconds
        self._last = max(self._last, self._busy + self._delay)  # a shorter delay lets no cell overtake
        self.held += 1
        self._network.at(self._last + self._hop, self._arrive, frame)
        return True

    def _arrive(self, now: int, frame: bytes) -> None:
        self.held -= 1
        self.entrance.came(frame)
        if self.end is None:
            self.receive(now, frame)
        else:
            self._network.forward(now, self.end, frame)

    def _come_back(self, now: int, frame: bytes) -> None:
        """Send a cell that a rule has delayed or duplicated."""
        self.held -= 1
        if not self._send(now, frame):
            self._network.complain_of_buffer(now, self, frame)

    def _tell(self, now: int, _: bytes) -> None:
        """Tell the NIC that its output FIFO has space."""
        self._asked = False
        if self.on_space is not None:
            self.on_space(now)

    def _leave(self, now: int) -> None:
        waiting = self._waiting
        while waiting and waiting[0] <= now:
            waiting.popleft()

    def _lay(self, impairment: Impairment) -> None:
        settings = self._network.settings
        self._delay = impairment.delay
        self._rate = impairment.rate or settings.rate
        self._per_cell = max(settings.cell + impairment.overhead, 0) * _BITS
        self._buffer = impairment.queue_frames or (settings.fifo if self.start is None else settings.buffer)


def cell_in(frame: bytes) -> bytes:
    """Return the cell of a frame."""
    return frame[ETHERNET:]

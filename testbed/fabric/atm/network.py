"""Network of ATM switches: cells forwarded by circuit, and output buffers that lose what does not fit.

A switch finds a cell's output by its circuit in a table that is installed with it. It discards cells whose header is
damaged or whose circuit it does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import Final

from protocols.atm.cell import CELL, HEADER, circuit_of, is_intact, nodes_of
from testbed.fabric.atm.channel import Channel, cell_in
from testbed.fabric.interface import OnDrop, Plug, Table
from testbed.fates.stage import FateOptions
from testbed.spec.layout import DirectionName, Impairment

LINK_RATE: Final = 140_000_000
"""Default rate of a link in bit/s: the TAXI interface of the SBA-100 (von Eicken, Basu and Buch, 1995)."""

BAD_HEADER: Final = "bad_header"
NO_CIRCUIT: Final = "no_circuit"
NO_CABLE: Final = "no_cable"
FULL: Final = "buffer_full"

WORDS: Final = {
    BAD_HEADER: "its header's check is wrong, or it is no whole cell",
    NO_CIRCUIT: "the switch has no such circuit",
    NO_CABLE: "the circuit leads to a port without a cable",
    FULL: "the output's buffer is full",
}
"""Why a switch does not forward a cell: the names of its counters, and phrases."""

_Event = tuple[int, int, Callable[[int, bytes], object], bytes]


@dataclass(frozen=True, slots=True)
class Settings:
    """Hardware parameters, times in nanoseconds.

    rate: default of a link, in bit/s. cell: bytes that a cell takes of the rate; a link's overhead is added. fifo: cells
    that wait in a NIC's output (36 in the SBA-100, von Eicken, Basu and Buch, 1995). buffer: cells that wait at a switch's
    output, our choice; a link's queue_frames replaces both. hop: from a cell's end at a switch's input until it can be
    sent, our choice of an ideal switch.
    """

    rate: int = LINK_RATE
    cell: int = CELL
    fifo: int = 36
    buffer: int = 256
    hop: int = 0

    def slowed(self, factor: int) -> Settings:
        """Return settings of hardware that is slower by a factor."""
        return replace(self, rate=self.rate // factor, hop=self.hop * factor)


USUAL: Final = Settings()


class Switch:
    """A switch. outputs: channels of the ports with a cable. circuits: the outputs of the cells that have passed, by their
    headers: the circuits in use."""

    __slots__ = ("circuits", "counters", "outputs", "ports")

    def __init__(self) -> None:
        self.ports: dict[int, int] = {}
        self.outputs: Final[dict[int, Channel]] = {}
        self.circuits: Final[dict[bytes, Channel]] = {}
        self.counters: Final = dict.fromkeys(WORDS, 0)
        """Cells that did not go on, by cause."""

    def install(self, table: Table) -> None:
        """Set the switch's table: port by the number of the destination node, for all nodes of the cluster."""
        self.ports = {int(number): port for number, port in table.items()}
        self.circuits.clear()

    def plug(self, port: int, channel: Channel) -> None:
        """Put a cable's end into a port."""
        self.outputs[port] = channel
        self.circuits.clear()

    def unplug(self, channel: Channel) -> None:
        """Pull a cable's end out of its port, if it is in one."""
        for port, output in list(self.outputs.items()):
            if output is channel:
                del self.outputs[port]
                self.circuits.clear()

    def output(self, cell: bytes) -> Channel | str:
        """Return a cell's output, or the cause why it has none."""
        known = self.circuits.get(cell[:HEADER])
        if known is not None and len(cell) == CELL:
            return known
        if not is_intact(cell):
            return BAD_HEADER
        ends = nodes_of(circuit_of(cell), len(self.ports))
        if ends is None:
            return NO_CIRCUIT
        found = self.outputs.get(self.ports[ends[1]])
        if found is None:
            return NO_CABLE
        self.circuits[cell[:HEADER]] = found
        return found


class Network:
    """ATM switches, and the channels between them and to NICs. Implements `fabric.interface.Network`."""

    def __init__(self, settings: Settings = USUAL, on_drop: OnDrop | None = None) -> None:
        self.settings: Final = settings
        self._switches: dict[str, Switch] = {}
        self._on_drop = on_drop
        self._heap: list[_Event] = []
        self._sequence = 0

    @property
    def deadline(self) -> int | None:
        """When to poll next; None: never."""
        return self._heap[0][0] if self._heap else None

    @property
    def switches(self) -> Mapping[str, Mapping[str, int]]:
        """Counters of each switch: cells that it did not forward, by cause."""
        return {name: switch.counters for name, switch in self._switches.items()}

    def keep(self, tables: Mapping[str, Table]) -> None:
        """Add and remove switches, so that these exist and no others, and install their tables."""
        for name in self._switches.keys() - tables.keys():
            del self._switches[name]
        for name, table in tables.items():
            self._switches.setdefault(name, Switch()).install(table)

    def join(
        self,
        link: str,
        direction: DirectionName,
        impairment: Impairment,
        options: FateOptions,
        start: Plug | None = None,
        end: Plug | None = None,
    ) -> Channel:
        """Add a direction of a link from one port to another; None: a NIC. Raises what `Entrance` does."""
        channel = Channel(link, direction, impairment, options, self, start, end)
        for plug in (start, end):
            if plug is not None:
                self._switches.setdefault(plug.switch, Switch())
        if start is not None:
            self._switches[start.switch].plug(start.port, channel)
        return channel

    def leave(self, channel: Channel) -> None:
        """Remove a channel, see `Channel.leave`."""
        for switch in self._switches.values():
            switch.unplug(channel)

    def poll(self, now: int) -> None:
        """Process all events that are due."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            when, _, act, frame = heappop(heap)
            act(when, frame)

    def at(self, when: int, act: Callable[[int, bytes], object], frame: bytes) -> None:
        """Schedule an event of a cell."""
        self._sequence += 1
        heappush(self._heap, (when, self._sequence, act, frame))

    def forward(self, now: int, plug: Plug, frame: bytes) -> None:
        """Forward a cell that has come in by a port."""
        switch = self._switches.get(plug.switch)
        if switch is None:
            return  # removed while the cell was on its way
        out = switch.output(cell_in(frame))
        if isinstance(out, str):
            self._complain(now, plug, out, frame)
        elif not out.enter(now, frame):
            self._complain(now, plug, FULL, frame)

    def complain_of_buffer(self, now: int, channel: Channel, frame: bytes) -> None:
        """Count a cell that found a switch's output buffer full."""
        assert channel.start is not None
        self._complain(now, channel.start, FULL, frame)

    def _complain(self, now: int, plug: Plug, cause: str, frame: bytes) -> None:
        self._switches[plug.switch].counters[cause] += 1
        if self._on_drop is not None:
            self._on_drop(now, plug.switch, plug.port, "loses a cell", WORDS[cause], frame)

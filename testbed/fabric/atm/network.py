"""Network of ATM switches, which forward cells by circuit and drop cells when an output buffer is full.

A switch looks up a cell's output by its circuit in its table. It discards cells with a damaged header or an unknown circuit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import Final

from protocols.atm.cell import CELL, HEADER, circuit_of, is_intact, nodes_of
from testbed.fabric.atm.channel import Channel, cell_in
from testbed.fabric.interface import OnDrop, SwitchPort, Table
from testbed.fates.stage import FateOptions
from testbed.spec.layout import DirectionName, Impairment

LINK_RATE: Final = 140_000_000
"""Default rate of a link in bit/s: the TAXI interface of the SBA-100 (von Eicken, Basu and Buch, 1995)."""

BAD_HEADER: Final = "bad_header"
NO_CIRCUIT: Final = "no_circuit"
NO_CABLE: Final = "no_cable"
FULL: Final = "buffer_full"

CAUSES: Final = {
    BAD_HEADER: "its header checksum is wrong, or it is not a complete cell",
    NO_CIRCUIT: "the switch has no such circuit",
    NO_CABLE: "the circuit leads to a port without a cable",
    FULL: "the output buffer is full",
}
"""Causes of drops: names of a switch's counters, with descriptions."""

_Event = tuple[int, int, Callable[[int, bytes], object], bytes]


@dataclass(frozen=True, slots=True)
class Settings:
    """Hardware parameters, times in nanoseconds.

    rate: default of a link, in bit/s. cell: bytes of a cell on the wire, without a link's overhead. fifo: cells that fit
    into a NIC's output FIFO (36 in the SBA-100, von Eicken, Basu and Buch, 1995). buffer: cells that fit into a switch's
    output buffer, our choice; a link's queue_frames replaces both. hop: time from the arrival of a cell's end at a switch's
    input until the cell can be sent; 0 is our choice, an ideal switch.
    """

    rate: int = LINK_RATE
    cell: int = CELL
    fifo: int = 36
    buffer: int = 256
    hop: int = 0

    def slowed(self, factor: int) -> Settings:
        """Return settings of hardware that is slower by a factor."""
        return replace(self, rate=self.rate // factor, hop=self.hop * factor)


DEFAULT: Final = Settings()


class Switch:
    """A switch. ports: port by node number. outputs: channels of the ports with a cable. circuits: cache of outputs by cell
    header."""

    __slots__ = ("circuits", "counters", "outputs", "ports")

    def __init__(self) -> None:
        self.ports: dict[int, int] = {}
        self.outputs: Final[dict[int, Channel]] = {}
        self.circuits: Final[dict[bytes, Channel]] = {}
        self.counters: Final = dict.fromkeys(CAUSES, 0)
        """Number of dropped cells, by cause."""

    def install(self, table: Table) -> None:
        """Set the switch's table: port by the number of the destination node, for all nodes of the cluster."""
        self.ports = {int(number): port for number, port in table.items()}
        self.circuits.clear()

    def plug(self, port: int, channel: Channel) -> None:
        """Connect a cable to a port."""
        self.outputs[port] = channel
        self.circuits.clear()

    def unplug(self, channel: Channel) -> None:
        """Disconnect a cable from its port, if it is connected."""
        for port, output in list(self.outputs.items()):
            if output is channel:
                del self.outputs[port]
                self.circuits.clear()

    def output(self, cell: bytes) -> Channel | str:
        """Return a cell's output, or the cause of its drop."""
        cached = self.circuits.get(cell[:HEADER])
        if cached is not None and len(cell) == CELL:
            return cached
        if not is_intact(cell):
            return BAD_HEADER
        nodes = nodes_of(circuit_of(cell), len(self.ports))
        if nodes is None:
            return NO_CIRCUIT
        output_channel = self.outputs.get(self.ports[nodes[1]])
        if output_channel is None:
            return NO_CABLE
        self.circuits[cell[:HEADER]] = output_channel
        return output_channel


class Network:
    """ATM switches, and the channels between them and to NICs. Implements `fabric.interface.Network`."""

    def __init__(self, settings: Settings = DEFAULT, on_drop: OnDrop | None = None) -> None:
        self.settings: Final = settings
        self._switches: dict[str, Switch] = {}
        self._on_drop = on_drop
        self._heap: list[_Event] = []
        self._sequence = 0

    @property
    def deadline(self) -> int | None:
        """Time of the next poll, or None if none is needed."""
        return self._heap[0][0] if self._heap else None

    @property
    def switch_counters(self) -> Mapping[str, Mapping[str, int]]:
        """Counters of each switch: dropped cells, by cause."""
        return {name: switch.counters for name, switch in self._switches.items()}

    def set_switches(self, tables: Mapping[str, Table]) -> None:
        """Add missing switches, remove all others, and install the tables. tables: by switch."""
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
        start: SwitchPort | None = None,
        end: SwitchPort | None = None,
    ) -> Channel:
        """Add a direction of a link from one port to another; None: a NIC. Raises the errors of `Entrance`."""
        channel = Channel(link, direction, impairment, options, self, start, end)
        for port in (start, end):
            if port is not None:
                self._switches.setdefault(port.switch, Switch())
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
            when, _, callback, frame = heappop(heap)
            callback(when, frame)

    def at(self, when: int, callback: Callable[[int, bytes], object], frame: bytes) -> None:
        """Schedule a callback with a cell's frame."""
        self._sequence += 1
        heappush(self._heap, (when, self._sequence, callback, frame))

    def forward(self, now: int, port: SwitchPort, frame: bytes) -> None:
        """Forward a cell that has arrived at a port."""
        switch = self._switches.get(port.switch)
        if switch is None:
            return  # removed while the cell was in flight
        output = switch.output(cell_in(frame))
        if isinstance(output, str):
            self._count_drop(now, port, output, frame)
        elif not output.enter(now, frame):
            self._count_drop(now, port, FULL, frame)

    def drop_at_full_buffer(self, now: int, channel: Channel, frame: bytes) -> None:
        """Count a cell dropped at a switch's full output buffer."""
        assert channel.start is not None
        self._count_drop(now, channel.start, FULL, frame)

    def _count_drop(self, now: int, port: SwitchPort, cause: str, frame: bytes) -> None:
        self._switches[port.switch].counters[cause] += 1
        if self._on_drop is not None:
            self._on_drop(now, port.switch, port.port, "loses a cell", CAUSES[cause], frame)

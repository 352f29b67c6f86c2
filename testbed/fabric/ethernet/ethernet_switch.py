"""An Ethernet switch: it looks up a frame's destination and hands the frame to the outgoing channel.

The switch has no queue: frames wait in the queue of the outgoing channel. If switches form cycles, it uses the layout's
tables, as the kernel's bridges do for the same layout. Otherwise it learns as they do, but without ageing (a bridge removes
an entry after 300 s without a frame).
"""

from __future__ import annotations

from typing import Final

from testbed.fabric.ethernet.channel import Channel, SwitchInput
from testbed.fabric.interface import Table
from testbed.fabric.line import FrameInFlight

STATIC: Final = "static"
TREE: Final = "tree "
"""Keys of a switch's table: see `Switch.install`."""

_GROUP: Final = 1  # group bit in a MAC's first byte
_RESERVED: Final = bytes.fromhex("0180c20000")  # IEEE 802.1Q table 8-1: 01-80-c2-00-00-00 to -0f are not forwarded


class Port(SwitchInput):
    """A switch's input port. out: the outgoing channel of this port. table: MAC -> outgoing channel."""

    __slots__ = ("_floods", "out", "table")

    def __init__(self, out: Channel, table: dict[bytes, Channel], floods: tuple[Channel, ...]) -> None:
        """table: MAC -> channel, shared by the switch's ports. floods: the switch's channels for unknown destinations;
        `out` is ignored."""
        self.table: dict[bytes, Channel] = table
        self._floods = tuple([channel for channel in floods if channel is not out])
        self.out: Channel = out

    @property
    def learns(self) -> bool:
        return False

    def receive(self, now: int, frame: FrameInFlight) -> None:
        """Forward a frame without delay."""
        channel = self.table.get(frame.destination)
        if channel is None:
            self._flood(now, frame.data)
        elif channel is not self.out:
            channel.enter(now, frame)

    def _flood(self, now: int, frame: bytes) -> None:
        if frame[:5] == _RESERVED and frame[5] < 16:
            return
        for channel in self._floods:
            channel.enter(now, FrameInFlight(frame))


class LearningPort(Port):
    """A port of a learning switch: it learns the port of each frame's source address."""

    __slots__ = ()

    @property
    def learns(self) -> bool:
        return True

    def receive(self, now: int, frame: FrameInFlight) -> None:
        table, out = self.table, self.out
        source = frame.data[6:12]
        if table.get(source) is not out and source and not source[0] & _GROUP:
            table[source] = out
        channel = table.get(frame.destination)
        if channel is None:
            self._flood(now, frame.data)
        elif channel is not out:
            channel.enter(now, frame)


class Switch:
    """A switch and its cables: channels that start at its ports, and channels that end there, by port."""

    __slots__ = ("_learned", "inputs", "outputs")

    def __init__(self) -> None:
        self.inputs: Final[dict[int, Channel]] = {}
        self.outputs: Final[dict[int, Channel]] = {}
        self._learned: dict[bytes, Channel] = {}  # MAC -> channel to its node

    def install(self, table: Table, macs: dict[str, bytes]) -> None:
        """Make the ports of all cables. A switch that learns forgets what it has learned on removed cables.

        table: MAC -> port; `TREE` and a port -> that port, for the ports of the spanning tree, to which frames for unknown
        destinations go. Without `STATIC` the switch learns, and the spanning tree has all ports. macs: text of a MAC -> its
        bytes.
        """
        outputs = self.outputs
        learns = STATIC not in table
        tree = {port for key, port in table.items() if key.startswith(TREE)}
        floods = tuple([outputs[port] for port in sorted(outputs) if learns or port in tree])
        if learns:
            plugged = set(outputs.values())
            channels = {mac: channel for mac, channel in self._learned.items() if channel in plugged}
            self._learned = channels
        else:
            channels = {macs[mac]: outputs[port] for mac, port in table.items() if mac in macs and port in outputs}
        port_class = LearningPort if learns else Port
        for number, channel in self.inputs.items():
            out = outputs.get(number)
            channel.connect_switch(None if out is None else port_class(out, channels, floods))

    def remove(self) -> None:
        """Disconnect the switch from its cables, so that it gets no more frames."""
        for channel in self.inputs.values():
            channel.connect_switch(None)

"""Network of Ethernet switches and links. The links' events are in the network's own queue, or in its driver's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from testbed.fabric.ethernet.channel import Channel
from testbed.fabric.ethernet.ethernet_switch import Switch
from testbed.fabric.event_queue import EventQueue
from testbed.fabric.interface import SwitchPort, Table
from testbed.fates.flows import Classifier
from testbed.fates.stage import FateOptions
from testbed.spec.layout import DirectionName, Impairment


class Network:
    """Ethernet switches, and the channels between them and to NICs. Implements `interface.Network` and `UsesEventQueue`.

    A cable at a switch is in use from the next `set_switches` on.
    """

    def __init__(self) -> None:
        self._events = EventQueue()
        self._on_leave: Final = self._leave
        self._is_polled = True  # whether the events are in the network's own queue
        self._switches: dict[str, Switch] = {}
        self._classifier: Classifier | None = None  # classifier of the links' flows

    def use_event_queue(self, events: EventQueue) -> None:
        """Schedule all events in the driver's queue. Call it before links join."""
        self._events = events
        self._is_polled = False

    @property
    def deadline(self) -> int | None:
        """Time of the next poll, or None if none is needed, as when the driver's queue has the events."""
        return self._events.next_time() if self._is_polled else None

    @property
    def switch_counters(self) -> Mapping[str, Mapping[str, int]]:
        """Empty, since only links lose frames."""
        return {}

    def set_switches(self, tables: Mapping[str, Table]) -> None:
        """Add missing switches, remove all others, and install the tables. tables: by switch."""
        for name in self._switches.keys() - tables.keys():
            self._switches.pop(name).remove()
        macs = self._macs(tables.values())
        for name, table in tables.items():
            self._switches.setdefault(name, Switch()).install(table, macs)

    def join(
        self,
        link: str,
        direction: DirectionName,
        impairment: Impairment,
        options: FateOptions,
        start: SwitchPort | None = None,
        end: SwitchPort | None = None,
    ) -> Channel:
        """Add a direction of a link from one port to another; None: a NIC. Raises the errors of `LinkDirection`."""
        channel = Channel(link, direction, impairment, options, self._events, self._on_leave)
        self._classifier = options.classifier
        if start is not None:
            self._switches.setdefault(start.switch, Switch()).outputs[start.port] = channel
        if end is not None:
            self._switches.setdefault(end.switch, Switch()).inputs[end.port] = channel
        return channel

    def poll(self, now: int) -> None:
        """Process all events that are due."""
        if self._is_polled:
            self._events.call_due(now)

    def _leave(self, channel: Channel) -> None:
        for switch in self._switches.values():
            for channels in (switch.outputs, switch.inputs):
                for port in [port for port, plugged in channels.items() if plugged is channel]:
                    del channels[port]

    def _macs(self, tables: Iterable[Table]) -> dict[str, bytes]:
        """Return text -> bytes of the MACs in tables. The links' flows share the bytes objects, one for each MAC."""
        macs = {key: bytes.fromhex(key.replace(":", "")) for key in set().union(*tables) if ":" in key}
        classifier = self._classifier
        return macs if classifier is None else {key: classifier.mac(mac) for key, mac in macs.items()}

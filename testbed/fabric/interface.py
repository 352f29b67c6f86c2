"""Interface of fabrics, through which the simulation and the relay drive them.

A package registers a `Fabric` in the entry point group "testbed.fabrics", under the name of its kind. Networks have no clock
and no sockets: time is an argument, `deadline` is the time of the next poll, and frames are delivered by callbacks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from testbed.lazy_dataclass import dataclass

if TYPE_CHECKING:  # not imported at run time: modules that only use SwitchPort need no models
    from testbed.fabric.direction_counters import Counters
    from testbed.fabric.event_queue import EventQueue
    from testbed.fates.stage import FateOptions, FateStage
    from testbed.spec.kinds import Kind
    from testbed.spec.layout import DirectionName, Impairment, Layout, Switch

Receive = Callable[[int, bytes], object]
"""Callback for an arriving frame: time in nanoseconds, frame."""

Table = Mapping[str, int]
"""Configuration of a switch, such as port numbers by destination. The switch's fabric defines the keys."""

OnDrop = Callable[[int, str, int, str, str, bytes], object]
"""Callback for a frame that a switch does not forward, or truncates: time, switch, input port, the action ("loses a
frame"), the reason, the frame."""


@dataclass(frozen=True, slots=True)
class SwitchPort:
    """A port of a switch."""

    switch: str
    port: int


class Entrance(Protocol):
    """Start of a channel, where frames enter: link state, fates and counters. is_cut: whether the link is down; then
    entering frames are lost, and frames in flight arrive."""

    is_cut: bool

    @property
    def lost(self) -> int:
        """Number of frames that entered while the link was down."""
        ...

    @property
    def overflowed(self) -> int:
        """Number of frames that a full queue at the entrance has dropped."""
        ...

    @property
    def fates(self) -> FateStage: ...
    @property
    def counters(self) -> Counters: ...

    def observe(self, observer: Receive | None) -> None:
        """Call `observer` after each frame that enters, even if the frame is lost; None: call none."""
        ...


class Channel(Protocol):
    """One direction of a link. entrance: start of the channel. receive: called with frames that arrive at a NIC. on_space:
    called with the present time when a NIC may repeat a rejected offer."""

    @property
    def entrance(self) -> Entrance: ...

    receive: Receive
    on_space: Callable[[int], object] | None

    @property
    def in_flight(self) -> int:
        """Number of frames that have entered the channel and have not left it yet."""
        ...

    def change(
        self, now: int, impairment: Impairment, files: Mapping[str, str] | None = None, restart: bool | None = None
    ) -> None:
        """Set another impairment, as `LinkDirection.change`."""
        ...

    def offer(self, now: int, frame: bytes) -> bool:
        """Offer a frame of the NIC at the start of the channel. Return False if it is rejected; `on_space` is called when to
        repeat the offer."""
        ...

    def leave(self) -> None:
        """Remove the direction; its frames in flight are lost."""
        ...


class Network(Protocol):
    """Switches of one kind, and their links. The driver offers frames to the channels, and polls at `deadline`. Times are
    nanoseconds and never go backwards."""

    @property
    def deadline(self) -> int | None:
        """Time of the next poll, or None if none is needed."""
        ...

    @property
    def switch_counters(self) -> Mapping[str, Mapping[str, int]]:
        """Counters of each switch: dropped or truncated frames, by cause."""
        ...

    def set_switches(self, tables: Mapping[str, Table]) -> None:
        """Add missing switches, remove all others, and install the tables. tables: by switch. Called after links have
        joined or left."""
        ...

    def join(
        self,
        link: str,
        direction: DirectionName,
        impairment: Impairment,
        options: FateOptions,
        start: SwitchPort | None = None,
        end: SwitchPort | None = None,
    ) -> Channel:
        """Add a direction of a link from one port to another; None: a NIC. Raises DescriptionError for contradictory
        impairments, UnsupportedError for impairments that the fabric does not support and for ports that it cannot connect,
        BrokenFileError for an invalid file, and RuleError for an invalid rule."""
        ...

    def poll(self, now: int) -> None:
        """Process all events that are due, such as deliveries of frames."""
        ...


@runtime_checkable
class UsesEventQueue(Protocol):
    """A network that can schedule its events in its driver's queue, so that events of both at the same time are called
    in the order in which they were scheduled."""

    def use_event_queue(self, events: EventQueue) -> None:
        """Schedule all events in the driver's queue; `deadline` is None from then on. Called before any link joins."""
        ...


class Fabric(Protocol):
    """A registered kind of network."""

    @property
    def kind(self) -> Kind: ...

    def network(self, slowed: int = 1, on_drop: OnDrop | None = None) -> Network:
        """Make an empty network. slowed: the factor by which its hardware is slower."""
        ...

    def table(self, layout: Layout, switch: Switch) -> Table:
        """Return a switch's table; empty if the switches need none."""
        ...


@dataclass(frozen=True, slots=True)
class Path:
    """Path from a node's NIC to another NIC, or back to itself. source, sink: nodes at its ends. hops: switches on it, with
    input and output ports."""

    source: str
    sink: str
    hops: tuple[tuple[str, int, int], ...]


@runtime_checkable
class Routing(Protocol):
    """A fabric that can send a frame along a given path."""

    def has_route(self, layout: Layout, path: Path) -> bool:
        """Whether frames can take this path."""
        ...

    def build_frame(self, layout: Layout, path: Path, frame: bytes) -> bytes:
        """Build a frame that takes the path. frame: Ethernet header and payload as the receiver sees them, at most 60 bytes,
        so that it fits into one ATM cell."""
        ...


def discard(now: int, frame: bytes) -> None:
    """Ignore a frame: the `receive` of a channel without a NIC at its end."""
